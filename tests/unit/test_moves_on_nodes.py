"""Do readers on a cluster see every record of a topic in order when the topic moves between
streams, whoever leads, has copies, or publishes?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from onelog.base.errors import OnelogError, Unavailable
from onelog.base.ids import PartitionId
from onelog.broker import EARLIEST, LOCAL, Durability, OffsetCursor, StreamConfig
from onelog.log import settling
from onelog.log.config import Replication
from onelog.record.record import Message
from tests.support.cluster_nodes import Nodes, OneNode, eventually

OLD = StreamConfig(name="old", captures=("a/#",), partitions=2, durability=Durability.OS)
NEW = StreamConfig(name="new", captures=("a/b",), partitions=1, durability=Durability.OS)


async def begin(nodes: Nodes, factor: int = 3) -> None:
    await nodes.start(1, 2, 3)
    config = msgspec.structs.replace(OLD, replication=Replication(factor=factor))
    await nodes[1].broker.streams.create(config)
    await nodes.until_whole("old")


def roles(nodes: Nodes) -> tuple[OneNode, OneNode, OneNode]:
    """The controller's node, another one, and one that can be late without holding up elections."""
    first = nodes[nodes[1].cluster.known.controller]
    second, late = (node for node in nodes.running.values() if node is not first)
    return first, second, late


async def make_new(nodes: Nodes) -> None:
    """Make the new home; the late node does not lead it."""
    first, second, late = roles(nodes)
    homes = ((second.number, first.number, late.number),)
    await first.broker.streams.create(NEW, homes)


async def takes_new(node: OneNode) -> None:
    """A node knows the new home, and that somebody leads it."""

    def is_led() -> bool:
        stream = node.broker.streams.find("new")
        row = None if stream is None else node.cluster.known.row(stream.key(PartitionId(0)))
        return row is not None and row[0].leader >= 0

    await eventually(is_led, 60)


async def say(node: OneNode, *values: bytes) -> list[str]:
    """Publish, one after the other. Returns the streams that took them."""
    found = []
    for value in values:
        done = await asyncio.wait_for(
            node.broker.publish(Message("a/b", value), principal=LOCAL), 20
        )
        found.append(done.stream)
    return found


@asynccontextmanager
async def adopting_nothing(node: OneNode) -> AsyncIterator[None]:
    """A node that does not hear of new rows of streams yet."""
    async with node.broker.streams._changes.lock:
        yield


async def reader(node: OneNode, text: str) -> OffsetCursor:
    """A cursor at a node, from the beginning."""
    return await node.broker.cursors.open_offset(
        f"reader-{node.number}", [text], start=EARLIEST, durable=False, principal=LOCAL
    )


async def values_in_order(node: OneNode, expected: int) -> list[bytes]:
    """The values of the topic as a cursor at a node reads them, one step at a time."""
    cursor = await reader(node, "a/b")
    found: list[bytes] = []

    def read() -> bool:
        found.extend(record.value for record in cursor.fetch(1))
        return len(found) >= expected

    await eventually(read, 30)
    return found


async def test_what_a_node_writes_to_the_old_home_before_it_hears_of_the_new_one_comes_first(
    nodes: Nodes,
) -> None:
    await begin(nodes)
    first, second, late = roles(nodes)
    await say(late, b"1")
    async with adopting_nothing(late):
        creating = asyncio.create_task(make_new(nodes))
        for node in (first, second):
            await takes_new(node)
        # A reader that could read the new home now would see this one before the two below.
        assert await say(second, b"other") == ["new"]
        assert await say(late, b"2", b"3") == ["old", "old"]
        assert not creating.done()
    await creating
    assert await say(late, b"4") == ["new"]
    await nodes.until_whole("new")
    for node in nodes.running.values():
        found = await values_in_order(node, 5)
        assert [value for value in found if value != b"other"] == [b"1", b"2", b"3", b"4"]
        (move,) = node.broker.streams.get("new").record.moves
        assert move.is_exact
        old = node.broker.streams.get("old")
        assert move.after == (((old.record.id, int(old.partition_of(b"a/b").id)), 3),)


async def test_a_live_reader_waits_for_the_old_home_and_goes_on(nodes: Nodes) -> None:
    await begin(nodes)
    _first, second, late = roles(nodes)
    await say(late, b"1")
    cursor = await reader(second, "a/b")
    seen: list[bytes] = []

    def read_up_to(count: int) -> bool:
        seen.extend(record.value for record in cursor.fetch(1))
        return len(seen) >= count

    await eventually(lambda: read_up_to(1), 30)
    async with adopting_nothing(late):
        creating = asyncio.create_task(make_new(nodes))
        await takes_new(second)
        await say(second, b"early")
        assert not cursor.fetch()
        await say(late, b"2")
    await creating
    await say(late, b"3")
    await eventually(lambda: read_up_to(4), 30)
    assert seen == [b"1", b"2", b"early", b"3"]


async def test_the_leader_is_asked_where_the_node_of_the_command_has_no_copy(nodes: Nodes) -> None:
    await begin(nodes, factor=1)
    partition = int(nodes[1].broker.streams.get("old").partition_of(b"a/b").id)
    leader = nodes.leader_of("old", partition)
    other = next(node for node in nodes.running.values() if node is not leader)
    await say(leader, b"1", b"2")
    await other.broker.streams.create(NEW)
    (move,) = other.broker.streams.get("new").record.moves
    old = other.broker.streams.get("old")
    assert move.after == (((old.record.id, partition), 2),)
    assert move.is_exact


async def test_a_change_is_refused_while_a_leader_does_not_answer(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C7: refused means that nothing happened."""
    await begin(nodes)
    monkeypatch.setattr("onelog.cluster.topic_moves.LED_S", 0.3)

    async def away(_questions: object, _seen: object) -> None:
        raise Unavailable("cut off")

    monkeypatch.setattr(nodes[1].cluster.topic_moves, "_words", away)
    with pytest.raises(Unavailable, match="try again"):
        await nodes[1].broker.streams.create(NEW)
    assert all(node.broker.streams.find("new") is None for node in nodes.running.values())
    await nodes[2].broker.streams.create(NEW)


async def test_what_a_command_left_open_is_settled_by_the_controllers_node(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.cluster.topic_moves.LOOK_S", 0.2)
    await begin(nodes)
    await say(nodes[1], b"1")
    settled = settling.MoveSettling.settle

    async def unable(self: settling.MoveSettling, names: object, plan: object = None) -> None:
        if plan is not None:
            raise Unavailable("this command's process ended")
        await settled(self, names)

    monkeypatch.setattr(settling.MoveSettling, "settle", unable)
    await nodes[2].broker.streams.create(NEW)
    await say(nodes[2], b"2")

    def is_settled() -> bool:
        found = [node.broker.streams.find("new") for node in nodes.running.values()]
        return all(row is not None and all(m.is_exact for m in row.record.moves) for row in found)

    await eventually(is_settled, 60)
    assert await values_in_order(nodes[3], 2) == [b"1", b"2"]


async def test_a_stream_of_one_topic_that_captures_more_keeps_the_topic_of_every_record(
    nodes: Nodes,
) -> None:
    """A node that does not know the change yet writes records without their topic."""
    await nodes.start(1, 2, 3)
    first = StreamConfig(name="one", captures=("a/b",), partitions=1, durability=Durability.OS)
    await nodes[1].broker.streams.create(first)
    await nodes.until_whole("one")
    first_node, other, late = roles(nodes)
    await say(late, b"1")
    wider = msgspec.structs.replace(first, captures=("a/b", "c"))
    async with adopting_nothing(late):
        altering = asyncio.create_task(first_node.broker.streams.alter(wider))
        await eventually(lambda: other.broker.streams.get("one").record.fixed_until is not None)
        await say(other, b"other")
        await say(late, b"2")
    await altering
    await say(late, b"3")
    await nodes.until_whole("one")
    for node in nodes.running.values():
        found = await values_in_order(node, 4)
        assert [value for value in found if value != b"other"] == [b"1", b"2", b"3"]


async def test_a_topic_that_nobody_had_written_makes_no_move(nodes: Nodes) -> None:
    await begin(nodes)
    await nodes[2].broker.streams.create(NEW)
    record = nodes[2].broker.streams.get("new").record
    assert record.moves == ()
    assert record.fixed_topic == "a/b"


async def test_a_grown_stream_keeps_the_order_of_topics_that_go_to_new_partitions(
    nodes: Nodes,
) -> None:
    await begin(nodes)
    topics = [f"a/{number}" for number in range(8)]
    first, other, late = roles(nodes)
    for topic in topics:
        await late.broker.publish(Message(topic, b"1"), principal=LOCAL)
    grown = msgspec.structs.replace(OLD, partitions=4, replication=Replication(factor=3))
    async with adopting_nothing(late):
        altering = asyncio.create_task(first.broker.streams.alter(grown))
        await eventually(lambda: len(other.broker.streams.get("old").partitions) == 4)
        for topic in topics:
            await late.broker.publish(Message(topic, b"2"), principal=LOCAL)
    await altering
    for topic in topics:
        await late.broker.publish(Message(topic, b"3"), principal=LOCAL)
    await nodes.until_whole("old")
    for node in nodes.running.values():
        cursor = await reader(node, "a/#")
        seen: dict[str, list[bytes]] = {}

        def read(cursor=cursor, seen=seen) -> bool:
            for record in cursor.fetch(1):
                seen.setdefault(record.topic, []).append(record.value)
            return sum(map(len, seen.values())) >= 3 * len(topics)

        await eventually(read, 30)
        assert seen == {topic: [b"1", b"2", b"3"] for topic in topics}


async def test_captures_and_partitions_do_not_change_at_once(nodes: Nodes) -> None:
    await begin(nodes)
    both = msgspec.structs.replace(
        OLD, captures=("a/#", "b"), partitions=4, replication=Replication(factor=3)
    )
    with pytest.raises(OnelogError, match="one after the other"):
        await nodes[1].broker.streams.alter(both)
