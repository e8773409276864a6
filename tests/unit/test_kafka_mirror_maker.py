"""What MirrorMaker 2 sends for topics of an Apache Kafka 4.1 cluster that it copies here.

`MirrorSourceConnector` describes the source's topic and leaves out what its default filter excludes
and what is read-only or comes from the source's broker file. It makes the copy with the rest: only
what was chosen for the topic (`use.defaults.from=target`), or everything (`source`). Then it keeps
the settings alike, by SET of what was chosen and DELETE of what is a default.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_admin import DELETE, SET, Desk, desk, new_topic

E = ErrorCode
VERSION = 7
TIMEOUT_MS = 30_000
SOURCE = {
    "cleanup.policy": "compact",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "2097152",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
}
"""What is described of a topic, without what MirrorMaker excludes: throttled replicas, the type of
timestamps, unclean elections and replicas in sync."""
CHOSEN = ("cleanup.policy", "max.message.bytes")
OWN = ("heartbeats", "source.checkpoints.internal", "mm2-offset-syncs.source.internal")


@pytest.fixture
async def admin(tmp_path: Path):
    async with desk(tmp_path) as made:
        yield made


async def make(admin: Desk, name: str, partitions: int, configs: dict[str, str]) -> ErrorCode:
    row = new_topic(name, partitions, 1)
    row["configs"] = [{"name": key, "value": value} for key, value in configs.items()]
    told = await admin.ask(
        ApiKey.CREATE_TOPICS, VERSION, topics=[row], timeout=TIMEOUT_MS, validate_only=False
    )
    return told.topics[0].error_code


@pytest.mark.parametrize("names", [CHOSEN, tuple(SOURCE)], ids=["target", "source"])
async def test_the_copy_of_a_topic_is_made_and_kept_alike(admin: Desk, names) -> None:
    wanted = {name: SOURCE[name] for name in names}
    assert await make(admin, "source.orders", 6, wanted) is E.none
    told = await admin.settings("source.orders")
    assert {name: told[name].value for name in wanted} == wanted
    changes = [
        (name, SET, value) if name in CHOSEN else (name, DELETE, None)
        for name, value in SOURCE.items()
    ]
    for _ in range(2):
        assert (await admin.change("source.orders", *changes)).error_code is E.none
    told = await admin.settings("source.orders")
    assert {name: told[name].value for name in CHOSEN} == {name: SOURCE[name] for name in CHOSEN}


@pytest.mark.parametrize("name", OWN)
async def test_the_topics_of_mirror_maker_itself_are_made(admin: Desk, name: str) -> None:
    assert await make(admin, name, 1, {"cleanup.policy": "compact"}) is E.none
    assert await make(admin, name, 1, {"cleanup.policy": "compact"}) is E.topic_already_exists
