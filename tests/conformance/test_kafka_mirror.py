"""MirrorMaker 2 itself copies a cluster into OneLog, and OneLog into a cluster.

Rules: where three nodes take part, records are written until each node has led each partition of
the topic and of its copy. MirrorMaker sends again what was not answered, so a copy may hold a
record twice, but none is missing, and the first of each stand in order.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from bench.kafka_jars import jars
from tests.conformance.kafka_brokers import KafkaServer, unique
from tests.conformance.kafka_cluster import KafkaCluster

DEADLINE_S = 90.0
MOVES_S = 180.0
"""How long each node may need to have led each partition."""
PAUSE_S = 0.3
PARTITIONS, RECORDS, READ = 3, 600, 100
SETTINGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": "2097152",
    "min.compaction.lag.ms": "60000",
    "segment.ms": "3600000",
}
HEAP = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Two brokers and Connect: not in every run.
PEER, NODES = pytest.mark.kafka_peer, pytest.mark.kafka_cluster
WAYS = [
    pytest.param("apache", "onelog", marks=PEER, id="into onelog"),
    pytest.param("onelog", "apache", marks=PEER, id="out of onelog"),
    pytest.param("onelog", "cluster", marks=NODES, id="into three nodes"),
    pytest.param("cluster", "onelog", marks=NODES, id="out of three nodes"),
    pytest.param("cluster", "cluster", marks=NODES, id="within three nodes"),
]
T = TypeVar("T")
Records = dict[int, list[tuple[bytes, bytes, object]]]
"""Per partition: key, value and headers of each."""


@contextlib.contextmanager
def mirror_maker(
    source: KafkaServer, target: KafkaServer, topic: str, folder: Path
) -> Iterator[None]:
    """`connect-mirror-maker.sh` with one flow, for the length of a block."""
    file, log = folder / "mm2.properties", folder / "mm2.log"
    file.write_text(
        "clusters=from,to\n"
        f"from.bootstrap.servers=127.0.0.1:{source.port}\n"
        f"to.bootstrap.servers=127.0.0.1:{target.port}\n"
        "from->to.enabled=true\n"
        "to->from.enabled=false\n"
        f"from->to.topics={topic}\n"
        "from->to.groups=reader.*\n"
        "replication.factor=-1\n"
        "checkpoints.topic.replication.factor=-1\n"
        "heartbeats.topic.replication.factor=-1\n"
        "offset-syncs.topic.replication.factor=-1\n"
        "offset.storage.replication.factor=-1\n"
        "status.storage.replication.factor=-1\n"
        "config.storage.replication.factor=-1\n"
        "sync.topic.acls.enabled=false\n"
        "sync.group.offsets.enabled=true\n"
        "sync.group.offsets.interval.seconds=1\n"
        "emit.checkpoints.interval.seconds=1\n"
        "refresh.topics.interval.seconds=2\n"
        "sync.topic.configs.interval.seconds=2\n"
        "dedicated.mode.enable.internal.rest=false\n"
    )
    entry = "org.apache.kafka.connect.mirror.MirrorMaker"
    command = ["java", *HEAP, "-cp", f"{jars('mirror')}/*", entry, str(file)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield
            assert process.poll() is None, log.read_text()[-2000:]
        finally:
            process.kill()


def until(look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """What `look` finds in the end; a refusal while leaders move is no end."""
    deadline, last = time.monotonic() + deadline_s, None
    while time.monotonic() < deadline:
        try:
            found = look()
        except KafkaException as error:
            found, last = None, error
        if found is not None:
            return found
        time.sleep(PAUSE_S)
    raise AssertionError(f"{what} did not come in {deadline_s} s: {last}")


def settings_of(server: KafkaServer) -> dict[str, object]:
    """What each client is told."""
    return {"bootstrap.servers": f"127.0.0.1:{server.port}"}


class Source:
    """A topic of the source, written by a producer that sends nothing twice."""

    def __init__(self, server: KafkaServer, topic: str) -> None:
        self._topic = topic
        self._settings = settings_of(server)
        self._producer = Producer(self._settings | {"enable.idempotence": True})
        self._numbers = itertools.count()
        self.sent: Records = {number: [] for number in range(PARTITIONS)}
        admin = AdminClient(self._settings)  # it must live as long as its calls
        made = admin.create_topics([NewTopic(topic, PARTITIONS, -1, config=SETTINGS)])
        made[topic].result(DEADLINE_S)

    def write(self, count: int) -> None:
        """So many more records, spread over the partitions; they are answered then."""
        for number in itertools.islice(self._numbers, count):
            key, value = b"key %d" % number, b"value %d" % number
            headers = [("number", b"%d" % number), ("empty", None)]
            partition = number % PARTITIONS
            self._producer.produce(self._topic, value, key, partition=partition, headers=headers)
            self.sent[partition].append((key, value, headers))
        assert self._producer.flush(DEADLINE_S) == 0

    def commit(self, group: str) -> None:
        """Let a group have read some of each partition."""
        consumer = Consumer(self._settings | {"group.id": group, "enable.auto.commit": False})
        rows = [TopicPartition(self._topic, number, READ) for number in range(PARTITIONS)]
        consumer.commit(offsets=rows, asynchronous=False)
        consumer.close()


def everything(server: KafkaServer, topic: str, until_has: Records) -> Records:
    """The records of a topic, each partition in its order, up to the last that is expected."""
    consumer = Consumer(
        settings_of(server) | {"group.id": unique("look"), "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: Records = {number: [] for number in range(PARTITIONS)}
    lacking = {number: {row[0] for row in rows} for number, rows in until_has.items()}
    deadline = time.monotonic() + DEADLINE_S
    while any(lacking.values()) and time.monotonic() < deadline:
        for row in consumer.consume(500, 1.0):
            assert row.error() is None
            found[row.partition()].append((row.key(), row.value(), row.headers()))
            lacking[row.partition()].discard(row.key())
    consumer.close()
    return found


def once(records: Records) -> Records:
    """The first of each."""
    return {
        number: list({row[0]: row for row in reversed(rows)}.values())[::-1]
        for number, rows in records.items()
    }


def committed(admin: AdminClient, group: str, topic: str) -> dict[int, int] | None:
    """Where a group stands in each partition, if it is known at all of them."""
    asked = [ConsumerGroupTopicPartitions(group)]
    (future,) = admin.list_consumer_group_offsets(asked).values()
    rows = future.result(DEADLINE_S).topic_partitions
    found = {row.partition: row.offset for row in rows if row.topic == topic and row.offset >= 0}
    return found if len(found) == PARTITIONS else None


def write_while_leaders_move(source: Source, moving: list[tuple[KafkaCluster, str]]) -> None:
    """More records, until each node of a cluster has led each partition of its topic."""
    led: dict[str, set[tuple[int, int]]] = {topic: set() for _cluster, topic in moving}

    def have_all_led() -> bool | None:
        source.write(PARTITIONS)
        for cluster, topic in moving:
            rows = cluster.nodes.rows(topic).values()
            led[topic] |= {(row.id, row.leader) for row in rows if row.leader > 0}
        return all(len(seen) == 3 * PARTITIONS for seen in led.values()) or None

    until(have_all_led, f"a leader at each node of {led}", MOVES_S)


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_mirror_maker_copies_topics_settings_and_the_offsets_of_groups(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, target: str
) -> None:
    if jars("mirror") is None:
        pytest.skip("MirrorMaker is missing: run 'make conformance-kafka', which needs Maven")
    origin: KafkaServer = request.getfixturevalue(f"kafka_{source}")
    goal: KafkaServer = request.getfixturevalue(f"kafka_{target}")
    topic, group = unique("mirrored"), unique("reader")
    copy = f"from.{topic}"
    written = Source(origin, topic)
    written.write(RECORDS)
    written.commit(group)
    admin = AdminClient(settings_of(goal))
    with mirror_maker(origin, goal, topic, tmp_path):
        until(lambda: admin.list_topics(timeout=10).topics.get(copy), "the copy")
        moving = [
            (server, name) for server, name in ((origin, topic), (goal, copy))
            if isinstance(server, KafkaCluster)
        ]  # fmt: skip
        write_while_leaders_move(written, moving)
        assert everything(origin, topic, written.sent) == written.sent
        copied = everything(goal, copy, written.sent)
        assert (once(copied) if moving else copied) == written.sent
        assert len(admin.list_topics(timeout=10).topics[copy].partitions) == PARTITIONS
        offsets = until(lambda: committed(admin, group, copy), "the group's offsets")
        for number, offset in offsets.items():  # never past what was read
            assert len({row[0] for row in copied[number][:offset]}) <= READ
        resource = ConfigResource(ResourceType.TOPIC, copy)
        (future,) = admin.describe_configs([resource]).values()
        found = {name: row.value for name, row in future.result(DEADLINE_S).items()}
        assert {name: found[name] for name in SETTINGS} == SETTINGS
