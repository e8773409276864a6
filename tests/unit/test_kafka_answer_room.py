"""Answers that could be many times their request have room for so much; the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onelog.base.names import to_dotted
from onelog.broker import Durability, StreamConfig
from onelog.protocols.kafka import room
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_admin import TOPIC, Desk, desk, new_topic

K = ApiKey
E = ErrorCode
ROOM_BYTES = 10_000


@pytest.fixture
async def admin(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(room, "ANSWER_BYTES_MAX", ROOM_BYTES)
    async with desk(tmp_path) as made:
        yield made


def told_then_refused(codes: list[ErrorCode]) -> None:
    """Some are told of, then all others are refused."""
    told = codes.index(E.policy_violation)
    assert told > 0
    assert codes == [E.none] * told + [E.policy_violation] * (len(codes) - told)


async def test_settings_of_many_topics_have_a_bound(admin: Desk) -> None:
    await admin.create("t", 1)
    resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}
    told = await admin.ask(
        K.DESCRIBE_CONFIGS,
        resources=[resource] * 50,
        include_synonyms=True,
        include_documentation=True,
    )
    told_then_refused([row.error_code for row in told.results])
    assert not told.results[-1].configs


@pytest.mark.parametrize("version", range(5, APIS[K.CREATE_TOPICS].last + 1))
async def test_topics_are_made_also_where_their_settings_have_no_room(
    admin: Desk, version: int
) -> None:
    names = [f"n{number}" for number in range(50)]
    told = await admin.ask(
        K.CREATE_TOPICS,
        version,
        topics=[new_topic(name, 1) for name in names],
        timeout=1000,
        validate_only=False,
    )
    assert {row.error_code for row in told.topics} == {E.none}
    told_then_refused([E(row.topic_config_error_code) for row in told.topics])
    assert all(bool(row.configs) != bool(row.topic_config_error_code) for row in told.topics)
    assert all(admin.hub.topics.find(name) is not None for name in names)


async def test_metadata_tells_of_a_topic_once_however_often_it_is_named(admin: Desk) -> None:
    await admin.create("t", 3)
    told = await admin.ask(
        K.METADATA,
        topics=[{"name": "t", "topic_id": None}] * 1000,
        allow_auto_topic_creation=False,
    )
    ((name, partitions),) = [(row.name, row.partitions) for row in told.topics]
    assert (name, len(partitions)) == ("t", 3)


async def test_metadata_of_many_filters_has_a_bound(admin: Desk) -> None:
    await admin.broker.streams.create(
        StreamConfig(name="w", captures=("w/#",), partitions=100, durability=Durability.OS)
    )
    names = [to_dotted(f"w/+/{number}") for number in range(20)]
    told = await admin.ask(
        K.METADATA,
        topics=[{"name": name, "topic_id": None} for name in names],
        allow_auto_topic_creation=False,
    )
    assert [row.name for row in told.topics] == names
    told_then_refused([row.error_code for row in told.topics])


async def test_offsets_with_much_text_have_a_bound(admin: Desk) -> None:
    await admin.create("t", 50)
    rows: list[dict[str, Any]] = [
        {"partition_index": at, "committed_offset": 7, "committed_metadata": "x" * 1000}
        for at in range(50)
    ]
    body = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    await admin.ask(K.OFFSET_COMMIT, **body, topics=[{"name": "t", "partitions": rows}])
    told = await admin.ask(K.OFFSET_FETCH, groups=[{"group_id": "g", "topics": None}])
    (topic,) = told.groups[0].topics
    told_then_refused([row.error_code for row in topic.partitions])
    assert {row.committed_offset for row in topic.partitions} == {7, -1}
