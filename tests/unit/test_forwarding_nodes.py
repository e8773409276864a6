"""Can a message be published at any node of a cluster, whoever leads its partition?"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import pytest

from onelog.base.errors import Conflict, OnelogError
from onelog.broker import LOCAL, NOWHERE, Durability, StreamConfig, outlets
from onelog.record.batch import iterate_batches
from onelog.record.record import Message
from tests.batches import read_all
from tests.support.cluster_nodes import Nodes, OneNode, eventually

PARTITIONS = 6


async def begin(nodes: Nodes, partitions: int = PARTITIONS) -> None:
    await nodes.start(1, 2, 3)
    config = StreamConfig(
        name="orders", captures=("orders",), partitions=partitions, durability=Durability.OS
    )
    await nodes[1].broker.streams.create(config)
    await nodes.until_whole("orders")


def values_of(node: OneNode, partition: int) -> list[bytes]:
    """What lies in a partition of `orders` at a node, in order."""
    data = read_all(node.broker.streams.get("orders").local[partition].log)
    return [
        slices.record(index)[3]
        for _info, slices in iterate_batches(data)
        for index in range(len(slices))
    ]


async def test_a_message_of_any_node_gets_to_any_partition(nodes: Nodes) -> None:
    await begin(nodes)
    for partition in range(PARTITIONS):
        for number in (1, 2, 3):
            for turn in range(2):
                done = await asyncio.wait_for(
                    nodes[number].broker.publish(
                        Message("orders", b"%d-%d" % (number, turn)),
                        principal=LOCAL,
                        partition=partition,
                    ),
                    10,
                )
                assert (done.stream, done.partition) == ("orders", partition)
                assert done.offset == 2 * (number - 1) + turn
    for partition in range(PARTITIONS):
        leader = nodes.leader_of("orders", partition)
        assert values_of(leader, partition) == [b"1-0", b"1-1", b"2-0", b"2-1", b"3-0", b"3-1"]


class Publisher:
    """Publishes numbered messages at one node, in order, to one partition, and keeps the
    answers."""

    def __init__(self, node: OneNode, name: str, partition: int) -> None:
        self.node, self.name, self.partition = node, name, partition
        self.answers: dict[bytes, int | Exception] = {}
        self.said = 0

    def say(self) -> None:
        value = b"%s-%04d" % (self.name.encode(), self.said)
        self.said += 1
        call = Kept(partial(self.answers.__setitem__, value))
        try:
            self.node.broker.publisher.publish(
                (Message("orders", value),), call, principal=LOCAL, partition=self.partition
            )
        except OnelogError as error:
            self.answers[value] = error


class Kept:
    """A call that keeps its answer."""

    def __init__(self, keep) -> None:
        self._keep = keep
        self.results = [NOWHERE]

    def finish(self, _count, error) -> None:
        self._keep(self.results[0].offset if error is None else error)


async def test_leaders_move_while_all_nodes_publish(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1, C3, C4, C7: nothing answered is lost, nothing refused is there, first occurrences keep
    their order."""
    monkeypatch.setattr(outlets, "wants_again", lambda _call: True)
    await begin(nodes, 3)
    publishers = [Publisher(nodes[n], f"n{n}p{p}", p) for n in (1, 2, 3) for p in range(3)]

    async def publish() -> None:
        for _ in range(60):
            for publisher in publishers:
                publisher.say()
                publisher.say()
            await asyncio.sleep(0.02)

    publishing = asyncio.create_task(publish())
    stream = nodes[1].broker.streams.get("orders")
    for turn in range(6):
        await asyncio.sleep(0.15)
        partition = stream.partitions[turn % 3]
        leader = nodes.leader_of("orders", turn % 3).number
        order = sorted((1, 2, 3), key=lambda n, leader=leader: (n == leader, n))
        known = nodes[1].broker.cluster
        await known.reassign(stream.record.id, partition.id, order)
        with contextlib.suppress(Conflict):
            await known.elect(stream.record.id, partition.id)
    await publishing
    await eventually(lambda: all(len(row.answers) == row.said for row in publishers))
    await nodes.until_whole("orders")
    logs = [values_of(nodes.leader_of("orders", partition), partition) for partition in range(3)]
    for publisher in publishers:
        log = logs[publisher.partition]
        assert publisher.said == 120
        for value, answer in publisher.answers.items():
            assert not isinstance(answer, Exception), (value, answer)
            assert log[answer] == value
        own = [value for value in dict.fromkeys(log) if value in publisher.answers]
        assert own == sorted(own)
    assert sum(node.cluster.forwards.sent for node in nodes.running.values()) > 300


async def test_a_leader_that_stops_takes_nothing_with_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "wants_again", lambda _call: True)
    await begin(nodes, 1)
    leader = nodes.leader_of("orders", 0)
    others = [node for node in nodes.running.values() if node is not leader]
    publishers = [Publisher(node, f"n{node.number}", 0) for node in others]
    stopping = None
    for turn in range(100):
        if turn == 20:
            stopping = asyncio.create_task(nodes.stop(leader.number))
        for publisher in publishers:
            publisher.say()
        await asyncio.sleep(0.02)
    assert stopping is not None
    await stopping
    await eventually(lambda: all(len(row.answers) == row.said for row in publishers))
    log = values_of(nodes.leader_of("orders", 0), 0)
    for publisher in publishers:
        for value, answer in publisher.answers.items():
            assert not isinstance(answer, Exception), (value, answer)
            assert log[answer] == value
        own = [value for value in dict.fromkeys(log) if value in publisher.answers]
        assert own == sorted(own)
