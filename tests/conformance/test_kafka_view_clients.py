"""What MQTT devices publish, every Kafka client reads through views (V1 to V8).

On three nodes, leaders move all the time, and with them the nodes that serve the devices.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.conformance.kafka_brokers import KINDS, Clients, KafkaOnelog, unique
from tests.conformance.kafka_clients import Record, Refused, eventually
from tests.conformance.kafka_cluster import KafkaCluster
from tests.conformance.kafka_fixtures import LACKS_ETCD
from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE
from tests.support.etcd import find_etcd
from tests.support.roaming import Device

DEVICES = 3
ROUNDS = 40
NOISE = 12
VIEW = "sensors._x2B_.telemetry"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class World:
    """A broker with one partition for all topics, and what was published to it."""

    def __init__(self, server: KafkaOnelog | KafkaCluster, mqtt: list[int]) -> None:
        self.server, self._mqtt = server, mqtt
        self._device = Device(mqtt)
        self.telemetry: list[bytes] = []
        self.of_device: dict[int, list[bytes]] = {number: [] for number in range(DEVICES)}

    @property
    def moves(self) -> bool:
        """Whether its leaders do."""
        return len(self._mqtt) > 1

    def subscriber(self, text: str) -> Device:
        """A device that takes what comes to a filter from now on."""
        made = Device(self._mqtt)
        made.subscribe(text)
        return made

    def publish(self, topic: str, value: bytes) -> None:
        """Publish something once; it is in the log then."""
        self._device.publish(topic, value)

    def noise(self, topic: str, count: int) -> None:
        """Messages that no view of these tests shows."""
        self._device.publish_some(topic, b"noise", count)

    def rounds(self, count: int = 1) -> None:
        """Rounds of every device, among messages that no view of this test shows."""
        for _ in range(count):
            for number in range(DEVICES):
                self.noise(f"sensors/d{number}/log", NOISE)
                value = b"%d/%d" % (number, len(self.of_device[number]))
                self.publish(f"sensors/d{number}/telemetry", value)
                self.telemetry.append(value)
                self.of_device[number].append(value)

    def close(self) -> None:
        self._device.close()


def serve(kind: str, folder: Path, *assignments: str) -> Iterator[World]:
    if kind == "cluster":
        if find_etcd() is None:
            pytest.skip(LACKS_ETCD)
        with KafkaCluster(folder / "nodes", *assignments) as cluster:
            ports = [node.ports["mqtt"] for node in cluster.nodes.nodes]
            yield from filled(World(cluster, ports))
        return
    server = KafkaOnelog(folder, GROUPS_AT_ONCE, *assignments)
    server.start()
    try:
        yield from filled(World(server, [server.ports["mqtt"]]))
    finally:
        assert server.stop() == 0
        assert not server.errors()


def filled(world: World) -> Iterator[World]:
    try:
        world.rounds(ROUNDS)
        world.noise("sensors/d0/log", 100)  # a gap at the end
        yield world
    finally:
        world.close()


KINDS_OF_BROKERS = ["onelog", pytest.param("cluster", marks=pytest.mark.kafka_cluster)]


@pytest.fixture(scope="module", params=KINDS_OF_BROKERS)
def world(request, tmp_path_factory) -> Iterator[World]:
    yield from serve(request.param, tmp_path_factory.mktemp("views"), "main.partitions=1")


@pytest.fixture(scope="module", params=KINDS_OF_BROKERS)
def wide(request, tmp_path_factory) -> Iterator[World]:
    yield from serve(request.param, tmp_path_factory.mktemp("wide"), "main.partitions=8")


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.close()


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_is_read_from_its_beginning(kind, world, clients):
    client = clients.get(world.server, kind)
    wanted = list(world.telemetry)
    for committed in (True, False):
        (found,) = client.read({VIEW: len(wanted)}, committed=committed).values()
        assert values(found) == wanted
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        assert offsets[-1] >= len(wanted) * NOISE  # the source's offsets, not new ones
        assert {record.key for record in found} == {
            b"sensors/d%d/telemetry" % number for number in range(DEVICES)
        }


@pytest.mark.parametrize("kind", KINDS)
def test_one_topic_out_of_many_is_read_from_its_beginning(kind, world, clients):
    client = clients.get(world.server, kind)
    wanted = list(world.of_device[1])
    (found,) = client.read({"sensors.d1.telemetry": len(wanted)}, committed=True).values()
    assert values(found) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_on_a_view_takes_what_is_published_and_goes_on_where_it_was(kind, world, clients):
    client = clients.for_scenario(world.server, kind, "groups")
    group, name = unique(f"g-{kind}-"), unique("m")
    client.join(name, group, VIEW)
    before = len(world.telemetry)
    eventually(lambda: client.took(name), lambda took: len(took) == before)
    world.rounds()  # live
    took = eventually(lambda: client.took(name), lambda took: len(took) >= before + DEVICES)
    assert len(set(took)) == len(took) == before + DEVICES
    client.leave(name)
    world.rounds()
    again = unique("m")
    client.join(again, group, VIEW)
    more = eventually(lambda: client.took(again), lambda took: len(took) >= DEVICES)
    client.leave(again)
    assert len(more) == DEVICES
    assert not set(more) & set(took)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_to_a_topic_is_stored_where_it_lives(kind, world, clients):
    """I1: MQTT subscribers, the exact view and the filter's view show the one record."""
    client = clients.get(world.server, kind)
    topic = unique(f"orders/{kind}/o")
    subscriber = world.subscriber(f"{topic}/#")
    world.publish(f"{topic}/a", b"first")
    name = f"{topic}/a".replace("/", ".")
    sent = [b"first"]
    for codec in CODECS:
        if codec in client.codecs:
            rows = [Record(b"%s %d" % (codec.encode(), at), b"key") for at in range(3)]
            client.produce(name, rows, codec)
            sent += [row.value for row in rows if row.value is not None]
    arrived = subscriber.receive(len(sent))
    subscriber.close()
    assert (list(dict.fromkeys(arrived)) if world.moves else arrived) == sent
    (found,) = client.read({name: len(sent)}, committed=True).values()
    assert values(found) == sent
    parent = topic.replace("/", ".") + "._x23_"
    (seen,) = client.read({parent: len(sent)}, committed=True).values()
    assert [(row.offset, row.value) for row in seen] == [(row.offset, row.value) for row in found]


def test_one_idempotent_producer_may_write_to_many_topics_of_one_partition(world, clients):
    client = clients.get(world.server, "confluent")
    names = []
    for number in range(5):
        topic = unique(f"many/{number}/t")
        world.publish(topic, b"first")
        names.append(topic.replace("/", "."))
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{world.server.port}",
            "enable.idempotence": True,
            "linger.ms": 0,
        }
    )
    for number in range(3):
        for name in names:
            producer.produce(
                name, b"%d" % number, on_delivery=lambda error, _: error and failed.append(error)
            )
        assert producer.flush(20) == 0
    assert not failed
    found = client.read(dict.fromkeys(names, 4), committed=True)
    for name in names:
        assert values(found[name]) == [b"first", b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["confluent", "aiokafka", "kafka-python", "kafkajs"])
def test_a_filter_takes_no_records(kind, world, clients):
    client = clients.get(world.server, kind)
    with pytest.raises(Refused) as refused:
        client.produce(VIEW, [Record(b"x")], "none")
    assert refused.value.code == 44


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_may_be_given_a_name(kind, world, clients):
    client = clients.for_scenario(world.server, kind, "admin")
    name = unique("telemetry-")
    client.create(name, 1, {"onelog.filter": "sensors/+/telemetry"})
    assert name in client.topics()
    wanted = list(world.telemetry)
    (found,) = client.read({name: len(wanted)}, committed=True).values()
    assert values(found) == wanted
    if kind != "kafkajs":  # it does not tell that a topic exists
        with pytest.raises(Refused) as refused:
            client.create(name, 1, {"onelog.filter": "other/#"})
        assert refused.value.code == 36
    client.delete(name)
    eventually(client.topics, lambda topics: name not in topics)


# -- many partitions


def kcat(world: World, *arguments: str) -> list[str]:
    done = subprocess.run(
        ["kcat", "-q", "-b", f"127.0.0.1:{world.server.port}", "-C", "-e", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.splitlines()


def test_kcat_ends_at_the_end_of_every_partition(wide, clients):
    clients.get(wide.server, "kcat")  # or the test is skipped
    found = kcat(wide, "-t", VIEW, "-o", "beginning", "-f", "%s\n")
    assert sorted(found) == sorted(value.decode() for value in wide.telemetry)
    found = kcat(wide, "-t", "sensors.d2.telemetry", "-o", "beginning", "-f", "%s\n")
    assert found == [value.decode() for value in wide.of_device[2]]


def test_a_consumer_reaches_the_end_that_it_is_told_of(wide):
    """What Spark needs: the position reaches the latest offset in every partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{wide.server.port}",
            "group.id": unique("end"),
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = consumer.list_topics(VIEW, timeout=10).topics[VIEW].partitions
    places = [TopicPartition(VIEW, number, 0) for number in partitions]
    assert len(places) == 8
    ends = {place.partition: consumer.get_watermark_offsets(place)[1] for place in places}
    assert sum(ends.values()) > len(wide.telemetry)
    consumer.assign(places)
    reached: dict[int, int] = {}
    deadline = time.monotonic() + 30
    while len(reached) < len(places):
        assert time.monotonic() < deadline, (reached, ends)
        message = consumer.poll(0.5)
        failed = None if message is None else message.error()
        if failed is not None and failed.code() == KafkaError._PARTITION_EOF:
            reached[message.partition()] = message.offset()
    consumer.close()
    assert reached == ends


def test_time_finds_where_to_begin(world, clients):
    client = clients.get(world.server, "confluent")
    (found,) = client.read({VIEW: len(world.telemetry)}, committed=True).values()
    middle = found[len(found) // 2]
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{world.server.port}", "group.id": unique("time")}
    )
    (place,) = consumer.offsets_for_times([TopicPartition(VIEW, 0, middle.timestamp_ms)], 10)
    consumer.close()
    assert place.offset <= middle.offset
    later = [row for row in found if row.timestamp_ms >= middle.timestamp_ms]
    assert all(row.offset >= place.offset for row in later)
