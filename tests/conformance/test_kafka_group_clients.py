"""Groups of real consumers: members that come, go and are killed under load, static members,
restarts of the broker, and what administrators see and change."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import OffsetAndMetadata as AioOffset
from aiokafka.structs import TopicPartition as AioPlace
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from onelog.protocols.kafka.apis import ApiKey
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.conformance.kafka_cluster import KafkaCluster
from tests.conformance.kafka_fixtures import LACKS_ETCD
from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE
from tests.support.etcd import find_etcd
from tests.support.kafka_wire import Wire

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its own files in an old way
    from kafka import KafkaAdminClient, KafkaConsumer
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as PythonPlace

MEMBER = Path(__file__).parent / "kafka_group_member.py"
DEADLINE_S = 40.0
SESSION_MS = 1500
PARTITIONS = 4

Place = tuple[int, int]
"""Partition and offset."""


SOON = ("kafka.groups.session_timeout_min_ms=500", "kafka.groups.initial_rebalance_delay_ms=100")
"""Members are given up soon, so that nobody has to wait long."""


@pytest.fixture(
    scope="module", params=["onelog", pytest.param("cluster", marks=pytest.mark.kafka_cluster)]
)
def server(request, tmp_path_factory) -> Iterator[KafkaOnelog | KafkaCluster]:
    """One node, or three of which clients begin at any."""
    folder = tmp_path_factory.mktemp("groups")
    if request.param == "cluster":
        if find_etcd() is None:
            pytest.skip(LACKS_ETCD)
        with KafkaCluster(folder / "nodes", *SOON) as cluster:
            yield cluster
        return
    broker = KafkaOnelog(folder, *SOON).start()
    yield broker
    assert broker.stop() == 0
    assert not broker.errors()


class Member:
    """A consumer in a process of its own."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(MEMBER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.seen: list[Place] = []
        self.events: list[tuple[str, list[int]]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line[0] in "+-":
                self.events.append((line[0], [int(row) for row in line[1:].split()]))
            elif line.endswith("\n"):
                rows = [row.split(":") for row in line.split()]
                self.seen += [(int(partition), int(offset)) for partition, offset in rows]

    @property
    def assigned(self) -> set[int]:
        held: set[int] = set()
        for sign, rows in list(self.events):
            held = held | set(rows) if sign == "+" else held - set(rows)
        return held

    def leave(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0
        self._end()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._end()

    def _end(self) -> None:
        self._reader.join(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Start:
    """Starts members; those that are left at the end are killed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.members: list[Member] = []

    def __call__(
        self, library: str, group: str, topic: str, *more: str, session_ms: int = SESSION_MS
    ) -> Member:
        arguments = [library, str(self._port), group, topic, str(session_ms), *more]
        self.members.append(Member(arguments))
        return self.members[-1]


@pytest.fixture
def start(server) -> Iterator[Start]:
    starter = Start(server.port)
    yield starter
    for member in starter.members:
        if member.process.poll() is None:
            member.kill()


@pytest.fixture
def topic(server) -> str:
    name = unique("groups")
    with Wire(server.port) as wire:

        def made() -> bool:
            answer = wire.ask(
                ApiKey.METADATA, 4, topics=[{"name": name}], allow_auto_topic_creation=True
            )
            return len(answer.topics[0].partitions) == PARTITIONS

        eventually(made, "the topic is made")
    return name


def eventually(holds: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it never came true: {what}"
        time.sleep(0.05)


class Load:
    """A producer that goes on until it is stopped, at the latest at the end of its block."""

    def __init__(self, port: int, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 5, "log_level": 0}
        )
        self._topic = topic
        self._stop = threading.Event()
        self.sent: list[Place] = []
        self._lost: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.purge()
        self._producer.flush(DEADLINE_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.sent.append((message.partition(), message.offset()))
        else:
            self._lost.append(error)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.01):
            for _ in range(10):
                self._producer.produce(
                    self._topic, b"v", partition=number % PARTITIONS, on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(0)

    def stop(self) -> set[Place]:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(DEADLINE_S) == 0
        assert not self._lost
        assert len(self.sent) == len(set(self.sent))
        return set(self.sent)


def describe(wire: Wire, group: str) -> Any:
    answer = wire.ask(
        ApiKey.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False
    )
    return answer.groups[0]


def partitions_of(assignment: bytes) -> list[int]:
    """The partitions in a consumer's assignment, which here has one topic at most."""
    if not assignment:
        return []
    _version, topics = struct.unpack_from(">hi", assignment)
    if not topics:
        return []
    (length,) = struct.unpack_from(">h", assignment, 6)
    (count,) = struct.unpack_from(">i", assignment, 8 + length)
    return list(struct.unpack_from(f">{count}i", assignment, 12 + length))


def stable_parts(wire: Wire, group: str) -> list[list[int]] | None:
    """The parts of a stable group's members, which never overlap; None between generations."""
    found = describe(wire, group)
    if found.group_state != "Stable":
        return None
    parts = [partitions_of(row.member_assignment) for row in found.members]
    together = [number for part in parts for number in part]
    assert len(together) == len(set(together)), f"a partition is assigned twice: {parts}"
    return parts


def shared(wire: Wire, group: str, members: int) -> Callable[[], bool]:
    """Whether so many members share all partitions."""

    def check() -> bool:
        parts = stable_parts(wire, group)
        return (
            parts is not None
            and len(parts) == members
            and sorted(number for part in parts for number in part) == list(range(PARTITIONS))
        )

    return check


@pytest.mark.parametrize(
    ("library", "more"),
    [
        ("confluent", ["partition.assignment.strategy=range"]),
        ("confluent", ["partition.assignment.strategy=cooperative-sticky"]),
        ("aiokafka", []),
        ("kafka-python", []),
    ],
    ids=["librdkafka", "librdkafka-cooperative", "aiokafka", "kafka-python"],
)
def test_members_come_go_and_are_killed_under_load_and_every_record_is_seen(
    server, start, topic, library, more
):
    group = unique("churn")
    with Wire(server.port) as wire, Load(server.port, topic) as load:
        first, second = (start(library, group, topic, *more) for _ in range(2))
        eventually(shared(wire, group, 2), "two members share the topic")
        start(library, group, topic, *more)
        eventually(shared(wire, group, 3), "three members share the topic")
        first.kill()
        eventually(shared(wire, group, 2), "the killed one is out")
        second.leave()
        eventually(shared(wire, group, 1), "one is left")
        start(library, group, topic, *more)
        eventually(shared(wire, group, 2), "two share it again")
        sent = load.stop()
        assert len(sent) > 500

        def all_seen() -> bool:
            return sent <= {place for member in start.members for place in member.seen}

        eventually(all_seen, "every record is seen")
    for member in start.members[2:]:
        member.leave()


def test_different_clients_share_one_group(start, server, topic):
    """Three libraries with their own versions of every request agree on one generation."""
    group = unique("mixed")
    with Wire(server.port) as wire, Load(server.port, topic) as load:
        start("confluent", group, topic, "partition.assignment.strategy=range,roundrobin")
        start("aiokafka", group, topic)
        start("kafka-python", group, topic)
        eventually(shared(wire, group, 3), "three libraries share the topic")
        sent = load.stop()

        def all_seen() -> bool:
            return sent <= {place for member in start.members for place in member.seen}

        eventually(all_seen, "every record is seen")


@pytest.mark.parametrize(
    ("library", "option"),
    [
        ("confluent", "group.instance.id"),
        ("aiokafka", "group_instance_id"),
        ("kafka-python", "group_instance_id"),
    ],
)
def test_a_static_member_that_is_killed_and_started_again_disturbs_nobody(
    server, start, topic, library, option
):
    group = unique("static")
    with Wire(server.port) as wire:
        one, two = (
            start(library, group, topic, f"{option}={name}", session_ms=10_000)
            for name in ("one", "two")
        )
        eventually(shared(wire, group, 2), "two members share the topic")
        eventually(lambda: one.assigned | two.assigned == set(range(PARTITIONS)), "they know it")
        had, events = one.assigned, len(two.events)
        old = {row.group_instance_id: row.member_id for row in describe(wire, group).members}
        one.kill()
        again = start(library, group, topic, f"{option}=one", session_ms=10_000)
        eventually(lambda: again.assigned == had, "it has its old part")
        new = {row.group_instance_id: row.member_id for row in describe(wire, group).members}
        assert new["one"] != old["one"]
        assert new["two"] == old["two"]
        assert len(two.events) == events
        assert stable_parts(wire, group) is not None


def test_consumers_go_on_over_a_restart_of_the_broker(tmp_path):
    """Members keep their generation; what was committed is not read again."""
    server = KafkaOnelog(tmp_path, GROUPS_AT_ONCE).start()
    start = Start(server.port)
    try:
        with Wire(server.port) as wire:
            wire.ask(ApiKey.METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        with Load(server.port, "t") as load:
            members = [start("confluent", "g", "t", session_ms=20_000) for _ in range(2)]

            def both_read() -> bool:
                parts = [member.assigned for member in members]
                together = sorted(number for part in parts for number in part)
                shared_out = all(parts) and together == list(range(PARTITIONS))
                return shared_out and all(member.seen for member in members)

            with Wire(server.port) as wire:
                eventually(shared(wire, "g", 2), "two members share the topic")
            eventually(both_read, "both know their part and read")
            before = [list(member.events) for member in members]
            server.kill()
            server.start()
            mark = len(load.sent)
            eventually(lambda: len(load.sent) > mark + 200, "the producer goes on")
            sent = load.stop()
        eventually(
            lambda: sent <= {place for member in members for place in member.seen},
            "every record is seen",
        )
        assert [member.events for member in members] == before, "there was a rebalance"
    finally:
        for member in start.members:
            member.kill()
        server.stop()


# -- commits


def commit_confluent(port: int, group: str, topic: str, offset: int, text: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": group, "log_level": 0}
    )
    place = TopicPartition(topic, 1, offset, metadata=text)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def read_confluent(port: int, group: str, topic: str) -> list[tuple[int, str]]:
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": group, "log_level": 0}
    )
    places = [TopicPartition(topic, number) for number in (1, 2)]
    rows = consumer.committed(places, timeout=DEADLINE_S)
    consumer.close()
    return [(row.offset, row.metadata or "") for row in rows]


def commit_python(port: int, group: str, topic: str, offset: int, text: str) -> None:
    consumer = KafkaConsumer(bootstrap_servers=f"127.0.0.1:{port}", group_id=group)
    consumer.commit({PythonPlace(topic, 1): OffsetAndMetadata(offset, text, -1)})
    consumer.close()


def read_python(port: int, group: str, topic: str) -> list[tuple[int, str]]:
    consumer = KafkaConsumer(bootstrap_servers=f"127.0.0.1:{port}", group_id=group)
    rows = [consumer.committed(PythonPlace(topic, number), metadata=True) for number in (1, 2)]
    consumer.close()
    return [(-1001, "") if row is None else (row.offset, row.metadata) for row in rows]


def commit_aiokafka(port: int, group: str, topic: str, offset: int, text: str) -> None:
    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=f"127.0.0.1:{port}",
            group_id=group,
            enable_auto_commit=False,  # its end would commit once more, without the text
        )
        await consumer.start()
        consumer.assign([AioPlace(topic, 1)])
        await consumer.commit({AioPlace(topic, 1): AioOffset(offset, text)})
        await consumer.stop()

    asyncio.run(run())


COMMITS = {
    "confluent": commit_confluent,
    "kafka-python": commit_python,
    "aiokafka": commit_aiokafka,
}
READS = {"confluent": read_confluent, "kafka-python": read_python}


@pytest.mark.parametrize("writer", COMMITS)
@pytest.mark.parametrize("reader", READS)
def test_offsets_and_their_text_that_one_client_commits_another_reads(
    server, topic, writer, reader
):
    group = unique("commit")
    COMMITS[writer](server.port, group, topic, 42, "ein Wort")
    first, second = READS[reader](server.port, group, topic)
    # confluent-kafka sends the zero byte at the end of its C string, too.
    assert (first[0], first[1].rstrip("\0")) == (42, "ein Wort")
    assert second == (-1001, ""), "nothing is committed there, not zero"


def test_text_that_is_too_long_is_refused(server, topic):
    with pytest.raises(KafkaException) as refused:
        commit_confluent(server.port, unique("commit"), topic, 1, "x" * 4097)
    assert refused.value.args[0].name() == "OFFSET_METADATA_TOO_LARGE"


# -- administrators


@pytest.fixture
def admin(server) -> AdminClient:
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 0})


def result(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(DEADLINE_S)


def test_librdkafkas_administrator_sees_and_changes_groups(server, start, topic, admin):
    busy, idle = unique("busy"), unique("idle")
    member = start("confluent", busy, topic, "client.id=someone")
    with Wire(server.port) as wire:
        eventually(shared(wire, busy, 1), "the member has it all")
    commit_confluent(server.port, idle, topic, 5, "")

    def listed(*states: ConsumerGroupState) -> set[str]:
        future = admin.list_consumer_groups(states=set(states))
        return {row.group_id for row in future.result(DEADLINE_S).valid} & {busy, idle}

    assert listed() == {busy, idle}
    assert listed(ConsumerGroupState.STABLE) == {busy}
    assert listed(ConsumerGroupState.EMPTY) == {idle}
    described = result(admin.describe_consumer_groups([busy]))
    assert described.state is ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    (row,) = described.members
    assert row.client_id == "someone"
    assert {part.partition for part in row.assignment.topic_partitions} == set(range(PARTITIONS))

    with pytest.raises(KafkaException) as refused:
        result(admin.delete_consumer_groups([busy]))
    assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
    moved = ConsumerGroupTopicPartitions(idle, [TopicPartition(topic, 0, 77)])
    result(admin.alter_consumer_group_offsets([moved]))
    asked = [ConsumerGroupTopicPartitions(idle)]
    offsets = result(admin.list_consumer_group_offsets(asked)).topic_partitions
    assert {(part.partition, part.offset) for part in offsets} == {(0, 77), (1, 5)}
    moved = ConsumerGroupTopicPartitions(busy, [TopicPartition(topic, 0, 1)])
    (row,) = result(admin.alter_consumer_group_offsets([moved])).topic_partitions
    assert row.error.name() == "UNKNOWN_MEMBER_ID"
    result(admin.delete_consumer_groups([idle]))
    assert listed() == {busy}
    member.leave()
    assert listed(ConsumerGroupState.EMPTY) == {busy}


def test_kafka_pythons_administrator_sees_and_deletes_groups(server, start, topic):
    group = unique("python")
    member = start("kafka-python", group, topic)
    with Wire(server.port) as wire:
        eventually(shared(wire, group, 1), "the member has it all")
    admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{server.port}")
    try:
        assert group in {row["group_id"] for row in admin.list_groups()}
        described = admin.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
        assert len(described["members"]) == 1
        member.leave()
        admin.delete_groups([group])
        assert group not in {row["group_id"] for row in admin.list_groups()}
    finally:
        admin.close()
