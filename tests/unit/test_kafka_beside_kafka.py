"""What tools of Kafka do with all settings at once, and what one node says of itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.broker import Action, AllowAll, Kind, Principal, StreamConfig
from onelog.config import Config
from onelog.config.listeners import KafkaListener, Listeners
from onelog.protocols.kafka.admin.topic_settings import TOPIC_SETTINGS
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support import kafka_hub
from tests.support.kafka_admin import BROKER, SET, TOPIC, Desk, desk
from tests.support.kafka_hub import Client, batch, rows_of

E = ErrorCode
K = ApiKey
FROM_BROKER, FROM_DEFAULT = 4, 5
DENSE = {
    "cleanup__policy": "compact",
    "compression__type": "zstd",
    "min__insync__replicas": "2",
    "min__compaction__lag__ms": "86400000",
    "max__compaction__lag__ms": "96400000",
    "file__delete__delay__ms": "60000",
    "flush__ms": "1000",
    "flush__messages": "10000",
    "segment__ms": "100",
    "segment__jitter__ms": "1",
    "leader__replication__throttled__replicas": "*",
    "message__timestamp__after__max__ms": "3600000",
}
"""What Kafka Streams and MirrorMaker ask for, and more."""


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as made:
        yield made


# -- settings


async def test_what_kafka_takes_is_taken_and_shown_after_a_restart_too(tmp_path) -> None:
    wanted = {name.replace("__", "."): text for name, text in DENSE.items()}
    async with desk(tmp_path) as admin:
        assert (await admin.create("changelog", 3, **DENSE)).error_code is E.none
    async with desk(tmp_path) as admin:
        told = await admin.settings("changelog", documentation=True)
        assert {name: told[name].value for name in wanted} == wanted
        assert {told[name].config_source for name in wanted} == {1}
        assert "o effect" not in told["min.insync.replicas"].documentation
        assert admin.hub.topics.get("changelog").partition_count == 3


async def test_everything_that_is_shown_can_be_set_again(admin) -> None:
    """Describe all, alter all: what many tools do."""
    await admin.create("t", 1, **DENSE)
    before = await admin.settings("t")
    assert before["onelog.filter"].value == ""
    rows = [(name, SET, row.value) for name, row in before.items()]
    assert (await admin.change("t", *rows)).error_code is E.none
    whole = [{"name": name, "value": row.value} for name, row in before.items()]
    answer = await admin.ask(
        K.ALTER_CONFIGS,
        resources=[{"resource_type": TOPIC, "resource_name": "t", "configs": whole}],
        validate_only=False,
    )
    assert answer.responses[0].error_code is E.none
    after = await admin.settings("t")
    assert {name: row.value for name, row in after.items()} == {
        name: row.value for name, row in before.items()
    }
    copy = {name: row.value for name, row in before.items()}
    assert (await admin.create("copy", 1, **copy)).error_code is E.none
    assert admin.hub.topics.get("copy").stream is not None, "an empty filter makes no view"


async def test_lags_that_contradict_each_other_are_refused_whatever_their_order(admin) -> None:
    await admin.create("t", 1, min__compaction__lag__ms="100", max__compaction__lag__ms="200")
    refused = await admin.change("t", ("max.compaction.lag.ms", SET, "50"))
    assert refused.error_code is E.invalid_config
    both = [("min.compaction.lag.ms", SET, "500"), ("max.compaction.lag.ms", SET, "600")]
    assert (await admin.change("t", *both)).error_code is E.none
    down = [("min.compaction.lag.ms", SET, "1"), ("max.compaction.lag.ms", SET, "2")]
    assert (await admin.change("t", *down)).error_code is E.none
    wrong = await admin.create("u", 1, min__compaction__lag__ms="9", max__compaction__lag__ms="8")
    assert wrong.error_code is E.invalid_config


def test_a_description_says_no_effect_of_just_what_is_only_kept() -> None:
    idle = {row.name for row in TOPIC_SETTINGS.values() if row.about.startswith("No effect")}
    assert idle == {row.name for row in TOPIC_SETTINGS.values() if row.kept} - {
        "flush.messages",
        "min.insync.replicas",
    }


async def test_an_address_that_is_advertised_counts_as_said(tmp_path) -> None:
    plain = Config(data_dir=str(tmp_path))
    own = KafkaListener(advertised="127.0.0.1:9092")  # where it would be anyway
    said = Config(data_dir=str(tmp_path), listeners=Listeners(kafka=own))
    for config, source in ((plain, FROM_DEFAULT), (said, FROM_BROKER)):
        async with desk(tmp_path / str(source), config) as admin:
            row = (await admin.settings("0", BROKER))["advertised.listeners"]
            assert (row.value, row.config_source) == ("PLAINTEXT://127.0.0.1:9092", source)


async def test_nobody_writes_or_reads_a_cluster(admin) -> None:
    told = await admin.ask(K.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
    operations = {bit for bit in range(32) if told.cluster_authorized_operations >> bit & 1}
    assert operations == {5, 7, 8, 9, 10, 11, 12}  # as AclEntry of Kafka has them


# -- versions


async def test_the_log_names_the_versions_that_are_served(admin, capsys) -> None:
    client = Client(admin.hub)
    client.send(b"\0\0\0\x0c" + b"\0\0" + b"\0\x01" + b"\0\0\0\1" + b"\0\0" + b"\0\0")
    assert client.line.closed
    assert "PRODUCE version 1 is not served, 3 to 11 are" in "".join(capsys.readouterr())


# -- who may do what to which


class Listens(AllowAll):
    """Lets everybody do everything, and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[Action, str]] = set()

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        self.asked.add((action, resource))
        return super().allows(principal, action, resource)


async def test_produce_and_fetch_name_the_same_resource(tmp_path) -> None:
    """Also where the stream of a topic has another name than the topic."""
    listens = Listens()
    async with desk(tmp_path, authorizer=listens) as admin:
        config = StreamConfig(name="t", captures=("other",), partitions=1)
        await admin.broker.streams.create(config)
        assert (await admin.create("a.t", 1)).error_code is E.none
        assert (await admin.create("t", 1)).error_code is E.none
        assert admin.hub.topics.get("t").stream.name == "t-2"
        for name, resource in (("t", "t"), ("a.t", "a/t"), ("other", "other")):
            client = Client(admin.hub)
            listens.asked.clear()
            client.send(client.produce(batch(b"v"), topic=name))
            ((_, answer),) = await client.wait_for(1)
            assert rows_of(answer) == [(0, 0, 0)]
            body = kafka_hub.fetch_body(name)
            client.send(client.frame(K.FETCH, 4, body))
            await client.wait_for(1)
            assert listens.asked == {(Action.PUBLISH, resource), (Action.DELIVER, resource)}
