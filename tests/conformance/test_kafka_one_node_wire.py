"""Settings and one-node answers byte by byte, beside Apache Kafka: what it takes is taken here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema

from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.record.batch import build_batch
from tests.conformance.kafka_brokers import unique
from tests.conformance.test_kafka_admin_wire import Admin
from tests.support.kafka_admin import TOPIC, new_topic
from tests.support.kafka_entities import written
from tests.support.kafka_wire import Wire

K = ApiKey
E = ErrorCode

TAKEN = [
    ("cleanup.policy", "compact,delete"),
    ("compression.type", "zstd"),
    ("compression.type", "uncompressed"),
    ("compression.gzip.level", "9"),
    ("compression.lz4.level", "17"),
    ("compression.zstd.level", "-131072"),
    ("delete.retention.ms", "0"),
    ("file.delete.delay.ms", "0"),
    ("flush.messages", "10000"),
    ("flush.ms", "0"),
    ("follower.replication.throttled.replicas", "*"),
    ("leader.replication.throttled.replicas", "0:1,1:1"),
    ("index.interval.bytes", "0"),
    ("local.retention.bytes", "-2"),
    ("local.retention.ms", "-2"),
    ("max.compaction.lag.ms", "1"),
    ("max.message.bytes", "2147483647"),
    ("message.timestamp.after.max.ms", "0"),
    ("message.timestamp.before.max.ms", "0"),
    ("message.timestamp.type", "LogAppendTime"),
    ("min.cleanable.dirty.ratio", "0.0"),
    ("min.compaction.lag.ms", "86400000"),
    ("min.insync.replicas", "2"),
    ("preallocate", "true"),
    ("remote.log.copy.disable", "true"),
    ("remote.log.delete.on.disable", "true"),
    ("remote.storage.enable", "false"),
    ("retention.bytes", "5"),
    ("retention.ms", "-1"),
    ("segment.bytes", "1048576"),
    ("segment.index.bytes", "4"),
    ("segment.jitter.ms", "0"),
    ("segment.ms", "1"),
    ("unclean.leader.election.enable", "true"),
]
REFUSED = [
    ("compression.type", "brotli"),
    ("compression.gzip.level", "0"),
    ("compression.lz4.level", "18"),
    ("compression.zstd.level", "23"),
    ("file.delete.delay.ms", "-1"),
    ("flush.messages", "0"),
    ("flush.ms", "-1"),
    ("leader.replication.throttled.replicas", "0-1"),
    ("index.interval.bytes", "-1"),
    ("local.retention.ms", "-3"),
    ("max.compaction.lag.ms", "0"),
    ("message.timestamp.after.max.ms", "-1"),
    ("min.compaction.lag.ms", "-1"),
    ("min.insync.replicas", "0"),
    ("preallocate", "maybe"),
    ("remote.storage.enable", "true"),
    ("segment.index.bytes", "3"),
    ("segment.jitter.ms", "-1"),
    ("segment.ms", "0"),
]

DAY_MS = 86_400_000
PROGRAMS: dict[str, dict[str, str | None]] = {
    "Streams, a store": {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"},
    "Streams, a versioned store": {
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
        "min.compaction.lag.ms": str(DAY_MS + 3_600_000),
    },
    "Streams, a windowed store": {
        "cleanup.policy": "compact,delete",
        "message.timestamp.type": "CreateTime",
        "retention.ms": str(DAY_MS + 3_600_000),
    },
    "Streams, between two parts": {
        "cleanup.policy": "delete",
        "message.timestamp.type": "CreateTime",
        "retention.ms": "-1",
        "segment.bytes": "52428800",
    },
    "Connect and MirrorMaker, their own": {
        "cleanup.policy": "compact",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
    },
    "MirrorMaker, a copy": {
        "cleanup.policy": "compact,delete",
        "compression.type": "producer",
        "delete.retention.ms": str(DAY_MS),
        "file.delete.delay.ms": "60000",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "index.interval.bytes": "4096",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "2",
        "preallocate": "false",
        "retention.bytes": "-1",
        "retention.ms": str(7 * DAY_MS),
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
        "segment.jitter.ms": "0",
        "segment.ms": str(7 * DAY_MS),
    },
}
"""What these programs send when they make a topic."""


@pytest.fixture(scope="module")
def admin(kafka_node) -> Iterator[Admin]:
    with Wire(kafka_node.port) as wire:
        yield Admin(wire)


TAGS = b"\x02" + b"\x63\x03abc" + b"\x64\0"
"""Two tagged fields that nobody knows."""


def tagged(key: ApiKey, version: int, body: dict[str, Any], tags: bytes) -> bytes:
    """A request with tags in its header and at its end."""
    data = written(load_request_schema(int(key), version), body)
    assert data.endswith(b"\0")
    return TAGS + data[:-1] + tags


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (K.METADATA, 12, {"topics": []}),
        (K.LIST_OFFSETS, 7, {"replica_id": -1}),
        (K.FETCH, 12, {"session_epoch": -1}),
        (K.PRODUCE, 9, {"transactional_id": None, "acks": -1}),
        (K.DESCRIBE_CONFIGS, 4, {}),
        (K.LIST_GROUPS, 4, {}),
    ],
)
def test_tagged_fields_that_nobody_knows_are_passed_over(kafka_node, key, version, body) -> None:
    """A client may be newer than the broker (KIP-482)."""
    with Wire(kafka_node.port) as wire:
        for _ in range(2):
            wire._send(key, version, tagged(key, version, body, TAGS))
            wire.answer(key, version)
        wire._send(key, version, tagged(key, version, body, b"\x01\x63\x7f"))
        with pytest.raises(ConnectionResetError):
            wire.answer(key, version)


@pytest.mark.parametrize(("kind", "since"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-9, 99)])
def test_a_kind_of_offset_is_listed_from_the_version_on_that_defines_it(admin, kind, since) -> None:
    """KIP-734, KIP-405, KIP-1005: an older version may have sent it by mistake."""
    name = admin.make()
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": kind}
    for version in range(1, APIS[K.LIST_OFFSETS].last + 1):
        told = admin.wire.ask(
            K.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, timeout_ms=30_000,
            topics=[{"name": name, "partitions": [row]}],
        )  # fmt: skip
        (found,) = told.topics[0].partitions
        assert found.error_code is (E.none if version >= since else E.unsupported_version), version


def test_every_setting_is_taken_and_shown_as_it_was_given(admin) -> None:
    topics = {unique("s"): row for row in TAKEN}
    made = admin.create(*(new_topic(name, 1, 1, (), dict([row])) for name, row in topics.items()))
    assert {row: made[name].error_code for name, row in topics.items()} == dict.fromkeys(
        TAKEN, E.none
    )
    for name, (key, text) in topics.items():
        admin.until(lambda name=name: admin.describe(TOPIC, name).error_code is E.none)
        (row,) = admin.describe(TOPIC, name, [key]).configs
        assert (key, row.value, row.config_source) == (key, text, 1)


@pytest.mark.parametrize("configs", PROGRAMS.values(), ids=PROGRAMS)
def test_topics_of_other_programs_are_made_as_they_ask(admin, configs) -> None:
    name = unique("s")
    told = admin.create(new_topic(name, 1, 1, (), configs))[name]
    assert (told.error_code, told.error_message) == (E.none, None)
    admin.until(lambda: admin.describe(TOPIC, name).error_code is E.none)
    rows = admin.describe(TOPIC, name, list(configs)).configs
    assert {row.name: row.value for row in rows} == configs


def test_every_value_that_makes_no_sense_is_refused(admin) -> None:
    topics = {unique("s"): row for row in REFUSED}
    made = admin.create(*(new_topic(name, 1, 1, (), dict([row])) for name, row in topics.items()))
    assert {row: made[name].error_code for name, row in topics.items()} == dict.fromkeys(
        REFUSED, E.invalid_config
    )


def test_lags_that_contradict_each_other_are_refused(admin) -> None:
    configs: dict[str, str | None] = {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}
    name = unique("s")
    assert admin.create(new_topic(name, 1, 1, (), configs))[name].error_code is E.invalid_config


def test_more_replicas_than_there_are_are_not_waited_for(admin) -> None:
    name = admin.make(min__insync__replicas="2")
    assert (
        admin.send(name, bytearray(build_batch([(None, b"k", b"v", (), 1)]))).error_code is E.none
    )


@pytest.mark.parametrize("codec", [0, 1])
def test_the_records_that_are_to_blame_are_named(admin, codec) -> None:
    name = admin.make(cleanup__policy="compact")
    rows = [(None, None if at in (3, 7) else b"k", b"v", (), 1) for at in range(10)]
    told = admin.send(name, bytearray(build_batch(rows, codec=codec)))
    assert told.error_code is E.invalid_record
    assert [row.batch_index for row in told.record_errors] == [3, 7]


def test_records_that_are_too_old_are_blamed(admin) -> None:
    name = admin.make(message__timestamp__before__max__ms="1000")
    told = admin.send(name, bytearray(build_batch([(None, b"k", b"v", (), 1)])))
    assert told.error_code is E.invalid_timestamp
    assert [row.batch_index for row in told.record_errors] == [0]


def test_what_a_client_may_do_to_the_cluster(admin) -> None:
    told = admin.wire.ask(K.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
    assert told.cluster_authorized_operations == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


def test_without_rules_there_are_no_access_lists(admin, request) -> None:
    """Apache Kafka has no authorizer here, and says so; our list is there, and empty."""
    told = admin.wire.ask(
        K.DESCRIBE_ACLS,
        3,
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    is_ours = request.node.callspec.params["kafka_node"] == "onelog"
    assert told.error_code is (E.none if is_ours else E.security_disabled)
    assert not told.resources


def test_leaders_and_replicas_are_where_they_can_be(admin) -> None:
    name = admin.make(2)
    asked = [{"topic": name, "partitions": [0, 5]}]
    told = admin.wire.ask(K.ELECT_LEADERS, 2, election_type=0, topic_partitions=asked, timeout=5000)
    found = {
        row.partition_id: row.error_code
        for result in told.replica_election_results
        for row in result.partition_result
    }
    assert found == {0: E.election_not_needed, 5: E.unknown_topic_or_partition}
    node = admin.node
    wanted = {0: ((node,), E.none), 1: ((node + 1,), E.invalid_replica_assignment)}
    rows = [{"partition_index": at, "replicas": nodes} for at, (nodes, _) in wanted.items()]
    told = admin.wire.ask(
        K.ALTER_PARTITION_REASSIGNMENTS,
        0,
        topics=[{"name": name, "partitions": rows}],
        timeout=5000,
    )
    assert {row.partition_index: row.error_code for row in told.responses[0].partitions} == {
        at: code for at, (_, code) in wanted.items()
    }
    cancel = [{"partition_index": 0, "replicas": None}]
    told = admin.wire.ask(
        K.ALTER_PARTITION_REASSIGNMENTS,
        0,
        topics=[{"name": name, "partitions": cancel}],
        timeout=5000,
    )
    assert told.responses[0].partitions[0].error_code is E.no_reassignment_in_progress
    told = admin.wire.ask(K.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=5000)
    assert (told.error_code, told.topics) == (E.none, ())


def test_the_quorum_is_one_node(admin) -> None:
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    told = admin.wire.ask(K.DESCRIBE_QUORUM, 2, topics=topics)
    part = told.topics[0].partitions[0]
    assert (told.error_code, part.error_code) == (E.none, E.none)
    assert [row.replica_id for row in part.current_voters] == [part.leader_id]


def test_partitions_are_told_some_at_a_time(admin) -> None:
    first, second = sorted((admin.make(3), admin.make(2)))
    found, cursor = [], None
    for _ in range(9):
        told = admin.wire.ask(
            K.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": second}, {"name": first}],
            response_partition_limit=2,
            cursor=cursor,
        )
        found += [
            (row.name, part.partition_index) for row in told.topics for part in row.partitions
        ]
        cursor = told.next_cursor
        if cursor is None:
            break
    assert len(found) == len(set(found)) == 5
    assert found == sorted(found)


def test_replicas_have_one_directory(admin) -> None:
    name = admin.make()
    row = {"path": "/no/such/directory", "topics": [{"name": name, "partitions": [0]}]}
    told = admin.wire.ask(K.ALTER_REPLICA_LOG_DIRS, 2, dirs=[row])
    assert told.results[0].partitions[0].error_code is E.log_dir_not_found
