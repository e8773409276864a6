"""Does a live feed go on when the copy that it follows on its node is replaced by another?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from onelog.base.errors import NotLeader, PartitionCorrupt
from onelog.base.ids import Offset, PartitionId
from onelog.broker import LOCAL, Durability, LiveSource, Record, StreamConfig
from onelog.cluster.controller import recover
from onelog.cluster.driving import ReplicaDriver
from onelog.cluster.frames import FeedBatches
from onelog.kernel import scan_batches
from onelog.log.config import Replication
from onelog.log.progress import Told
from onelog.record.record import Message
from tests.support.cluster_nodes import Nodes, OneNode


class Listener:
    """Remembers the offsets of `orders` that one node handed out live."""

    def __init__(self, node: OneNode, *, waits: bool = False) -> None:
        self.seen: list[int] = []
        self.live = node.broker.new_live("test")
        self.live.start(self, waits=waits)

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        offsets = [
            offset
            for info in scan_batches(data)
            for offset in range(info.base_offset, info.last_offset + 1)
        ]
        if source.stream.name == "orders":
            self.seen += offsets
        return offsets[-1] + 1

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        if source.stream.name == "orders":
            self.seen += [record.offset for record in records]

    def release(self, numbers: set[int]) -> set[int]:
        del numbers
        return set()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - it changes in many places
            await asyncio.sleep(0.02)


async def begin(
    nodes: Nodes, factor: int, durability: Durability = Durability.OS, min_insync: int = 2
) -> OneNode:
    """Three nodes, and a stream of one partition with a few records. Returns its leader."""
    await nodes.start(1, 2, 3)
    config = StreamConfig(
        name="orders",
        captures=("orders",),
        partitions=1,
        durability=durability,
        replication=Replication(factor=factor, min_insync=min(factor, min_insync)),
    )
    await nodes[1].broker.streams.create(config)
    await nodes.until_whole("orders")
    leader = nodes.leader_of("orders", 0)
    await say(leader, 3)
    return leader


async def say(node: OneNode, count: int) -> None:
    for number in range(count):
        await node.broker.publish(Message("orders", b"%d" % number), principal=LOCAL)


def damage(node: OneNode) -> Callable[[], bool]:
    """The copy of a node is damaged. Returns whether another one took its place."""
    stream = node.broker.streams.get("orders")
    old = stream.local[0]
    driver_of(node)._found_damage(PartitionCorrupt("its disk lost a byte"))
    return lambda: stream.local[0] is not old


def end_of(node: OneNode) -> int:
    return node.broker.streams.get("orders").partitions[0].high_watermark


def driver_of(node: OneNode) -> ReplicaDriver:
    stream = node.broker.streams.get("orders")
    return node.cluster.host.drivers[stream.key(PartitionId(0))]


def other_of(nodes: Nodes, leader: OneNode) -> OneNode:
    """The second node of two that have the partition."""
    number = next(n for n in driver_of(leader).replica.row.replicas if n != leader.number)
    return nodes[number]


async def test_a_copy_that_is_made_anew_is_heard_from_where_the_old_one_ended(
    nodes: Nodes,
) -> None:
    leader = await begin(nodes, 3)
    follower = next(row for row in nodes.running.values() if row is not leader)
    await until(lambda: end_of(follower) == 3)
    listener = Listener(follower)
    await say(leader, 2)
    await until(lambda: listener.seen == [3, 4])

    anew = damage(follower)
    await say(leader, 2)
    await until(lambda: anew() and end_of(follower) == 7)
    await until(lambda: listener.seen == [3, 4, 5, 6])
    await say(leader, 1)
    await until(lambda: listener.seen == [3, 4, 5, 6, 7])


async def test_a_copy_that_is_made_anew_while_its_listener_waits_is_heard_when_it_is_ready(
    nodes: Nodes,
) -> None:
    leader = await begin(nodes, 3)
    follower = next(row for row in nodes.running.values() if row is not leader)
    await until(lambda: end_of(follower) == 3)
    listener = Listener(follower, waits=True)
    await say(leader, 1)
    await until(lambda: end_of(follower) == 4)

    anew = damage(follower)
    await say(leader, 2)
    await until(lambda: anew() and end_of(follower) == 6)
    assert listener.seen == []
    listener.live.go()
    assert listener.seen == [3, 4, 5]
    await say(leader, 1)
    await until(lambda: listener.seen == [3, 4, 5, 6])


async def test_a_copy_that_comes_to_a_node_is_heard_without_its_history(nodes: Nodes) -> None:
    leader = await begin(nodes, 1)
    other = next(row for row in nodes.running.values() if row is not leader)
    stream = other.broker.streams.get("orders")
    assert isinstance(stream.local[0].stopped, NotLeader)
    listener = Listener(other)

    both = (leader.number, other.number)
    await leader.cluster.known.reassign(stream.record.id, PartitionId(0), both)
    await until(lambda: stream.local[0].stopped is None and end_of(other) == 3)
    await nodes.until_whole("orders")
    assert listener.seen == []
    await say(leader, 2)
    await until(lambda: listener.seen == [3, 4])


async def test_a_leader_that_copies_anew_hears_nothing_twice_from_one_that_lags(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await begin(nodes, 2)
    other = other_of(nodes, leader)
    await until(lambda: end_of(other) == 3)
    listener, lags = Listener(leader), driver_of(other).partition.progress
    tell = Told.tell

    def tell_others(told: Told, offset: Offset) -> None:
        if told is not lags:
            tell(told, offset)

    monkeypatch.setattr(Told, "tell", tell_others)
    await say(leader, 2)
    await until(lambda: listener.seen == [3, 4])
    assert end_of(other) == 3

    anew = damage(leader)
    await until(lambda: anew() and end_of(leader) == 5)
    await nodes.until_whole("orders")
    assert listener.seen == [3, 4]
    await say(nodes.leader_of("orders", 0), 1)
    await until(lambda: listener.seen == [3, 4, 5])


async def test_after_a_loss_what_takes_the_place_of_lost_records_is_heard(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await begin(nodes, 2, min_insync=1)
    other = other_of(nodes, leader)
    await until(lambda: end_of(other) == 3)
    listener, late = Listener(leader), driver_of(other)
    append = ReplicaDriver._append

    def append_elsewhere(driver: ReplicaDriver, frame: FeedBatches) -> None:
        if driver is not late:
            append(driver, frame)

    monkeypatch.setattr(ReplicaDriver, "_append", append_elsewhere)
    await say(leader, 2)
    await until(lambda: listener.seen == [3, 4])

    known, key = other.cluster.known, late.replica.partition
    await known._change(key, lambda row: recover(row, known.facts()[other.number]))
    await nodes.until_whole("orders")
    assert end_of(leader) == 3
    await say(nodes.leader_of("orders", 0), 3)
    await until(lambda: listener.seen == [3, 4, 3, 4, 5])


async def test_a_partition_in_memory_that_begins_empty_is_heard_from_its_start(
    nodes: Nodes,
) -> None:
    leader = await begin(nodes, 1, Durability.MEMORY)
    listener = Listener(leader)
    await say(leader, 2)
    await until(lambda: listener.seen == [3, 4])

    await until(damage(leader))
    await nodes.until_whole("orders")
    await say(leader, 2)
    await until(lambda: listener.seen == [3, 4, 0, 1])
