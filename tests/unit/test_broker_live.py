"""The live feed: each listener has its own positions, and sees every record once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from onelog.base.errors import PartitionStopped
from onelog.broker import LOCAL, Broker, Durability, LiveSource, Message, Record, StreamConfig
from onelog.kernel import scan_batches
from onelog.log.partition import Partition
from onelog.record.batch import Marker, build_batch
from tests.support.brokers import (
    FAST,
    client_batch,
    end,
    home_of,
    put_batch,
    running,
    say,
    transaction,
)


class Follower:
    """Takes plain batches, or leaves everything to the log."""

    def __init__(self, broker: Broker, *, takes: bool) -> None:
        self.takes = takes
        self.seen: list[tuple[str, int]] = []
        self.singly = 0
        """Records that came by themselves, and not in batches."""
        self.live = broker.new_live("test")
        self.live.start(self)

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        position = source.position
        for info in scan_batches(data):
            if not self.takes or info.attributes:
                return position
            for offset in range(info.base_offset, info.last_offset + 1):
                self.seen.append((source.stream.name, offset))
            position = info.last_offset + 1
        return position

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        self.singly += len(records)
        self.seen += [(source.stream.name, record.offset) for record in records]

    def release(self, numbers: set[int]) -> set[int]:
        del numbers
        return set()


async def test_two_listeners_see_every_record_once_each_in_its_own_way(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("a/#", "$x/#")))
        fast, slow = Follower(broker, takes=True), Follower(broker, takes=False)
        for topic in ("a/b", "$x/logs/a"):
            await broker.publish(Message(topic, b"1"), principal=LOCAL)
        data = bytearray(build_batch([(None, b"$x/c", b"2", (), 0)], codec=1))
        await put_batch(broker, broker.streams.get("s"), 0, data)
        assert fast.seen == [("s", 0), ("s", 1), ("s", 2)]
        assert slow.seen == fast.seen


SLOW = msgspec.structs.replace(
    FAST, main=msgspec.structs.replace(FAST.main, durability=Durability.FSYNC)
)


def hold_back(partition: Partition) -> None:
    """Let its syncs take until `let_go`."""
    assert not partition.syncing
    partition.syncing = True


def let_go(partition: Partition) -> None:
    partition._synced((partition.end_offset, True), None)


@pytest.mark.parametrize("takes", [True, False])
async def test_what_moved_is_handed_out_after_what_its_old_home_made_visible_later(
    tmp_path: Path, *, takes: bool
) -> None:
    """I5: the disk of the old home is slower than the new one."""
    async with running(tmp_path, SLOW) as broker:
        follower = Follower(broker, takes=takes)
        _stream, old = home_of(broker, "a/b")
        hold_back(old)
        for number in range(3):
            broker.publisher.publish([Message("a/b", b"%d" % number)], None, principal=LOCAL)
        new = StreamConfig(name="moved", captures=("a/b", "c"), durability=Durability.OS)
        await broker.streams.create(new)
        await say(broker, "a/b", "3", "4")
        assert follower.seen == []
        await say(broker, "a/b", "5")
        let_go(old)
        await say(broker, "a/b", "6")
        await say(broker, "c", "7")
        assert follower.seen == [
            *(("main", number) for number in range(3)),
            *(("moved", number) for number in range(5)),
        ]


async def test_a_stream_that_takes_over_hands_out_its_own_until_then_without_waiting(
    tmp_path: Path,
) -> None:
    """I5: only what came after the move waits; and so does what waits for that."""
    async with running(tmp_path, SLOW) as broker:
        one = StreamConfig(name="one", captures=("x",), durability=Durability.OS)
        two = StreamConfig(name="two", captures=("y",), durability=Durability.OS)
        await broker.streams.create(one)
        await broker.streams.create(two)
        follower = Follower(broker, takes=True)
        _stream, old = home_of(broker, "a/b")
        hold_back(old)
        broker.publisher.publish([Message("a/b", b"0")], None, principal=LOCAL)
        await say(broker, "x", "own")
        await broker.streams.alter(msgspec.structs.replace(one, captures=("x", "a/b")))
        await say(broker, "a/b", "1")
        await broker.streams.alter(one)
        await broker.streams.alter(msgspec.structs.replace(two, captures=("y", "a/b")))
        await say(broker, "a/b", "2")
        assert follower.seen == [("one", 0)]
        let_go(old)
        assert follower.seen == [("one", 0), ("main", 0), ("one", 1), ("two", 0)]


async def test_what_moved_is_handed_out_when_a_transaction_in_the_old_home_is_decided(
    tmp_path: Path,
) -> None:
    """I5."""
    async with running(tmp_path) as broker:
        follower = Follower(broker, takes=True)
        old = await transaction(broker, "a/b", (3, 0, 0), "first")
        await broker.streams.create(StreamConfig(name="moved", captures=("a/b",)))
        await say(broker, "a/b", "second")
        assert follower.seen == []
        end(old, 3, Marker.COMMIT)
        assert follower.seen == [("main", 0), ("moved", 0)]


async def test_an_old_home_that_stops_does_not_silence_the_new_one(tmp_path: Path) -> None:
    """I9."""
    async with running(tmp_path, SLOW) as broker:
        follower = Follower(broker, takes=True)
        _stream, old = home_of(broker, "a/b")
        hold_back(old)
        broker.publisher.publish([Message("a/b", b"0")], None, principal=LOCAL)
        new = StreamConfig(name="moved", captures=("a/b",), durability=Durability.OS)
        await broker.streams.create(new)
        await say(broker, "a/b", "1")
        old.stop(PartitionStopped("it broke"))
        await say(broker, "a/b", "2")
        assert follower.seen == [("moved", 0), ("moved", 1)]


async def test_a_large_transaction_is_handed_out_in_pieces_and_as_batches(tmp_path: Path) -> None:
    """A commit of many records holds no pass of the loop: others have their turn in between."""
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("s",)))
        stream, partition = home_of(broker, "s")
        follower = Follower(broker, takes=True)
        rows = [(None, None, bytes(1000), (), 0)] * 1000
        for number in range(8):
            data = client_batch(rows, producer=(3, 0, 1000 * number), transactional=True)
            await put_batch(broker, stream, 0, data)
        end(partition, 3, Marker.COMMIT)
        behind = asyncio.create_task(say(broker, "s", "behind it"))
        seen = [len(follower.seen)]
        for _pass in range(100_000):
            await asyncio.sleep(0)
            seen.append(len(follower.seen))
            if seen[-1] > 8000:
                break
        await behind
        assert [offset for _name, offset in follower.seen] == [*range(8000), 8001]
        assert max(now - before for before, now in pairwise(seen)) <= 2000
        assert follower.singly == 0


async def test_a_feed_that_leaves_while_it_catches_up_stays_silent(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("s",)))
        stream, partition = home_of(broker, "s")
        follower = Follower(broker, takes=False)
        for number in range(8):
            rows = [(None, None, bytes(1000), (), 0)] * 1000
            data = client_batch(rows, producer=(3, 0, 1000 * number), transactional=True)
            await put_batch(broker, stream, 0, data)
        end(partition, 3, Marker.COMMIT)
        for _pass in range(100_000):
            await asyncio.sleep(0)
            if follower.seen:
                break
        seen = len(follower.seen)
        assert seen < 8000
        follower.live.stop()
        for _pass in range(20):
            await asyncio.sleep(0)
        assert len(follower.seen) == seen
