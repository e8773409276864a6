"""What becomes visible is told to everybody, in order, whoever raises and however slow the disk."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import OnelogError, PartitionStopped
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import scan_batches
from onelog.log.partition import Durability, LiveFeed, Partition
from onelog.log.shared import Shared
from onelog.log.syncer import Syncer
from onelog.log.visibility import FEED, WAITER
from onelog.observe.troubles import Troubles
from onelog.storage.engine import LogSettings, PartitionLog
from onelog.storage.segment import SegmentEngine
from tests.logs import KEY, GatedLog, make_partition, memory_log, put, row


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gated(clock: ManualClock) -> GatedLog:
    return GatedLog(memory_log(clock))


async def synced(log: GatedLog, until: Callable[[], bool]) -> None:
    """Let syncs through until something holds; what is fed may come passes after the last sync."""
    async with asyncio.timeout(10):
        while not until():
            log.gate.release()
            await asyncio.sleep(0.001)
    while log.gate.acquire(blocking=False):
        pass  # the next sync waits again


def collector(found: list[int]) -> LiveFeed:
    """A feed that notes every offset that it gets."""

    def feed(data: bytes | bytearray) -> None:
        for info in scan_batches(data):
            found.extend(range(info.base_offset, info.last_offset + 1))

    return feed


def broken(_data: bytes | bytearray) -> None:
    raise ValueError("a poisoned record")


def bounded(
    log: PartitionLog | GatedLog, syncer: Syncer, clock: ManualClock, limit: int
) -> tuple[Partition, Shared]:
    """A partition of durability fsync that holds few bytes for its feeds."""
    shared = Shared(syncer, clock, Troubles(clock))
    shared.unseen.limit = limit
    made = Partition(
        "s",
        PartitionId(0),
        log,  # type: ignore[arg-type]
        durability=Durability.FSYNC,
        message_bytes_max=1 << 20,
        shared=shared,
    )
    return made, shared


# -- who raises is isolated


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
async def test_a_feed_that_raises_gets_the_next_and_nobody_else_notices(
    durability: Durability, syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock, durability)
    calls, good = list[int](), list[int]()

    def poisoned(data: bytes | bytearray) -> None:
        calls.append(scan_batches(data)[0].base_offset)
        raise ValueError("a poisoned record")

    partition.follow(poisoned)
    partition.follow(collector(good))
    for number in range(3):
        placed = put(partition, row(b"k", b"v"))  # who writes does not notice
        assert placed.base_offset == number
        await asyncio.wait_for(partition.wait_visible(placed.base_offset), 10)
    assert good == calls == [0, 1, 2]
    assert partition.high_watermark == partition.end_offset == 3
    assert partition.troubles.count(FEED) == 3
    (trouble,) = partition.troubles.rows()
    assert (trouble.place, trouble.error) == ("s/0", "ValueError: a poisoned record")


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
async def test_a_waiter_that_raises_keeps_nobody_from_being_told_and_the_next_sync_runs(
    durability: Durability, syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock, durability)
    told: list[OnelogError | None] = []
    fed: list[int] = []

    def raises(_error: OnelogError | None) -> None:
        raise KeyError("gone")

    for offset in (0, 1):
        partition.when_visible(Offset(offset), raises)
        partition.when_visible(Offset(offset), told.append)
        partition.when_stable(Offset(offset), raises)
        partition.when_stable(Offset(offset), told.append)
    partition.follow(collector(fed))
    for number in range(2):
        placed = put(partition, row(b"k", b"v"))
        await asyncio.wait_for(partition.wait_visible(placed.base_offset), 10)
        assert len(told) == 2 * (number + 1)
    assert fed == [0, 1]
    assert partition.troubles.count(WAITER) == 4
    assert partition.visible.waiting == 0


async def test_when_a_partition_stops_a_waiter_that_raises_keeps_nobody_in_the_dark(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    told: list[OnelogError | None] = []

    def raises(_error: OnelogError | None) -> None:
        raise KeyError("gone")

    partition.when_visible(Offset(0), raises)
    partition.when_visible(Offset(0), told.append)
    partition.when_stable(Offset(0), told.append)
    stop = PartitionStopped("the disk is broken")
    partition.stop(stop)
    assert told == [stop, stop]
    assert partition.troubles.count(WAITER) == 1


async def test_feeds_get_the_order_of_the_log_also_when_one_of_them_writes(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    first, second = list[int](), list[int]()
    note = collector(first)

    def writes(data: bytes | bytearray) -> None:
        note(data)
        if partition.end_offset < 5:
            put(partition, row(b"k", b"v"))

    partition.follow(writes)
    partition.follow(collector(second))
    put(partition, row(b"k", b"v"))
    assert first == second == [0, 1, 2, 3, 4]


async def test_a_feed_that_is_let_go_gets_nothing_more_though_it_is_a_bound_method(
    syncer: Syncer, clock: ManualClock
) -> None:
    class Follower:
        def __init__(self) -> None:
            self.calls = 0

        def heard(self, _data: bytes | bytearray) -> None:
            self.calls += 1

    partition, follower = make_partition(memory_log(clock), syncer, clock), Follower()
    partition.follow(follower.heard)
    put(partition, row(b"k", b"v"))
    partition.unfollow(follower.heard)
    put(partition, row(b"k", b"v"))
    assert follower.calls == 1
    assert partition.visible.feeds == ()


# -- another durability while somebody waits


@pytest.mark.parametrize("weaker", [Durability.OS, Durability.MEMORY])
async def test_who_waits_for_fsync_is_answered_when_the_stream_asks_for_less(
    weaker: Durability, gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    """The sync that runs may take as long as it likes, and nobody hangs when it is back."""
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)  # type: ignore[arg-type]
    fed: list[int] = []
    partition.follow(collector(fed))
    waiting = [partition.wait_visible(put(partition, row(b"k", b"v")).base_offset)]
    assert await asyncio.to_thread(gated.entered.acquire, timeout=10)
    waiting.append(partition.wait_visible(put(partition, row(b"k", b"v")).base_offset))
    partition.promise(weaker)
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert fed == [0, 1]
    gated.gate.release()
    placed = put(partition, row(b"k", b"v"))
    assert partition.high_watermark == placed.end_offset == 3
    assert fed == [0, 1, 2]


async def test_a_weaker_promise_does_not_show_what_a_failed_sync_may_have_lost(
    gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)  # type: ignore[arg-type]
    gated.error = PartitionStopped("the sync failed")
    waiting = partition.wait_visible(put(partition, row(b"k", b"v")).base_offset)
    gated.gate.release()
    with pytest.raises(PartitionStopped):
        await asyncio.wait_for(waiting, 10)
    partition.promise(Durability.OS)
    assert partition.high_watermark == 0


# -- a disk that stalls


async def test_what_waits_for_a_stalled_disk_is_bounded_and_fed_from_the_log_later(
    gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    partition, shared = bounded(gated, syncer, clock, 2_000)
    fed, highest = list[int](), 0
    partition.follow(collector(fed))
    partition.follow(broken)
    for _ in range(200):
        put(partition, row(b"k", b"v" * 100))
        highest = max(highest, shared.unseen.held)
    assert highest <= 2_000 + 300
    assert shared.unseen.overflows > 1
    assert fed == []
    await synced(gated, lambda: len(fed) == 200)
    assert fed == list(range(200))
    assert shared.unseen.held == 0
    await synced(gated, lambda: partition.high_watermark == 200)
    placed = put(partition, row(b"k", b"v"))
    assert shared.unseen.held > 0, "what fits is held again"
    await synced(gated, lambda: partition.high_watermark == placed.end_offset)
    assert fed == list(range(201))


async def test_who_writes_on_while_a_gap_is_read_back_comes_in_order(
    tmp_path: Path, syncer: Syncer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of one batch, writes in between, feeds that come and go."""
    monkeypatch.setattr("onelog.log.visibility.SLICE_BYTES", 1)
    engine = SegmentEngine(tmp_path, clock)
    log = GatedLog(engine.open(KEY, LogSettings(topic_index=False, segment_bytes=10_000)))
    partition, shared = bounded(log, syncer, clock, 1_000)
    fed, late = list[int](), list[int]()
    partition.follow(collector(fed))
    for _ in range(100):
        put(partition, row(b"k", b"v" * 100))
    await synced(log, lambda: len(fed) > 3)
    began = int(partition.high_watermark)
    partition.follow(collector(late))
    for _ in range(50):
        put(partition, row(b"k", b"v" * 10))
        await asyncio.sleep(0)
    await synced(log, lambda: len(fed) == 150)
    assert fed == list(range(150))
    assert late == list(range(began, 150))
    assert shared.unseen.held == 0
    log.gate.release(100)
    await partition.close()
    engine.close()


async def test_a_feed_that_comes_while_a_gap_is_read_gets_nothing_from_before(
    gated: GatedLog, syncer: Syncer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held behind the gap is visible, too, and not fed yet."""
    monkeypatch.setattr("onelog.log.visibility.SLICE_BYTES", 1)
    partition, _shared = bounded(gated, syncer, clock, 2_000)
    fed, late = list[int](), list[int]()
    partition.follow(collector(fed))
    for _ in range(20):
        put(partition, row(b"k", b"v" * 100))
    put(partition, row(b"k", b"v"))
    end = int(partition.end_offset)
    assert partition.visible.unseen
    partition.visible.advance(Offset(end))  # as the end of the sync does
    assert len(fed) < end, "one slice a pass"
    partition.follow(collector(late))
    await synced(gated, lambda: len(fed) == end)
    assert late == []
    placed = put(partition, row(b"k", b"v"))
    await synced(gated, lambda: len(fed) == placed.end_offset)
    assert late == [end]


async def test_a_feed_that_comes_during_a_sync_misses_nothing_of_it(
    gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)  # type: ignore[arg-type]
    put(partition, row(b"k", b"v"))
    assert partition.high_watermark == 0
    fed: list[int] = []
    partition.follow(collector(fed))
    put(partition, row(b"k", b"v"))
    await synced(gated, lambda: partition.high_watermark == 2)
    assert fed == [0, 1]


async def test_a_partition_that_stops_gives_back_what_it_held(
    gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    partition, shared = bounded(gated, syncer, clock, 1_000_000)
    partition.follow(broken)
    put(partition, row(b"k", b"v" * 1000))
    assert shared.unseen.held > 1000
    partition.stop(PartitionStopped("the disk is broken"))
    assert shared.unseen.held == 0
    gated.gate.release()
