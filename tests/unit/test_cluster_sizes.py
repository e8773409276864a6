"""Do the replicas of a stream become as many as it asks for, and do copies compact what they
hold?"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from onelog.base.errors import InvalidRequest
from onelog.broker import LOCAL, Cleanup, Compaction, Durability, Replication, StreamConfig
from onelog.record.batch import iterate_batches
from onelog.record.record import Message
from tests.batches import read_all
from tests.support.cluster_nodes import Nodes, OneNode, eventually


def config(name: str, partitions: int, **settings) -> StreamConfig:
    return StreamConfig(
        name=name, captures=(name,), partitions=partitions, durability=Durability.OS, **settings
    )


def rows(nodes: Nodes, stream: str):
    node = next(iter(nodes.running.values()))
    found = node.broker.streams.get(stream)
    return [node.cluster.known.row(found.key(part.id))[0] for part in found.partitions]


async def resize(nodes: Nodes, stream: str, factor: int) -> None:
    node = nodes[1]
    old = node.broker.streams.get(stream).config
    await node.broker.streams.alter(
        msgspec.structs.replace(old, replication=Replication(factor=factor))
    )


async def test_replicas_of_a_stream_grow_and_shrink_while_it_is_written(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    made = await nodes[1].broker.streams.create(
        config("orders", 3, replication=Replication(factor=1))
    )
    await nodes.until_whole("orders")
    written = 0
    for factor in (3, 2, 1, 3):
        stop = asyncio.Event()

        async def write(stop: asyncio.Event = stop) -> int:
            count = 0
            while not stop.is_set():
                for partition in range(3):
                    leader = nodes.leader_of("orders", partition)
                    message = Message("orders", b"%d" % count)
                    try:
                        await leader.broker.publish_many(
                            [message], principal=LOCAL, partition=partition
                        )
                    except Exception as error:  # noqa: BLE001 - an election refuses for a moment
                        assert type(error).__name__ in {"NotLeader", "Timeout"}, error
                    else:
                        count += 1
                await asyncio.sleep(0)
            return count

        writing = asyncio.create_task(write())
        await resize(nodes, "orders", factor)
        await eventually(
            lambda factor=factor: all(
                len(row.replicas) == len(row.isr) == factor and row.factor == factor
                for row in rows(nodes, "orders")
            )
        )
        stop.set()
        written += await writing
        insync = 2 if factor == 3 else 1
        await eventually(
            lambda insync=insync: all(row.min_insync == insync for row in rows(nodes, "orders"))
        )
        await nodes.until_whole("orders")
    ends = []
    for partition in range(3):
        held = [
            node.broker.streams.get("orders").partitions[partition]
            for node in nodes.running.values()
        ]
        await eventually(lambda held=held: len({row.high_watermark for row in held}) == 1)
        ends.append(held[0].high_watermark)
        found = {
            read_all(node.broker.streams.get("orders").local[partition].log)
            for node in nodes.running.values()
        }
        assert len(found) == 1
    assert sum(ends) >= written > 0, "an answered record is missing"
    assert made.name == "orders"


async def test_more_replicas_than_nodes_are_refused_and_a_move_is_no_wish(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    await nodes[1].broker.streams.create(config("orders", 1))
    await nodes.until_whole("orders")
    with pytest.raises(InvalidRequest, match="4 replicas need as many nodes"):
        await resize(nodes, "orders", 4)
    await resize(nodes, "orders", 2)
    await eventually(lambda: len(rows(nodes, "orders")[0].isr) == 2)
    (row,) = rows(nodes, "orders")
    everywhere = (*row.replicas, *({1, 2, 3} - set(row.replicas)))
    stream = nodes[1].broker.streams.get("orders")
    await nodes[1].cluster.known.reassign(stream.record.id, 0, everywhere)
    await eventually(lambda: len(rows(nodes, "orders")[0].isr) == 3)
    await asyncio.sleep(0.3)  # a controller that undid it would have begun
    (row,) = rows(nodes, "orders")
    assert (row.replicas, row.removing) == (everywhere, ())


# -- compaction


SMALL = 4096
COMPACTED = Compaction(min_dirty_ratio=0.01)


def size_of(node: OneNode) -> int:
    return node.broker.streams.get("kv").local[0].log.size_bytes


async def fill(nodes: Nodes, rounds: int) -> dict[bytes, bytes]:
    expected = {}
    for number in range(rounds):
        leader = nodes.leader_of("kv", 0)
        messages = []
        for key in range(8):
            expected[b"k%d" % key] = value = b"%d" % number * 40
            messages.append(Message("kv", value, key=b"k%d" % key))
        await leader.broker.publish_many(messages, principal=LOCAL, partition=0)
    return expected


def table_of(node: OneNode) -> dict[bytes, bytes]:
    found = {}
    for _info, slices in iterate_batches(read_all(node.broker.streams.get("kv").local[0].log)):
        for index in range(len(slices)):
            _offset, _time, key, value, _headers = slices.record(index)
            found[key] = value
    return found


async def test_copies_compact_as_far_as_their_leader_lets_them(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    await nodes[1].broker.streams.create(
        config("kv", 1, cleanup=Cleanup.COMPACT, segment_bytes=SMALL, compaction=COMPACTED)
    )
    await nodes.until_whole("kv")
    expected = await fill(nodes, 60)
    leader = nodes.leader_of("kv", 0)
    copies = [node for node in nodes.running.values() if node is not leader]
    held = [node.broker.streams.get("kv").partitions[0] for node in nodes.running.values()]
    await eventually(lambda: len({row.high_watermark for row in held}) == 1)
    full = [size_of(node) for node in copies]
    for node in copies:
        await node.broker.maintenance.compact_once()
    assert [size_of(node) for node in copies] == full, "nobody let them"
    await leader.broker.maintenance.compact_once()
    bound = held[0].high_watermark
    locals_ = [node.broker.streams.get("kv").local[0] for node in copies]
    await eventually(lambda: all(row.progress.compact_bound == bound for row in locals_))
    for node in copies:
        await node.broker.maintenance.compact_once()
    assert all(size_of(node) < before / 4 for node, before in zip(copies, full, strict=True))
    assert all(table_of(node) == expected for node in nodes.running.values())
    # A copy that was compacted leads, and others go on with it.
    await nodes.stop(leader.number)
    await eventually(lambda: any(0 in node.leads("kv") for node in copies))
    expected |= await fill(nodes, 3)
    held = [node.broker.streams.get("kv").partitions[0] for node in copies]
    await eventually(lambda: len({row.high_watermark for row in held}) == 1)
    assert all(table_of(node) == expected for node in copies)
