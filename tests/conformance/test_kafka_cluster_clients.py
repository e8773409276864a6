"""What Kafka clients see of three nodes: leaders that move, views led elsewhere, any node asked."""

from __future__ import annotations

import os
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.conformance.kafka_brokers import KINDS, unique
from tests.conformance.kafka_clients import Record, eventually
from tests.conformance.kafka_cluster import KafkaCluster
from tests.support.etcd import needs_etcd
from tests.support.kafka_admin import new_topic
from tests.support.kafka_wire import Wire
from tests.support.leader_mover import LeaderMover

pytestmark = needs_etcd

K, E = ApiKey, ErrorCode
PARTITIONS = 4
LATEST = -1
MOVES = 3
MOVE_S = 2.0
DEADLINE_S = 30.0
EVERY_TOPIC = "seen._x2B_"
"""The view of everything that is called `seen/…`."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("cluster") / "nodes", every_s=0) as made:
        yield made


@pytest.fixture
def wires(cluster: KafkaCluster) -> Iterator[dict[int, Wire]]:
    """A connection to each node."""
    made = {node.number: Wire(node.ports["kafka"]) for node in cluster.nodes.nodes}
    yield made
    for wire in made.values():
        wire.close()


def create(wire: Wire, name: str, partitions: int = PARTITIONS, replicas: int = -1) -> Any:
    """Make a topic through one node; its row of the answer."""
    topics = [new_topic(name, partitions, replicas)]
    (row,) = wire.ask(K.CREATE_TOPICS, 7, topics=topics, timeout=10_000).topics
    assert row.error_code is E.none, row
    return row


def described(wire: Wire, name: str) -> Any:
    """What a node says of a topic."""
    (row,) = wire.ask(
        K.METADATA, 12, topics=[{"name": name, "topic_id": None}], allow_auto_topic_creation=False
    ).topics
    return row


def known(wires: dict[int, Wire], name: str) -> dict[int, int]:
    """Wait until every node names the same leader for each partition: partition → leader."""

    def leaders() -> list[dict[int, int]]:
        rows = [described(wire, name) for wire in wires.values()]
        return [{part.partition_index: part.leader_id for part in row.partitions} for row in rows]

    found = eventually(
        leaders, lambda rows: bool(rows[0]) and rows.count(rows[0]) == 3 and -1 not in rows[0]
    )
    return found[0]


def list_offsets(wires: dict[int, Wire], leaders: dict[int, int], name: str) -> dict[int, int]:
    """The ends of partitions, asked of their leaders."""
    return {
        partition: listed(wires[leader], name, partition).offset
        for partition, leader in leaders.items()
    }


def listed(wire: Wire, name: str, partition: int) -> Any:
    """What a node answers when it is asked for the end of a partition."""
    row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": LATEST}
    topics = [{"name": name, "partitions": [row]}]
    answer = wire.ask(K.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    return answer.topics[0].partitions[0]


class Load:
    """A producer of numbered records, transactions beside it, and a group that reads both."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._address = {"bootstrap.servers": f"127.0.0.1:{cluster.port}", "log_level": 2}
        self._topic = topic
        self.sent: Counter[int] = Counter()
        self.came: Counter[bytes] = Counter()
        self.committed: list[bytes] = []
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._produce, self._transact)
        ]

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - shown at the end
            self.errors.append(f"{work.__name__}: {error!r}")

    def _client(self, **more: Any) -> dict[str, Any]:
        return {**self._address, "error_cb": lambda error: self.errors.append(str(error)), **more}

    def _produce(self) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 1}
        producer, number = Producer(self._client(**settings)), 0

        def delivered(error: Any, _message: Message) -> None:
            if error is not None:
                self.errors.append(f"a record was refused: {error}")

        while not self._stopping.wait(0.005):
            partition = number % PARTITIONS
            producer.produce(self._topic, b"%d" % number, b"n", partition, delivered)
            self.sent[partition] += 1
            number += 1
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0

    def _transact(self) -> None:
        producer = Producer(self._client(**{"transactional.id": unique("x"), "linger.ms": 1}))
        producer.init_transactions(DEADLINE_S)
        number = 0
        while not self._stopping.wait(0.05):
            producer.begin_transaction()
            values = [b"t%d-%d" % (number, partition) for partition in range(PARTITIONS)]
            for partition, value in enumerate(values):
                producer.produce(self._topic, value, b"t", partition)
            producer.commit_transaction(DEADLINE_S)
            self.committed += values
            number += 1

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(DEADLINE_S * 2)
            assert not thread.is_alive()

    def read(self, group: str, seconds: float) -> None:
        """A member that commits after each batch, for a while; it goes on where the group was."""
        settings = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
        }
        consumer = Consumer(self._client(**settings))
        consumer.subscribe([self._topic])
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.came.total() < self.wanted():
            messages = consumer.consume(500, 0.2)
            for message in messages:
                assert message.error() is None, message.error()
                self.came[message.value() or b""] += 1
            if messages:
                consumer.commit(asynchronous=False)
        consumer.close()

    def wanted(self) -> float:
        """How many records there are to read; unknown while they are written."""
        if not self._stopping.is_set():
            return float("inf")
        return self.sent.total() + len(self.committed)


def test_producers_transactions_and_groups_lose_and_repeat_nothing_while_leaders_move(cluster):
    topic, group = unique("moved"), unique("g")
    cluster.nodes.create(topic, PARTITIONS)
    with LeaderMover(cluster.nodes, MOVE_S) as mover, Load(cluster, topic) as load:
        while mover.rounds < MOVES:
            load.read(group, MOVE_S)
    load.read(group, DEADLINE_S)
    assert not load.errors
    assert load.sent.total() > 100
    assert len(load.committed) > PARTITIONS
    numbers = {b"%d" % number for number in range(load.sent.total())}
    assert load.came.keys() == numbers | set(load.committed), "lost, or never sent"
    assert set(load.came.values()) == {1}, "what was committed came again"


def test_a_topic_that_any_node_makes_has_leaders_when_the_answer_goes_out(wires):
    for wire in wires.values():
        name = unique("made.")
        row = create(wire, name)
        assert (row.num_partitions, row.replication_factor) == (PARTITIONS, 3)
        shown = described(wire, name)
        assert (shown.error_code, shown.topic_id) == (E.none, row.topic_id)
        assert {part.leader_id for part in shown.partitions} <= {1, 2, 3}
        assert {part.error_code for part in shown.partitions} == {E.none}
        known(wires, name)


def test_a_topic_that_is_made_again_has_another_id_and_no_records_at_every_node(wires, cluster):
    name, ids = unique("again."), set()
    for made_by, wire in wires.items():
        ids.add(create(wire, name).topic_id)
        leaders = known(wires, name)
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{cluster.port}", "log_level": 2})
        for partition in leaders:
            producer.produce(name, b"v", None, partition)
        assert producer.flush(DEADLINE_S) == 0
        ends = list_offsets(wires, leaders, name)
        assert ends == dict.fromkeys(leaders, 1), "records of the topic before are there"
        other = wires[made_by % 3 + 1]
        (gone,) = other.ask(
            K.DELETE_TOPICS, 6, topics=[{"name": name, "topic_id": None}], timeout=10_000
        ).responses
        assert gone.error_code is E.none
        for each in wires.values():
            eventually(
                lambda each=each: described(each, name).error_code,
                lambda code: code is E.unknown_topic_or_partition,
            )
    assert len(ids) == 3


def test_partitions_are_added_by_any_node_and_have_leaders(wires):
    name = unique("grown.")
    create(wires[1], name, 1)
    known(wires, name)
    for count, wire in enumerate(wires.values(), start=2):
        topics = [{"name": name, "count": count, "assignments": None}]
        (row,) = wire.ask(
            K.CREATE_PARTITIONS, 3, topics=topics, timeout=10_000, validate_only=False
        ).results
        assert row.error_code is E.none, row
        shown = described(wire, name)
        assert len(shown.partitions) == count
        assert {part.error_code for part in shown.partitions} == {E.none}
        eventually(lambda: known(wires, name), lambda leaders: len(leaders) == count)  # noqa: B023


def test_a_node_that_does_not_lead_refuses_what_only_leaders_know(wires):
    name = unique("led.")
    create(wires[1], name)
    for partition, leader in known(wires, name).items():
        for number, wire in wires.items():
            ended = wire.ask(
                K.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1,
                topics=[{"topic": name, "partitions": [
                    {"partition": partition, "current_leader_epoch": -1, "leader_epoch": 0}
                ]}],
            ).topics[0].partitions[0]  # fmt: skip
            deleted = wire.ask(
                K.DELETE_RECORDS, 2, timeout=5000,
                topics=[{"name": name, "partitions": [
                    {"partition_index": partition, "offset": 0}
                ]}],
            ).topics[0].partitions[0]  # fmt: skip
            codes = {listed(wire, name, partition).error_code, ended.error_code, deleted.error_code}
            assert codes == {E.none if number == leader else E.not_leader_or_follower}


def test_a_view_over_several_streams_is_read_at_the_leaders_of_its_sources(wires, cluster):
    sources = [f"seen.{unique('s')}" for _ in range(3)]
    for wire, name in zip(wires.values(), sources, strict=True):
        create(wire, name, 2)
    owners = {name: known(wires, name) for name in sources}
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{cluster.port}", "log_level": 2})
    for name in sources:
        for partition in owners[name]:
            producer.produce(name, f"{name}/{partition}", "k", partition)
    assert producer.flush(DEADLINE_S) == 0
    leaders = known(wires, EVERY_TOPIC)
    assert len(leaders) >= 6
    shown = list(leaders.values())
    for led in owners.values():
        for leader in set(led.values()):
            assert list(led.values()).count(leader) <= shown.count(leader)

    with LeaderMover(cluster.nodes, 1.0) as mover:
        for _ in range(2):
            begun = mover.rounds
            assert read_all(cluster, EVERY_TOPIC, 6) == {
                f"{name}/{partition}" for name in sources for partition in (0, 1)
            }
            eventually(lambda: mover.rounds, lambda now: now > begun)  # noqa: B023


def sent_bytes(cluster: KafkaCluster, number: int) -> int:
    """What a node has sent to Kafka clients so far, as its metrics say."""
    url = f"http://127.0.0.1:{cluster.nodes.node(number).ports['admin']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    (found,) = re.findall(r"^onelog_kafka_sent_bytes_total (\d+)", text, re.MULTILINE)
    return int(found)


@pytest.mark.kafka_cluster
def test_a_consumer_that_names_a_rack_is_served_by_the_follower_in_it(wires, cluster):
    """KIP-392, by librdkafka: the leader names the follower, which sends the records."""
    name = unique("near.")
    create(wires[1], name, 1)
    leader = known(wires, name)[0]
    eventually(
        lambda: described(wires[leader], name).partitions[0].isr_nodes, lambda isr: len(isr) == 3
    )
    records = [os.urandom(100_000) for _ in range(30)]
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{cluster.port}", "log_level": 2})
    for record in records:
        producer.produce(name, record, None, 0)
    assert producer.flush(DEADLINE_S) == 0
    for near in (1, 2, 3):
        before = {number: sent_bytes(cluster, number) for number in wires}
        assert values_of(cluster, name, len(records), **{"client.rack": f"r{near}"}) == records
        sent = {number: sent_bytes(cluster, number) - before[number] for number in wires}
        assert sent[near] > sum(map(len, records)), (leader, near, sent)
        assert all(sent[other] < len(records[0]) for other in {1, 2, 3} - {near}), (
            leader,
            near,
            sent,
        )


def values_of(cluster: KafkaCluster, topic: str, count: int, **settings: Any) -> list[bytes]:
    """The values of partition 0 from its beginning."""
    address = {"bootstrap.servers": f"127.0.0.1:{cluster.port}", "group.id": "unused"}
    consumer = Consumer({**address, "log_level": 2, **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, len(found)
        for message in consumer.consume(100, 0.2):
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
    consumer.close()
    return found


@pytest.mark.kafka_cluster
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_any_client_reads_a_view_whose_sources_other_nodes_lead(
    kind, kafka_cluster, kafka_clients
):
    client = kafka_clients.for_scenario(kafka_cluster, kind, "groups")
    helper = kafka_clients.get(kafka_cluster, "confluent")
    root, group, member = unique("shown"), unique("g"), unique("m")
    records = [Record(b"%d" % n, b"k", partition=n % 2) for n in range(10)]
    for name in (f"{root}.a", f"{root}.b"):
        helper.create(name, 2, {})
        helper.produce(name, records, "none")
    client.join(member, group, f"{root}._x2B_")
    eventually(lambda: len(client.took(member)), lambda count: count >= 20)
    helper.produce(f"{root}.b", records, "none")
    took = eventually(lambda: client.took(member), lambda took: len(took) >= 30)
    client.leave(member)
    assert len(set(took)) == len(took) == 30


def read_all(cluster: KafkaCluster, topic: str, count: int) -> set[str]:
    """The values of all partitions of a topic, from their beginnings; each comes once."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.port}", "log_level": 2})
    rows = admin.list_topics(topic, timeout=10).topics[topic].partitions
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{cluster.port}", "group.id": "unused", "log_level": 2}
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in rows])
    found: Counter[str] = Counter()
    deadline = time.monotonic() + DEADLINE_S
    while found.total() < count:
        assert time.monotonic() < deadline, found
        for message in consumer.consume(100, 0.2):
            assert message.error() is None, message.error()
            found[(message.value() or b"").decode()] += 1
    consumer.close()
    assert set(found.values()) == {1}
    return set(found)
