"""Topics as an administrator makes, grows and deletes them: on a real broker, without a socket."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from onelog.base.errors import StreamNotFound
from onelog.base.ids import Offset
from onelog.base.limits import PARTITIONS_PER_STREAM_MAX
from onelog.broker import LOCAL, Action, Cleanup, Durability, Message, Timestamps
from onelog.config import Config
from onelog.config.kafka import Kafka, KafkaTopics
from onelog.log.stream import StreamRecord
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.queues.addresses import STREAM_PREFIX
from tests.support.kafka_admin import Denies, Desk, desk, new_topic

E = ErrorCode
K = ApiKey


def versions(key: ApiKey) -> range:
    return range(APIS[key].first, APIS[key].last + 1)


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as made:
        yield made


async def say(admin: Desk, topic: str, *values: bytes) -> None:
    stream = admin.broker.streams.home(topic)
    for value in values:
        message = Message(topic, value)
        await admin.broker.publish(
            message, partition=0 if len(stream.partitions) > 1 else None, principal=LOCAL
        )


# -- CreateTopics


@pytest.mark.parametrize("version", versions(K.CREATE_TOPICS))
async def test_a_topic_is_a_stream_with_its_partitions_and_settings(admin, version) -> None:
    made = await admin.create(
        "orders.eu",
        3,
        1,
        version=version,
        cleanup__policy="compact",
        message__timestamp__type="LogAppendTime",
        onelog__durability="memory",
    )
    assert made.error_code is E.none
    assert made.name == "orders.eu"
    stream = admin.broker.streams.get("orders.eu")
    assert stream.config.captures == ("orders/eu",)
    assert len(stream.partitions) == 3
    assert stream.config.cleanup is Cleanup.COMPACT
    assert stream.config.durability is Durability.MEMORY
    assert stream.partitions[2].stamps
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        told = {row.name: (row.value, row.config_source) for row in made.configs}
        assert told["cleanup.policy"] == ("compact", 1)
        assert told["retention.ms"] == ("604800000", 5)
    if version >= 7:
        assert made.topic_id == admin.hub.topics.get("orders.eu").id


async def test_minus_one_takes_the_broker_s_defaults(tmp_path) -> None:
    config = Config(kafka=Kafka(topics=KafkaTopics(partitions=6)), data_dir=str(tmp_path))
    async with desk(tmp_path, config) as admin:
        made = await admin.create("t")
        assert (made.num_partitions, made.replication_factor) == (6, 1)
        assert admin.hub.topics.get("t").partition_count == 6


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (0, 1, E.invalid_partitions),
        (-2, 1, E.invalid_partitions),
        (PARTITIONS_PER_STREAM_MAX + 1, 1, E.invalid_partitions),
        (1, 2, E.invalid_replication_factor),
        (1, 0, E.invalid_replication_factor),
        (1, -2, E.invalid_replication_factor),
    ],
)
async def test_impossible_numbers_are_refused(admin, partitions, replicas, code) -> None:
    refused = await admin.create("t", partitions, replicas)
    assert refused.error_code is code
    assert refused.error_message
    assert admin.broker.streams.find("t") is None


async def test_replicas_can_be_assigned_to_this_node_only(admin) -> None:
    made = await admin.create("good", assignments=[(1, [0]), (0, [0])])
    assert (made.error_code, made.num_partitions) == (E.none, 2)
    for assignments, code in (
        ([(0, [0, 1])], E.invalid_replica_assignment),
        ([(0, [9])], E.invalid_replica_assignment),
        ([(0, [])], E.invalid_replica_assignment),
        ([(1, [0])], E.invalid_replica_assignment),
        ([(0, [0]), (0, [0])], E.invalid_replica_assignment),
    ):
        assert (await admin.create("bad", assignments=assignments)).error_code is code
    refused = await admin.create("bad", 1, 1, assignments=[(0, [0])])
    assert refused.error_code is E.invalid_request


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", E.invalid_topic_exception),
        (".", E.invalid_topic_exception),
        ("a b", E.invalid_topic_exception),
        ("t" * 250, E.invalid_topic_exception),
        ("a/b", E.invalid_topic_exception),
        ("a._x2F_", E.invalid_topic_exception),
    ],
)
async def test_a_name_that_is_none_is_refused(admin, name, code) -> None:
    assert (await admin.create(name)).error_code is code


async def test_a_name_that_stands_for_a_filter_is_not_made(admin) -> None:
    refused = await admin.create("sensors._x2B_.t")
    assert refused.error_code in (E.topic_already_exists, E.invalid_topic_exception)
    assert admin.broker.streams.find("sensors._x2B_.t") is None


@pytest.mark.parametrize(
    "configs", [{"nope": "1"}, {"retention__ms": "x"}, {"compression__type": "brotli"}]
)
async def test_a_setting_that_cannot_be_is_refused_and_nothing_is_made(admin, configs) -> None:
    refused = await admin.create("t", **configs)
    assert refused.error_code is E.invalid_config
    assert admin.broker.streams.find("t") is None


async def test_a_setting_without_a_value_is_refused(admin) -> None:
    assert (await admin.create("t", retention__ms=None)).error_code is E.invalid_config


async def test_what_exists_is_not_made_again(admin) -> None:
    assert (await admin.create("t")).error_code is E.none
    assert (await admin.create("t")).error_code is E.topic_already_exists
    assert (await admin.create("t", validate_only=True)).error_code is E.topic_already_exists


async def test_a_name_that_comes_twice_in_a_request_is_refused_alone(admin) -> None:
    answer = await admin.ask(
        K.CREATE_TOPICS,
        topics=[new_topic("a"), new_topic("b"), new_topic("a")],
        timeout=1000,
        validate_only=False,
    )
    told = {row.name: row.error_code for row in answer.topics}
    assert told == {"a": E.invalid_request, "b": E.none}
    assert len(answer.topics) == 2
    assert admin.broker.streams.find("a") is None


async def test_validation_makes_nothing(admin) -> None:
    made = await admin.create("t", 2, 1, validate_only=True, retention__ms="5")
    assert (made.error_code, made.num_partitions, made.topic_id) == (E.none, 2, None)
    assert admin.broker.streams.find("t") is None
    assert (await admin.create("t", validate_only=True, nope="1")).error_code is E.invalid_config


async def test_who_may_not_create_a_topic_does_not_make_it(tmp_path) -> None:
    async with desk(tmp_path, authorizer=Denies(Action.CREATE, "a/b")) as admin:
        refused = await admin.create("a.b")
        assert refused.error_code is E.topic_authorization_failed
        assert (await admin.create("a.c")).error_code is E.none


async def test_a_node_has_a_limit_of_partitions(tmp_path) -> None:
    held = 4 + 1 + 1 + 1  # main, and the broker's own
    config = Config(kafka=Kafka(topics=KafkaTopics(partitions_total=held + 5)))
    async with desk(tmp_path, config) as admin:
        assert sum(len(row.partitions) for row in admin.broker.streams.streams()) <= held
        assert (await admin.create("a", 3)).error_code is E.none
        refused = await admin.create("b", 6)
        assert refused.error_code is E.policy_violation
        assert "kafka.topics.partitions_total" in refused.error_message
        grown = await admin.ask(
            K.CREATE_PARTITIONS,
            topics=[{"name": "a", "count": 12, "assignments": None}],
            timeout=1000,
            validate_only=False,
        )
        assert grown.results[0].error_code is E.policy_violation
        await admin.create("c", 1)
        row = {"topic_id": None, "name": "by-use"}
        answer = await admin.ask(
            K.METADATA,
            topics=[row],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
        assert answer.topics[0].error_code is E.policy_violation


async def test_a_topic_may_have_the_name_of_a_stream_of_other_topics(admin) -> None:
    """The built-in stream `main` does not take the name from Kafka."""
    assert (await admin.create("main", 2)).error_code is E.none
    topic = admin.hub.topics.get("main")
    assert topic.partition_count == 2
    assert topic.stream is not None
    assert topic.stream.name == "main-2"
    assert (await admin.create("main", 2)).error_code is E.topic_already_exists
    assert await admin.delete("main") == [E.none]
    assert admin.broker.streams.get("main").config.captures == ("#",)


@pytest.mark.parametrize("name", ["amqp.x.logs", "amqp.queues", "amqp." + "x" * 244])
async def test_a_topic_does_not_take_the_name_of_a_stream_of_amqp(admin, name) -> None:
    """What is published to the exchange `logs` would go where no queue looks."""
    admin.broker.streams.checks.reserved = (STREAM_PREFIX,)
    assert (await admin.create(name, 2)).error_code is E.none
    topic = admin.hub.topics.get(name)
    assert topic.stream is not None
    assert topic.stream.name == f"kafka.{name}"[:249]
    assert (await admin.create(name, 2)).error_code is E.topic_already_exists
    assert admin.broker.streams.find(name) is None
    assert await admin.delete(name) == [E.none]


# -- CreatePartitions


async def grow(admin: Desk, name: str, count: int, *, version: int = 3, **rest) -> ErrorCode:
    row = {"name": name, "count": count, "assignments": None} | rest
    validate_only = row.pop("validate_only", False)
    answer = await admin.ask(
        K.CREATE_PARTITIONS, version, topics=[row], timeout=1000, validate_only=validate_only
    )
    assert answer.results[0].name == name
    return answer.results[0].error_code


@pytest.mark.parametrize("version", versions(K.CREATE_PARTITIONS))
async def test_a_topic_gets_more_partitions_and_keeps_its_records(admin, version) -> None:
    await admin.create("t", 2, retention__bytes="1000")
    await say(admin, "t", b"1")
    before = admin.hub.topics.get("t").id
    assert await grow(admin, "t", 5, version=version) is E.none
    topic = admin.hub.topics.get("t")
    assert (topic.partition_count, topic.id) == (5, before)
    assert topic.partition(0).ends().high_watermark == 1
    assert topic.partition(4).ends().high_watermark == 0
    assert (await admin.settings("t"))["retention.bytes"].value == "1000"


async def test_partitions_that_cannot_be_added_are_refused(admin) -> None:
    await admin.create("t", 2)
    assert await grow(admin, "t", 2) is E.invalid_partitions
    assert await grow(admin, "t", 1) is E.invalid_partitions
    assert await grow(admin, "t", -1) is E.invalid_partitions
    assert await grow(admin, "t", PARTITIONS_PER_STREAM_MAX + 1) is E.invalid_partitions
    assert await grow(admin, "nobody", 3) is E.unknown_topic_or_partition
    one, two = {"broker_ids": [0]}, {"broker_ids": [1]}
    assert await grow(admin, "t", 4, assignments=[one]) is E.invalid_replica_assignment
    assert await grow(admin, "t", 3, assignments=[two]) is E.invalid_replica_assignment
    assert await grow(admin, "t", 3, assignments=[one], validate_only=True) is E.none
    assert admin.hub.topics.get("t").partition_count == 2
    assert await grow(admin, "t", 3, assignments=[one]) is E.none


async def test_each_topic_of_a_request_is_named_in_the_answer_once(admin) -> None:
    await admin.create("a", 1)
    await admin.create("b", 1)
    rows = [{"name": name, "count": 2, "assignments": None} for name in ("a", "b", "a", "x")]
    answer = await admin.ask(K.CREATE_PARTITIONS, topics=rows, timeout=1, validate_only=False)
    assert {row.name: row.error_code for row in answer.results} == {
        "a": E.invalid_request,
        "b": E.none,
        "x": E.unknown_topic_or_partition,
    }


# -- DeleteTopics


@pytest.mark.parametrize("version", versions(K.DELETE_TOPICS))
async def test_a_deleted_topic_is_gone_and_may_be_made_anew(admin, version) -> None:
    await admin.create("t", 2)
    await say(admin, "t", b"1")
    old = admin.hub.topics.get("t")
    body = (
        {"topic_names": ["t", "x"]}
        if version < 6
        else {"topics": [{"name": name, "topic_id": None} for name in ("t", "x")]}
    )
    answer = await admin.ask(K.DELETE_TOPICS, version, timeout=1000, **body)
    codes = {row.name: row.error_code for row in answer.responses}
    assert codes == {"t": E.none, "x": E.unknown_topic_or_partition}
    assert admin.hub.topics.find("t") is None
    assert admin.hub.topics.by_id(old.id) is None
    await admin.create("t", 1)
    new = admin.hub.topics.get("t")
    assert new.id != old.id
    assert new.partition(0).ends().high_watermark == 0


async def test_a_topic_is_deleted_by_its_id(admin) -> None:
    made = await admin.create("t", 1)
    answer = await admin.ask(
        K.DELETE_TOPICS,
        6,
        topics=[
            {"name": None, "topic_id": made.topic_id},
            {"name": None, "topic_id": uuid.UUID(int=7)},
            {"name": "t", "topic_id": made.topic_id},
            {"name": None, "topic_id": None},
        ],
        timeout=1000,
    )
    assert [(row.name, row.error_code) for row in answer.responses] == [
        ("t", E.none),
        (None, E.unknown_topic_id),
        ("t", E.invalid_request),
        (None, E.invalid_request),
    ]
    assert admin.hub.topics.find("t") is None


async def test_a_topic_that_is_named_twice_is_not_deleted(admin) -> None:
    await admin.create("t", 1)
    assert await admin.delete("t", "t") == [E.invalid_request]
    assert admin.hub.topics.find("t") is not None


@pytest.mark.warm
async def test_who_waits_for_a_partition_is_told_that_its_topic_is_gone(admin) -> None:
    """Fetches and produces in flight get UNKNOWN_TOPIC_OR_PARTITION, not a storage error."""
    await admin.create("t", 1)
    await say(admin, "t", b"1")
    log = admin.hub.topics.get("t").partition(0).log
    told = []
    log.when_visible(Offset(5), told.append)
    log.when_stable(Offset(5), told.append)
    assert await admin.delete("t") == [E.none]
    assert [code_of(error) for error in told] == [E.unknown_topic_or_partition] * 2
    for offset in (0, 1):
        with pytest.raises(StreamNotFound) as caught:
            log.read(Offset(offset), 1000)
        assert code_of(caught.value) is E.unknown_topic_or_partition


# -- DeleteRecords


async def trim(admin: Desk, name: str, offset: int, partition: int = 0, version: int = 2):
    row = {"partition_index": partition, "offset": offset}
    answer = await admin.ask(
        K.DELETE_RECORDS, version, topics=[{"name": name, "partitions": [row]}], timeout=1000
    )
    (found,) = answer.topics[0].partitions
    return found.error_code, found.low_watermark


@pytest.mark.parametrize("version", versions(K.DELETE_RECORDS))
async def test_records_below_an_offset_are_deleted_and_the_new_start_is_told(
    admin, version
) -> None:
    await admin.create("t", 1)
    await say(admin, "t", *[b"%d" % number for number in range(5)])
    assert await trim(admin, "t", 2, version=version) == (E.none, 2)
    log = admin.hub.topics.get("t").partition(0).log
    assert (log.start_offset, log.high_watermark) == (2, 5)
    assert await trim(admin, "t", 1, version=version) == (E.none, 2)
    assert await trim(admin, "t", -1, version=version) == (E.none, 5)
    assert await trim(admin, "t", 0, version=version) == (E.none, 5)


async def test_records_that_cannot_be_deleted(admin) -> None:
    await admin.create("t", 1)
    await admin.create("kept", 1, cleanup__policy="compact")
    await admin.create("both", 1, cleanup__policy="compact,delete")
    assert await trim(admin, "t", 1) == (E.offset_out_of_range, -1)
    assert await trim(admin, "t", -2) == (E.offset_out_of_range, -1)
    assert await trim(admin, "t", 0, 7) == (E.unknown_topic_or_partition, -1)
    assert await trim(admin, "nobody", 0) == (E.unknown_topic_or_partition, -1)
    assert await trim(admin, "kept", -1) == (E.policy_violation, -1)
    assert await trim(admin, "both", -1) == (E.none, 0)


# -- DescribeLogDirs


@pytest.mark.parametrize("version", versions(K.DESCRIBE_LOG_DIRS))
async def test_the_log_dir_says_what_each_partition_holds(admin, tmp_path, version) -> None:
    await admin.create("t", 2)
    await admin.create("u", 1)
    await say(admin, "t", b"x" * 1000)
    answer = await admin.ask(
        K.DESCRIBE_LOG_DIRS, version, topics=[{"topic": "t", "partitions": [0, 1, 9]}]
    )
    (row,) = answer.results
    assert row.error_code is E.none
    assert row.log_dir == str(tmp_path)
    (topic,) = row.topics
    sizes = {part.partition_index: part.partition_size for part in topic.partitions}
    assert set(sizes) == {0, 1}
    assert sizes[0] > 1000
    assert sizes[1] == 0
    if version >= 4:
        assert row.total_bytes > row.usable_bytes > 0
    everything = await admin.ask(K.DESCRIBE_LOG_DIRS, version, topics=None)
    assert [topic.name for topic in everything.results[0].topics] == ["t", "u"]


async def test_a_log_dir_that_is_gone_is_told(tmp_path) -> None:
    config = Config(data_dir=str(tmp_path / "gone"))
    async with desk(tmp_path / "data", config) as admin:
        answer = await admin.ask(K.DESCRIBE_LOG_DIRS, topics=None)
        assert answer.results[0].error_code is E.kafka_storage_error


def test_settings_of_a_stream_from_before_there_were_some_can_be_read() -> None:
    """A data directory of an older version opens: what it does not name has its default."""
    old = b'{"id": "t-1", "config": {"name": "t"}, "created_ms": 1}'
    record = msgspec.json.decode(old, type=StreamRecord)
    assert record.config.timestamps is Timestamps.CREATE
    assert record.config.chosen == ()
