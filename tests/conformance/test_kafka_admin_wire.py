"""Admin requests byte by byte: the error codes of Apache Kafka, for each of many requests."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onelog.kernel import scan_batches
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.record.batch import build_batch, set_latest_time, stamp_batch
from tests.conformance.kafka_brokers import unique
from tests.support.kafka_admin import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    new_topic,
)
from tests.support.kafka_wire import Wire

K = ApiKey
E = ErrorCode
DEADLINE_S = 10
LATEST_TIME = -3
"""What ListOffsets is asked for the record with the latest time."""


class Admin:
    """An administrator on a socket."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.node = wire.ask(K.METADATA, 4, topics=[]).controller_id

    def create(self, *topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
        answer = self.wire.ask(
            K.CREATE_TOPICS, 7, topics=topics, timeout=5000, validate_only=validate_only
        )
        return {row.name: row for row in answer.topics}

    def make(self, partitions: int = 1, **configs: str) -> str:
        """A topic that everybody knows."""
        name = unique("admin")
        rows = {key.replace("__", "."): value for key, value in configs.items()}
        assert self.create(new_topic(name, partitions, 1, configs=rows))[name].error_code is E.none
        self.until(lambda: self._count(name) == partitions)
        return name

    def _count(self, name: str) -> int:
        rows = self.wire.ask(
            K.METADATA, 4, topics=[{"name": name}], allow_auto_topic_creation=False
        ).topics
        return len(rows[0].partitions)

    @staticmethod
    def until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.02)  # Apache Kafka answers before its brokers know

    def grow(self, *rows: tuple[str, int, Any], validate_only: bool = False) -> dict[str, E]:
        topics = [{"name": n, "count": c, "assignments": a} for n, c, a in rows]
        answer = self.wire.ask(
            K.CREATE_PARTITIONS, 3, topics=topics, timeout=5000, validate_only=validate_only
        )
        return {row.name: row.error_code for row in answer.results}

    def trim(self, name: str, offset: int, partition: int = 0) -> tuple[E, int]:
        rows = [{"partition_index": partition, "offset": offset}]
        answer = self.wire.ask(
            K.DELETE_RECORDS, 2, topics=[{"name": name, "partitions": rows}], timeout=5000
        )
        row = answer.topics[0].partitions[0]
        return row.error_code, row.low_watermark

    def describe(self, kind: int, name: str, keys: Any = None) -> Any:
        row = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        return self.wire.ask(
            K.DESCRIBE_CONFIGS,
            4,
            resources=[row],
            include_synonyms=True,
            include_documentation=True,
        ).results[0]

    def change(self, kind: int, name: str, *changes: Any, times: int = 1) -> list[E]:
        rows = [{"name": n, "config_operation": o, "value": v} for n, o, v in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        answer = self.wire.ask(
            K.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource] * times, validate_only=False
        )
        return [row.error_code for row in answer.responses]

    def replace(self, name: str, **configs: str | None) -> E:
        rows = [{"name": n.replace("__", "."), "value": v} for n, v in configs.items()]
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": rows}
        answer = self.wire.ask(K.ALTER_CONFIGS, 2, resources=[resource], validate_only=False)
        code: E = answer.responses[0].error_code
        return code

    def send(self, name: str, batch: bytearray) -> Any:
        """Send a batch to a topic's first partition: the row of the answer."""
        part = {"index": 0, "records": bytes(batch)}
        answer = self.wire.ask(
            K.PRODUCE,
            9,
            transactional_id=None,
            acks=-1,
            timeout=5000,
            topic_data=[{"name": name, "partition_data": [part]}],
        )
        return answer.responses[0].partition_responses[0]

    def latest_time(self, name: str) -> tuple[int, int]:
        """Offset and time of the record that has the latest one."""
        asked = {"partition_index": 0, "timestamp": LATEST_TIME, "current_leader_epoch": -1}
        answer = self.wire.ask(
            K.LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": name, "partitions": [asked]}],
        )
        row = answer.topics[0].partitions[0]
        return row.offset, row.timestamp

    def stored(self, name: str) -> bytes:
        """What a consumer of a topic's first partition is sent."""
        row = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        answer = self.wire.ask(
            K.FETCH,
            11,
            replica_id=-1,
            max_wait=1000,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": name, "partitions": [row]}],
            forgotten_topics_data=[],
            rack_id="",
        )
        found: bytes = answer.responses[0].partitions[0].records
        return found

    def delete(self, *rows: tuple[str | None, uuid.UUID | None]) -> list[E]:
        topics = [{"name": name, "topic_id": wanted} for name, wanted in rows]
        answer = self.wire.ask(K.DELETE_TOPICS, 6, topics=topics, timeout=5000)
        return [row.error_code for row in answer.responses]


@pytest.fixture
def admin(kafka_node) -> Iterator[Admin]:
    with Wire(kafka_node.port) as wire:
        yield Admin(wire)


THIS = "this node"

REFUSED_TOPICS = {
    "no partitions": ((0, 1), E.invalid_partitions),
    "fewer": ((-2, 1), E.invalid_partitions),
    "no replica": ((1, 0), E.invalid_replication_factor),
    "two replicas": ((1, 2), E.invalid_replication_factor),
    "strange replicas": ((1, -2), E.invalid_replication_factor),
    "assigned and counted": ((1, 1, [(0, [THIS])]), E.invalid_request),
    "assigned from 1": ((-1, -1, [(1, [THIS])]), E.invalid_replica_assignment),
    "assigned twice": ((-1, -1, [(0, [THIS]), (0, [THIS])]), E.invalid_replica_assignment),
    "assigned elsewhere": ((-1, -1, [(0, [77])]), E.invalid_replica_assignment),
    "assigned nowhere": ((-1, -1, [(0, [])]), E.invalid_replica_assignment),
    "assigned twice here": ((-1, -1, [(0, [THIS, THIS])]), E.invalid_replica_assignment),
    "unknown setting": ((1, 1, (), {"nope": "1"}), E.invalid_config),
    "no number": ((1, 1, (), {"retention.ms": "x"}), E.invalid_config),
    "null": ((1, 1, (), {"retention.ms": None}), E.invalid_config),
    "below the bound": ((1, 1, (), {"retention.ms": "-2"}), E.invalid_config),
    "no such policy": ((1, 1, (), {"cleanup.policy": "shred"}), E.invalid_config),
}


@pytest.mark.parametrize("case", REFUSED_TOPICS)
def test_a_topic_is_refused_with_the_code_of_kafka(admin, case) -> None:
    rest, code = REFUSED_TOPICS[case]
    name = unique("refused")
    partitions, replicas, *more = rest
    assigned = [
        (number, [admin.node if node == THIS else node for node in nodes])
        for number, nodes in (more[0] if more else ())
    ]
    configs = more[1] if len(more) > 1 else None
    row = admin.create(new_topic(name, partitions, replicas, assigned, configs))[name]
    assert row.error_code is code
    assert row.error_message
    assert (row.num_partitions, row.replication_factor) == (-1, -1)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "t" * 250])
def test_a_name_that_is_none_is_refused(admin, name) -> None:
    assert admin.create(new_topic(name, 1, 1))[name].error_code is E.invalid_topic_exception


def test_a_topic_is_made_once(admin) -> None:
    name = admin.make(3)
    for validate_only in (False, True):
        told = admin.create(new_topic(name, 3, 1), validate_only=validate_only)
        assert told[name].error_code is E.topic_already_exists
    first, second = unique("dup"), unique("dup")
    told = admin.create(new_topic(first), new_topic(second), new_topic(first))
    assert {row.error_code for row in told.values()} == {E.invalid_request, E.none}
    assert told[first].error_code is E.invalid_request
    other = unique("valid")
    told = admin.create(new_topic(other, 2, 1), validate_only=True)
    assert (told[other].error_code, told[other].num_partitions) == (E.none, 2)
    assert admin.delete((other, None)) == [E.unknown_topic_or_partition]


def test_partitions_are_added(admin) -> None:
    name, other, node = admin.make(2), admin.make(1), admin.node
    here, there = [{"broker_ids": [node]}], [{"broker_ids": [77]}]
    assert admin.grow((name, 4, None)) == {name: E.none}
    for count in (4, 2, 0, -1):
        assert admin.grow((name, count, None)) == {name: E.invalid_partitions}
    assert admin.grow((name, 6, here)) == {name: E.invalid_replica_assignment}
    assert admin.grow((name, 5, there)) == {name: E.invalid_replica_assignment}
    assert admin.grow((name, 9, None), validate_only=True) == {name: E.none}
    assert admin.grow((name, 5, here)) == {name: E.none}
    assert admin.grow(("nobody", 3, None)) == {"nobody": E.unknown_topic_or_partition}
    assert admin.grow((name, 8, None), (other, 2, None), (name, 8, None)) == {
        name: E.invalid_request,
        other: E.none,
    }


def test_records_are_deleted_up_to_an_offset(admin) -> None:
    name, kept = admin.make(), admin.make(cleanup__policy="compact")
    assert admin.trim(name, -1) == (E.none, 0)
    assert admin.trim(name, 0) == (E.none, 0)
    assert admin.trim(name, 5) == (E.offset_out_of_range, -1)
    assert admin.trim(name, -2) == (E.offset_out_of_range, -1)
    assert admin.trim(name, 0, 99) == (E.unknown_topic_or_partition, -1)
    assert admin.trim("nobody", 0) == (E.unknown_topic_or_partition, -1)
    assert admin.trim(kept, -1) == (E.policy_violation, -1)


def test_settings_are_shown_with_type_and_origin(admin) -> None:
    name = admin.make(retention__ms="5000")
    row = admin.describe(TOPIC, name)
    told = {config.name: config for config in row.configs}
    assert told["retention.ms"].value == "5000"
    assert told["retention.ms"].config_source == 1
    first = told["retention.ms"].synonyms[0]
    assert (first.name, first.value, first.source) == ("retention.ms", "5000", 1)
    assert told["delete.retention.ms"].config_source == 5
    types = {"cleanup.policy": 7, "retention.ms": 5, "preallocate": 1, "max.message.bytes": 3}
    assert {key: told[key].config_type for key in types} == types
    assert all(config.documentation for config in row.configs)
    assert len(admin.describe(TOPIC, name, ["retention.ms", "nope"]).configs) == 1
    assert len(admin.describe(TOPIC, name, []).configs) == len(told)
    # Every topic setting of Kafka is one here.
    assert len([key for key in told if not key.startswith("onelog.")]) == 33
    assert admin.describe(TOPIC, "nobody").error_code is E.unknown_topic_or_partition
    assert admin.describe(TOPIC, "a b").error_code is E.invalid_topic_exception
    assert admin.describe(BROKER, "77").error_code is E.invalid_request
    assert admin.describe(BROKER, "x").error_code is E.invalid_request
    assert admin.describe(99, name).error_code is E.invalid_request
    node = admin.describe(BROKER, str(admin.node))
    assert node.error_code is E.none
    assert {"node.id", "log.dirs", "num.partitions"} <= {config.name for config in node.configs}


def test_settings_change_one_by_one(admin) -> None:
    name = admin.make()
    for change, code in (
        (("segment.ms", SET, "60000"), E.none),
        (("segment.ms", DELETE, None), E.none),
        (("cleanup.policy", APPEND, "compact"), E.none),
        (("cleanup.policy", SUBTRACT, "compact"), E.none),
        (("segment.ms", APPEND, "5"), E.invalid_config),
        (("segment.ms", SET, None), E.invalid_request),
        (("segment.ms", SET, "x"), E.invalid_config),
        (("nope", SET, "5"), E.invalid_config),
        (("nope", DELETE, None), E.none),
    ):
        assert admin.change(TOPIC, name, change) == [code], change
    good = ("segment.ms", SET, "60000")
    assert admin.change(TOPIC, name, good, ("segment.ms", DELETE, None)) == [E.invalid_request]
    assert admin.change(TOPIC, name, good, times=2) == [E.invalid_request] * 2
    assert admin.change(TOPIC, "nobody", good) == [E.unknown_topic_or_partition]
    assert admin.change(TOPIC, "a b", good) == [E.invalid_topic_exception]
    assert admin.change(BROKER, str(admin.node), ("node.id", SET, "5")) == [E.invalid_request]
    assert admin.change(BROKER, "77", ("log.retention.ms", SET, "5")) == [E.invalid_request]
    assert admin.change(99, name, good) == [E.invalid_request]


def test_settings_change_all_at_once(admin) -> None:
    name = admin.make(retention__ms="5000")
    assert admin.replace(name, segment__ms="60000") is E.none
    told = {config.name: config for config in admin.describe(TOPIC, name).configs}
    assert (told["segment.ms"].value, told["segment.ms"].config_source) == ("60000", 1)
    assert told["retention.ms"].config_source == 5
    assert admin.replace(name, segment__ms=None) is E.invalid_request
    assert admin.replace(name, nope="1") is E.invalid_config
    assert admin.replace("nobody", segment__ms="60000") is E.unknown_topic_or_partition


def test_topics_are_deleted_by_name_or_id(admin) -> None:
    first, second = admin.make(), unique("id")
    made = admin.create(new_topic(second, 1, 1))[second]
    assert made.topic_id is not None
    assert admin.delete(("nobody", None)) == [E.unknown_topic_or_partition]
    assert admin.delete((None, uuid.UUID(int=7))) == [E.unknown_topic_id]
    assert admin.delete((second, made.topic_id)) == [E.invalid_request]
    assert admin.delete((None, None)) == [E.invalid_request]
    assert admin.delete((first, None), (first, None)) == [E.invalid_request]
    assert admin.delete((first, None), (None, made.topic_id)) == [E.none, E.none]
    assert admin.delete((first, None)) == [E.unknown_topic_or_partition]


def test_log_dirs_name_what_is_there(admin) -> None:
    name = admin.make(2)
    asked = [{"topic": name, "partitions": [0, 9]}, {"topic": "nobody", "partitions": [0]}]
    found: list[Any] = []

    def told() -> bool:
        found[:] = admin.wire.ask(K.DESCRIBE_LOG_DIRS, 4, topics=asked).results
        return bool(found[0].topics)

    admin.until(told)
    (row,) = found
    assert row.error_code is E.none
    assert row.total_bytes > row.usable_bytes > 0
    rows = [(topic.name, [p.partition_index for p in topic.partitions]) for topic in row.topics]
    assert rows == [(name, [0])]


def test_the_time_of_the_append_is_the_broker_s_to_write(admin) -> None:
    name = admin.make(message__timestamp__type="LogAppendTime")
    begun_ms = int(time.time() * 1000) - 1
    batch = bytearray(build_batch([(None, b"k", b"v", (), 1_700_000_000_000)]))
    good = admin.send(name, batch)
    assert good.error_code is E.none
    assert good.log_append_time.timestamp() * 1000 >= begun_ms
    stamp_batch(batch, scan_batches(batch)[0], 1_700_000_000_000)
    assert admin.send(name, batch).error_code is E.invalid_timestamp


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("codec", [0, 1])
def test_the_latest_time_of_a_batch_is_that_of_its_records(admin, codec, size) -> None:
    """KafkaJS tells the time of the last record; by it retention would take new records for old.

    A large compressed batch is looked into by a thread, a small one is not.
    """
    name = admin.make(retention__ms="-1")
    rows = [(None, b"k", random.randbytes(size), (), at_ms) for at_ms in (5000, 9000, 1000)]
    batch = bytearray(build_batch(rows, codec=codec))
    set_latest_time(batch, scan_batches(batch)[0], 1000)
    assert admin.send(name, batch).error_code is E.none
    assert admin.latest_time(name) == (1, 9000)
    (stored,) = scan_batches(admin.stored(name))  # its CRC is right
    assert stored.max_timestamp_ms == 9000


@pytest.mark.parametrize("version", [12, 17])
def test_a_fetch_that_waits_ends_when_its_topic_is_deleted(kafka_onelog, version) -> None:
    """Apache Kafka may say NOT_LEADER_OR_FOLLOWER, too: the client then asks again in vain."""
    with Wire(kafka_onelog.port) as wire:
        _wait_and_delete(kafka_onelog.port, Admin(wire), version)


def _wait_and_delete(port: int, admin: Admin, version: int) -> None:
    name = unique("gone")
    made = admin.create(new_topic(name, 1, 1))[name]
    row = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1000,
    }
    request = {
        "replica_id": -1,
        "max_wait": 60_000,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": name, "topic_id": made.topic_id, "partitions": [row]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    with Wire(port, timeout_s=DEADLINE_S) as reader:
        reader.send(K.FETCH, version, **request)
        time.sleep(0.3)  # it waits at the broker now
        assert admin.delete((name, None)) == [E.none]
        answer = reader.answer(K.FETCH, version)
    assert answer.responses[0].partitions[0].error_code is E.unknown_topic_or_partition
