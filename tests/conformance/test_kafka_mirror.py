"""MirrorMaker 2 itself copies a cluster into OneLog, and OneLog into a cluster."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from bench.kafka_jars import jars
from bench.kafka_peer import KafkaPeer
from tests.conformance.kafka_brokers import KafkaOnelog, KafkaServer, unique

DEADLINE_S = 90.0
PARTITIONS, RECORDS, READ = 3, 600, 100
SETTINGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": "2097152",
    "min.compaction.lag.ms": "60000",
    "segment.ms": "3600000",
}
HEAP = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
pytestmark = pytest.mark.kafka_peer  # two brokers and Connect: not in every run
T = TypeVar("T")


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
        "replication.factor=1\n"
        "checkpoints.topic.replication.factor=1\n"
        "heartbeats.topic.replication.factor=1\n"
        "offset-syncs.topic.replication.factor=1\n"
        "offset.storage.replication.factor=1\n"
        "status.storage.replication.factor=1\n"
        "config.storage.replication.factor=1\n"
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


def until(look: Callable[[], T | None], what: str) -> T:
    """What `look` finds in the end."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.3)
    raise AssertionError(f"{what} did not come in {DEADLINE_S} s")


def fill(server: KafkaServer, topic: str, group: str) -> None:
    """A topic of the source, with records, and a group that read some of them."""
    settings = {"bootstrap.servers": f"127.0.0.1:{server.port}"}
    admin = AdminClient(settings)
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=SETTINGS)])
    made[topic].result(DEADLINE_S)
    producer = Producer(settings)
    for number in range(RECORDS):
        producer.produce(
            topic,
            b"value %d" % number,
            b"key %d" % number,
            partition=number % PARTITIONS,
            headers=[("number", b"%d" % number), ("empty", None)],
        )
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer(settings | {"group.id": group, "enable.auto.commit": False})
    rows = [TopicPartition(topic, number, READ) for number in range(PARTITIONS)]
    consumer.commit(offsets=rows, asynchronous=False)
    consumer.close()


def everything(server: KafkaServer, topic: str) -> dict[int, list[tuple[bytes, bytes, object]]]:
    """All records of a topic, each partition in its order."""
    settings = {"bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": unique("look")}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: dict[int, list[tuple[bytes, bytes, object]]] = {n: [] for n in range(PARTITIONS)}
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, found.values())) < RECORDS and time.monotonic() < deadline:
        for row in consumer.consume(500, 1.0):
            assert row.error() is None
            found[row.partition()].append((row.key(), row.value(), row.headers()))
    consumer.close()
    return found


def committed(admin: AdminClient, group: str, topic: str) -> set[int] | None:
    """Where a group stands in each partition, if it is known at all of them."""
    asked = [ConsumerGroupTopicPartitions(group)]
    (future,) = admin.list_consumer_group_offsets(asked).values()
    rows = future.result(DEADLINE_S).topic_partitions
    found = [row.offset for row in rows if row.topic == topic and row.offset >= 0]
    return set(found) if len(found) == PARTITIONS else None


@pytest.mark.parametrize("way", ["into onelog", "out of onelog"])
def test_mirror_maker_copies_topics_settings_and_the_offsets_of_groups(
    kafka_onelog: KafkaOnelog, kafka_apache: KafkaPeer, tmp_path: Path, way: str
) -> None:
    if jars("mirror") is None:
        pytest.skip("MirrorMaker is missing: run 'make conformance-kafka', which needs Maven")
    source, target = kafka_apache, kafka_onelog
    if way == "out of onelog":
        source, target = target, source
    topic, group = unique("mirrored"), unique("reader")
    fill(source, topic, group)
    copy = f"from.{topic}"
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{target.port}"})
    with mirror_maker(source, target, topic, tmp_path):
        until(lambda: admin.list_topics(timeout=10).topics.get(copy), "the copy")
        assert everything(target, copy) == everything(source, topic)
        assert len(admin.list_topics(timeout=10).topics[copy].partitions) == PARTITIONS
        offsets = until(lambda: committed(admin, group, copy), "the group's offsets")
        assert max(offsets) <= READ  # never past what was read
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, copy)]).values()
        found = {name: row.value for name, row in future.result(DEADLINE_S).items()}
        assert {name: found[name] for name in SETTINGS} == SETTINGS
