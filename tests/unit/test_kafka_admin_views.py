"""Views in the hands of an administrator: named by a setting, seen, and not changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.broker import LOCAL, Message
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_admin import SET, Desk, desk, new_topic

E = ErrorCode
K = ApiKey
PLUS = "sensors._x2B_.t"
"""The name of the filter sensors/+/t."""


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as made:
        for number in range(5):
            await made.broker.publish(Message(f"sensors/{number}/t", b"x"), principal=LOCAL)
        yield made


def names(admin: Desk) -> list[str]:
    return [topic.name for topic in admin.hub.topics.listed()]


async def test_a_topic_with_a_filter_is_a_view_that_shows_what_matches(admin) -> None:
    made = await admin.create("telemetry", onelog__filter="sensors/+/t")
    assert made.error_code is E.none
    topic = admin.hub.topics.get("telemetry")
    assert (topic.stream, topic.address, topic.id) == (None, "sensors/+/t", made.topic_id)
    assert made.num_partitions == topic.partition_count > 0
    assert sum(topic.partition(n).ends().high_watermark for n in range(topic.partition_count)) >= 5
    assert names(admin) == ["telemetry"]
    assert admin.broker.streams.find("telemetry") is None


async def test_a_view_is_validated_and_not_made(admin) -> None:
    told = await admin.create("telemetry", validate_only=True, onelog__filter="sensors/+/t")
    assert told.error_code is E.none
    assert names(admin) == []


@pytest.mark.parametrize(
    ("partitions", "replicas", "configs", "code"),
    [
        (-1, -1, {"onelog__filter": "a/#/b"}, E.invalid_config),
        (-1, -1, {"onelog__filter": "+a"}, E.invalid_config),
        (-1, -1, {"onelog__filter": "a/+", "retention__ms": "5"}, E.invalid_config),
        (4, -1, {"onelog__filter": "a/+"}, E.invalid_partitions),
        (-1, 3, {"onelog__filter": "a/+"}, E.invalid_replication_factor),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_view_that_cannot_be_is_refused(
    admin, partitions, replicas, configs, code, validate_only
) -> None:
    refused = await admin.create("v", partitions, replicas, validate_only=validate_only, **configs)
    assert refused.error_code is code
    assert names(admin) == []


async def test_a_name_is_given_once(admin) -> None:
    await admin.create("t", 1)
    assert (await admin.create("v", onelog__filter="a/+")).error_code is E.none
    for name in ("t", "v", PLUS):
        refused = await admin.create(name, onelog__filter="b/+")
        assert refused.error_code is E.topic_already_exists
    assert (await admin.create("v", 1)).error_code is E.topic_already_exists


async def test_a_topic_that_has_records_elsewhere_exists(admin) -> None:
    """Else its history would vanish for Kafka clients that make it just in case (I2)."""
    assert (await admin.create("sensors.0.t", 3)).error_code is E.topic_already_exists
    assert (await admin.create("sensors.77.t", 3)).error_code is E.none


async def test_a_view_shows_the_settings_of_its_stream_and_takes_none(admin) -> None:
    await admin.create("telemetry", onelog__filter="sensors/+/t")
    for name in ("telemetry", PLUS):
        told = await admin.settings(name)
        assert told["onelog.filter"].value == "sensors/+/t"
        assert told["onelog.filter"].config_source == 1
        assert all(row.read_only for row in told.values())
        main = admin.broker.streams.get("main").config
        assert told["onelog.durability"].value == main.durability
        row = await admin.change(name, ("retention.ms", SET, "5"))
        assert row.error_code is E.policy_violation
    # Where it shows several streams, there is no one truth: the defaults stand there.
    await admin.create("sensors.9.t", 1, onelog__durability="memory")
    assert (await admin.settings("telemetry"))["onelog.durability"].value == "fsync"


async def test_a_view_has_no_partitions_and_records_of_its_own(admin) -> None:
    await admin.create("telemetry", onelog__filter="sensors/+/t")
    grown = await admin.ask(
        K.CREATE_PARTITIONS,
        topics=[{"name": "telemetry", "count": 50, "assignments": None}],
        timeout=1000,
        validate_only=False,
    )
    assert grown.results[0].error_code is E.policy_violation
    rows = [{"partition_index": 0, "offset": -1}]
    trimmed = await admin.ask(
        K.DELETE_RECORDS, topics=[{"name": "telemetry", "partitions": rows}], timeout=1000
    )
    assert trimmed.topics[0].partitions[0].error_code is E.policy_violation
    dirs = await admin.ask(K.DESCRIBE_LOG_DIRS, topics=None)
    assert dirs.results[0].topics == ()


async def test_a_named_view_is_deleted_and_no_record_goes(admin) -> None:
    await admin.create("telemetry", onelog__filter="sensors/+/t")
    before = admin.broker.streams.get("main").size_bytes
    assert await admin.delete("telemetry") == [E.none]
    assert names(admin) == []
    assert admin.broker.streams.get("main").size_bytes == before
    assert admin.hub.topics.find(PLUS) is not None
    # The name that says what it shows was given by nobody.
    assert await admin.delete(PLUS) == [E.unknown_topic_or_partition]


async def test_a_view_made_anew_is_another_topic(admin) -> None:
    first = await admin.create("v", onelog__filter="sensors/+/t")
    await admin.delete("v")
    admin.clock.advance(1)
    second = await admin.create("v", onelog__filter="sensors/#")
    assert first.topic_id != second.topic_id


async def test_views_and_topics_come_in_one_request(admin) -> None:
    answer = await admin.ask(
        K.CREATE_TOPICS,
        topics=[new_topic("v", configs={"onelog.filter": "a/#"}), new_topic("t", 2)],
        timeout=1000,
        validate_only=False,
    )
    assert [row.error_code for row in answer.topics] == [E.none, E.none]
    assert sorted(names(admin)) == ["t", "v"]
