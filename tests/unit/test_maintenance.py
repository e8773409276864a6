"""Maintenance: every partition gets what it needs, and one that fails takes nobody along."""

import asyncio
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onelog.base.errors import PartitionCorrupt, StorageError
from onelog.base.ids import Offset
from onelog.log.config import Cleanup, Compaction, Retention, StreamConfig
from onelog.log.maintenance import PRODUCER_SILENCE_MS, Maintenance
from onelog.log.partition import Durability, Partition
from onelog.log.stream import Stream
from onelog.log.visits import Pins
from onelog.storage.engine import PartitionLog, SegmentInfo
from tests.logs import Node, held, offsets, put, row

HOUR_MS = 3600 * 1000
AGED = StreamConfig(
    name="aged",
    partitions=2,
    engine="memory",
    durability=Durability.OS,
    retention=Retention(age_ms=HOUR_MS),
)
COMPACTED = StreamConfig(
    name="compacted",
    engine="memory",
    durability=Durability.OS,
    retention=Retention(age_ms=HOUR_MS),
    cleanup=Cleanup.COMPACT,
    compaction=Compaction(tombstone_ms=HOUR_MS),
)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    await node.start()
    yield node
    await node.stop()


def no_pin(_stream: str, _partition: int) -> Offset | None:
    return None


def maintenance(node: Node, pins: Pins = no_pin, **timers: float) -> Maintenance:
    return Maintenance(node.catalog, node.syncer, node.clock, pins, **timers)


def write(node: Node, partition: Partition, *keys: bytes) -> None:
    for key in keys:
        put(partition, row(key, b"v%d" % partition.end_offset, node.clock.now_ms()))


def change(config: StreamConfig, **fields: Any) -> StreamConfig:
    return msgspec.structs.replace(config, **fields)


# -- retention


@pytest.mark.parametrize("engine", ["memory", "segment"])
async def test_old_records_leave_an_idle_partition_too(engine: str, node: Node) -> None:
    """The active segment is rolled when everything in it is too old, then it goes."""
    stream = await node.catalog.create(change(AGED, engine=engine))
    keeper = maintenance(node)
    write(node, stream.partitions[0], b"a", b"b")
    await keeper.run_once()
    assert stream.partitions[0].start_offset == 0
    node.clock.advance(HOUR_MS / 1000 + 1)
    write(node, stream.partitions[1], b"young")
    await keeper.run_once()
    assert stream.partitions[0].start_offset == stream.partitions[0].end_offset == 2
    assert stream.partitions[1].start_offset == 0
    counters = keeper.counters
    assert (counters.runs, counters.segments_rolled, counters.segments_deleted) == (2, 1, 1)
    assert counters.bytes_deleted > 0
    assert counters.errors == 0
    write(node, stream.partitions[0], b"c")
    assert offsets(held(stream.partitions[0].log)) == [2]


async def test_a_segment_of_its_full_age_is_sealed_though_nothing_is_deleted(node: Node) -> None:
    config = change(AGED, retention=Retention(age_ms=-1), segment_age_ms=HOUR_MS)
    stream = await node.catalog.create(config)
    write(node, stream.partitions[0], b"a")
    node.clock.advance(HOUR_MS / 1000)
    keeper = maintenance(node)
    await keeper.run_once()
    await keeper.run_once()
    assert keeper.counters.segments_rolled == 1
    assert len(stream.partitions[0].log.segments()) == 2
    assert offsets(held(stream.partitions[0].log)) == [0]


async def test_a_wall_clock_that_jumps_backwards_deletes_and_rolls_nothing(node: Node) -> None:
    stream = await node.catalog.create(AGED)
    write(node, stream.partitions[0], b"a")
    stream.partitions[0].log.roll()
    write(node, stream.partitions[0], b"b")
    node.clock.set_wall_ms(1000)
    keeper = maintenance(node)
    await keeper.run_once()
    assert (keeper.counters.segments_deleted, keeper.counters.segments_rolled) == (0, 0)
    assert offsets(held(stream.partitions[0].log)) == [0, 1]


async def test_pinned_records_stay_until_the_quota_and_then_an_alarm_is_raised(
    node: Node,
) -> None:
    stream = await node.catalog.create(change(AGED, partitions=1))
    partition = stream.partitions[0]
    for _ in range(3):
        write(node, partition, b"a")
        partition.log.roll()
    asked: list[tuple[str, int]] = []

    def pins(name: str, number: int) -> Offset | None:
        asked.append((name, number))
        return Offset(1)

    keeper = maintenance(node, pins)
    node.clock.advance(2 * HOUR_MS / 1000)
    await keeper.run_once()
    assert asked == [("aged", 0)]
    assert partition.start_offset == 1
    assert keeper.pinned_bytes[("aged", 0)] > 0
    assert keeper.counters.alarms == 0
    retention = Retention(age_ms=HOUR_MS, pin_bytes_max=0)
    await node.catalog.alter(change(stream.config, retention=retention))
    await keeper.run_once()
    assert partition.start_offset == 3
    assert keeper.counters.alarms == 1
    assert keeper.over_quota == {("aged", 0)}
    await keeper.run_once()
    assert keeper.over_quota == set()
    assert keeper.pinned_bytes == {}


async def test_consumed_records_leave_when_every_durable_cursor_passed_them(node: Node) -> None:
    retention = Retention(age_ms=-1, consumed=True)
    stream = await node.catalog.create(change(AGED, partitions=1, retention=retention))
    partition = stream.partitions[0]
    for _ in range(3):
        write(node, partition, b"a")
        partition.log.roll()
    pin: Offset | None = None
    keeper = maintenance(node, lambda _stream, _partition: pin)
    await keeper.run_once()
    assert partition.start_offset == 0
    pin = Offset(2)
    await keeper.run_once()
    assert partition.start_offset == 2


# -- compaction


async def test_dirty_partitions_of_compacted_streams_are_compacted(node: Node) -> None:
    stream = await node.catalog.create(COMPACTED)
    partition = stream.partitions[0]
    write(node, partition, b"a", b"b", b"a", b"b")
    partition.log.roll()
    keeper = maintenance(node)
    await keeper.run_once()
    assert offsets(held(partition.log)) == [2, 3]
    counters = keeper.counters
    assert (counters.compactions, counters.records_compacted) == (1, 2)
    assert counters.bytes_compacted > 0
    await keeper.run_once()
    assert counters.compactions == 1  # nothing new


async def test_compaction_waits_for_the_dirty_ratio(node: Node) -> None:
    stream = await node.catalog.create(COMPACTED)
    partition = stream.partitions[0]
    write(node, partition, *(b"k%d" % number for number in range(10)))
    partition.log.roll()
    keeper = maintenance(node)
    await keeper.run_once()
    write(node, partition, b"k0", b"k1")
    partition.log.roll()
    await keeper.run_once()
    assert keeper.counters.compactions == 1
    write(node, partition, *(b"k%d" % number for number in range(10)))
    partition.log.roll()
    await keeper.run_once()
    assert keeper.counters.compactions == 2
    assert offsets(held(partition.log)) == list(range(12, 22))


async def test_each_cleanup_does_only_what_it_says(node: Node) -> None:
    streams = {
        cleanup: await node.catalog.create(
            change(COMPACTED, name=cleanup.name.lower(), cleanup=cleanup)
        )
        for cleanup in Cleanup
    }
    for stream in streams.values():
        write(node, stream.partitions[0], b"a", b"a")
        stream.partitions[0].log.roll()
    keeper = maintenance(node)
    await keeper.run_once()
    found = {cleanup: offsets(held(streams[cleanup].partitions[0].log)) for cleanup in Cleanup}
    assert found == {
        Cleanup.DELETE: [0, 1],
        Cleanup.COMPACT: [1],
        Cleanup.COMPACT_DELETE: [1],
        Cleanup.NONE: [0, 1],
    }
    node.clock.advance(2 * HOUR_MS / 1000)
    await keeper.run_once()
    found = {cleanup: offsets(held(streams[cleanup].partitions[0].log)) for cleanup in Cleanup}
    assert found == {
        Cleanup.DELETE: [],
        Cleanup.COMPACT: [1],
        Cleanup.COMPACT_DELETE: [],
        Cleanup.NONE: [0, 1],
    }


class SlowLog:
    """A real log whose reads wait for the test, once."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.reading = threading.Event()
        self.gate = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        self.reading.set()
        assert self.gate.wait(10)
        return self._log.read(offset, max_bytes, upto)


async def slow_compaction(node: Node) -> tuple[Partition, SlowLog]:
    stream = await node.catalog.create(COMPACTED)
    partition = stream.partitions[0]
    write(node, partition, b"a", b"a")
    partition.log.roll()
    slow = SlowLog(partition.log)
    partition.log = slow
    return partition, slow


async def test_stop_ends_a_running_compaction_and_waits_for_it(node: Node) -> None:
    partition, slow = await slow_compaction(node)
    keeper = maintenance(node, interval_s=0.001)
    keeper.start()
    assert await asyncio.to_thread(slow.reading.wait, 10)
    stopping = asyncio.create_task(keeper.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    slow.gate.set()
    await asyncio.wait_for(stopping, 10)
    assert (keeper.counters.compactions, keeper.counters.errors) == (0, 0)
    assert offsets(held(partition.log)) == [0, 1]
    await keeper.stop()


async def test_retention_goes_on_while_a_compaction_runs(node: Node) -> None:
    _, slow = await slow_compaction(node)
    aged = await node.catalog.create(AGED)
    write(node, aged.partitions[0], b"a")
    keeper = maintenance(node)
    compacting = asyncio.create_task(keeper.compact_once())
    assert await asyncio.to_thread(slow.reading.wait, 10)
    node.clock.advance(2 * HOUR_MS / 1000)
    await asyncio.wait_for(keeper.retain_once(), 10)
    assert aged.partitions[0].start_offset == 1
    slow.gate.set()
    await compacting
    assert keeper.counters.compactions == 1


async def test_a_stream_deleted_during_its_compaction_is_no_error(node: Node) -> None:
    _, slow = await slow_compaction(node)
    keeper = maintenance(node)
    compacting = asyncio.create_task(keeper.compact_once())
    assert await asyncio.to_thread(slow.reading.wait, 10)
    deleting = asyncio.create_task(node.catalog.delete("compacted"))
    await deleting
    slow.gate.set()
    await compacting
    assert (keeper.counters.compactions, keeper.counters.errors) == (0, 0)


# -- producers and flush


async def test_producers_silent_for_a_week_are_forgotten(node: Node) -> None:
    stream = await node.catalog.create(change(AGED, retention=Retention(age_ms=-1)))
    partition = stream.partitions[0]
    put(partition, row(b"k", b"v", 5), producer=(1, 0, 0))  # its own clock says 1970
    keeper = maintenance(node)
    await keeper.run_once()
    assert len(partition.producers) == 1
    node.clock.advance(PRODUCER_SILENCE_MS / 1000 + 1)
    put(partition, row(b"k", b"v"), producer=(2, 0, 0))
    await keeper.run_once()
    assert [entry.producer_id for entry in partition.producers.entries()] == [2]
    assert keeper.counters.producers_expired == 1


async def test_the_flush_syncs_what_does_not_sync_by_itself(tmp_path: Path) -> None:
    node = Node(tmp_path, threads=1)
    await node.start()
    lazy = await node.catalog.create(change(AGED, engine="segment", partitions=10))
    eager = await node.catalog.create(
        change(AGED, name="eager", engine="segment", durability=Durability.FSYNC)
    )
    for partition in lazy.partitions[:9]:
        write(node, partition, b"a")
    write(node, eager.partitions[0], b"a")
    await eager.partitions[0].wait_visible(Offset(0))
    keeper = maintenance(node)
    await keeper.flush_once()
    await node.syncer.run(lambda: None)  # the one thread has done what came before
    assert [one.log.durable_offset for one in lazy.partitions] == [1] * 9 + [0]
    assert (lazy.partitions[9].syncs, eager.partitions[0].syncs) == (0, 1)
    await keeper.flush_once()
    assert [one.syncs for one in lazy.partitions] == [1] * 9 + [0]
    await node.stop()


# -- errors


class BrokenLog:
    """A real log that cannot say what it holds."""

    def __init__(self, log: PartitionLog, error: Exception) -> None:
        self._log = log
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def segments(self) -> list[SegmentInfo]:
        raise self._error


async def two_old_partitions(node: Node) -> Stream:
    stream = await node.catalog.create(AGED)
    for partition in stream.partitions:
        write(node, partition, b"a")
    node.clock.advance(2 * HOUR_MS / 1000)
    return stream


async def test_one_partitions_error_does_not_stop_the_others(node: Node) -> None:
    stream = await two_old_partitions(node)
    bad, good = stream.partitions
    bad.log = BrokenLog(bad.log, StorageError("the disk is slow today"))
    keeper = maintenance(node)
    await keeper.run_once()
    assert (bad.start_offset, good.start_offset) == (0, 1)
    assert keeper.counters.errors == 1
    assert bad.stopped is None


async def test_damage_found_by_maintenance_stops_that_partition(node: Node) -> None:
    """I9."""
    stream = await two_old_partitions(node)
    bad, good = stream.partitions
    damage = PartitionCorrupt("damaged")
    bad.log = BrokenLog(bad.log, damage)
    keeper = maintenance(node)
    await keeper.run_once()
    assert bad.stopped is damage
    assert good.start_offset == 1
    await keeper.run_once()
    assert keeper.counters.errors == 1  # a stopped partition is left alone


async def test_damaged_records_found_by_compaction_stop_the_partition(node: Node) -> None:
    """I9: compaction writes new checksums, so it must not pass damage on."""
    stream = await node.catalog.create(change(COMPACTED, engine="segment"))
    partition = stream.partitions[0]
    put(partition, row(b"a", b"precious"), row(b"a", b"precious"))
    partition.log.roll()
    await partition.flush()
    (path,) = [
        path
        for path in (node.directory / "segment").rglob("*.log")
        if b"precious" in path.read_bytes()
    ]
    with path.open("r+b") as file:
        file.write(path.read_bytes().replace(b"precious", b"prec1ous"))
    keeper = maintenance(node)
    await keeper.run_once()
    assert isinstance(partition.stopped, PartitionCorrupt)
    assert keeper.counters.errors == 1


async def test_pins_that_cannot_be_looked_up_hold_everything_back(node: Node) -> None:
    stream = await two_old_partitions(node)

    def pins(_stream: str, partition: int) -> Offset | None:
        if partition == 0:
            raise StorageError("cursors are not loaded yet")
        return None

    keeper = maintenance(node, pins)
    await keeper.run_once()
    assert [partition.start_offset for partition in stream.partitions] == [0, 1]
    assert keeper.counters.errors == 1


async def test_nothing_leaves_of_which_other_nodes_have_not_said_what_they_need(
    node: Node,
) -> None:
    stream = await two_old_partitions(node)
    keeper = maintenance(node)
    keeper.visits.spoken_for = lambda _stream, partition: Offset(partition)
    await keeper.run_once()
    assert [partition.start_offset for partition in stream.partitions] == [0, 1]
    keeper.visits.spoken_for = lambda _stream, _partition: None
    await keeper.run_once()
    assert [partition.start_offset for partition in stream.partitions] == [1, 1]


# -- the task


async def test_the_timers_run_until_stop(node: Node) -> None:
    stream = await node.catalog.create(change(AGED, engine="segment"))
    write(node, stream.partitions[0], b"a")
    runs = asyncio.Queue[int]()

    def pins(_stream: str, partition: int) -> Offset | None:
        runs.put_nowait(partition)
        return None

    keeper = maintenance(node, pins, interval_s=0.001, flush_interval_s=0.001)
    keeper.start()
    async with asyncio.timeout(10):
        for _ in range(6):
            await runs.get()
        while stream.partitions[0].log.durable_offset == 0:
            await runs.get()
    await keeper.stop()
    assert keeper.counters.runs >= 2
    before = keeper.counters.runs
    await asyncio.sleep(0)
    assert keeper.counters.runs == before
    assert keeper.counters.errors == 0


async def test_a_pass_over_many_partitions_lets_the_loop_run_in_between(node: Node) -> None:
    """The loop gets its turn every few dozen partitions, whatever their number."""
    await node.catalog.create(change(AGED, partitions=1000))
    seen_at_turn: list[int] = []
    visited = 0

    def pins(_stream: str, _partition: int) -> Offset | None:
        nonlocal visited
        visited += 1
        return None

    async def other_work() -> None:
        while True:
            seen_at_turn.append(visited)
            await asyncio.sleep(0)

    keeper = maintenance(node, pins)
    work = asyncio.create_task(other_work())
    await keeper.run_once()
    work.cancel()
    assert visited == 1000
    steps = [after - before for before, after in pairwise(seen_at_turn)]
    assert max(steps) <= 64
