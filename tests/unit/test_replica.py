"""Does a replica take what its role allows, and is what it shows never taken back?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import (
    Conflict,
    CorruptBatch,
    Fenced,
    InvalidRequest,
    NotLeader,
    OnelogError,
    PartitionCorrupt,
    Timeout,
)
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import BatchBuilder, scan_batches
from onelog.log import replica as replica_module
from onelog.log.partition import Durability, Partition
from onelog.log.progress import Role, Told
from onelog.log.shared import Shared
from onelog.log.syncer import Syncer
from onelog.observe.troubles import Troubles
from onelog.record.batch import Marker, build_batch
from onelog.storage.engine import LogSettings, PartitionLog
from onelog.storage.segment import SegmentEngine
from tests.batches import make_batch, read_all, spans
from tests.logs import KEY, GatedLog, make_partition, memory_log, put, row

NOW_MS = 1_700_000_000_000


class Fixed:
    """A leader's progress that is what the test says."""

    is_settled = True

    def __init__(self, offset: int = 0) -> None:
        self.offset = Offset(offset)

    def moved(self, written: Offset, durable: Offset) -> Offset:
        return self.offset


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def partition(syncer: Syncer, clock: ManualClock) -> Partition:
    return make_partition(memory_log(clock), syncer, clock)


def copies(*bases: int, epoch: int = 0, count: int = 1) -> bytes:
    """Batches as a leader has them."""
    made = (build_batch([row(b"k", b"%d" % base)] * count, base_offset=base) for base in bases)
    stamped = [bytearray(batch) for batch in made]
    for batch in stamped:
        batch[12:16] = epoch.to_bytes(4, "big")  # the leader's epoch lies outside the CRC
    return b"".join(stamped)


def staged() -> BatchBuilder:
    builder = BatchBuilder(False)
    builder.add(b"t", b"k", b"v", (), NOW_MS)
    return builder


def client_batch() -> bytearray:
    return bytearray(build_batch([row(b"k", b"v")]))


APPENDS: dict[str, Callable[[Partition], object]] = {
    "append_built": lambda it: it.append_built(staged(), index_topics=False),
    "check_batch": lambda it: it.check_batch(scan_batches(client_batch())[0]),
    "append_checked": lambda it: it.append_checked(client_batch()),
    "append_marker": lambda it: it.append_marker(Marker.COMMIT, 1, 0),
}


# -- roles


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.OBSERVER])
@pytest.mark.parametrize("append", sorted(APPENDS))
async def test_only_a_leader_takes_appends(partition: Partition, role: Role, append: str) -> None:
    partition.replica.become(role, 3)
    with pytest.raises(NotLeader, match="s/0"):
        APPENDS[append](partition)
    assert partition.end_offset == partition.log.end_offset == 0
    partition.replica.become(Role.LEADER, 4)
    APPENDS["append_built"](partition)
    assert partition.high_watermark == 1


async def test_an_epoch_is_noted_where_its_leader_begins_and_older_ones_are_over(
    partition: Partition,
) -> None:
    put(partition, row(b"k", b"v"))
    partition.replica.become(Role.LEADER, 5)
    assert partition.epochs.rows() == [(0, 0), (5, 1)]
    put(partition, row(b"k", b"v"))
    assert scan_batches(partition.read(Offset(1), 1))[0].leader_epoch == 5
    assert partition.epochs.rows() == [(0, 0), (5, 1)]
    for role in Role:
        with pytest.raises(Fenced):
            partition.replica.become(role, 4)
    with pytest.raises(Fenced):
        partition.replica.append_copy(copies(2), 4, Offset(0))
    with pytest.raises(InvalidRequest):
        partition.replica.append_copy(copies(2), 5, Offset(0))
    with pytest.raises(InvalidRequest):
        partition.replica.become(Role.FOLLOWER, 6, Fixed())
    assert (partition.replica.role, partition.leader_epoch) == (Role.LEADER, 5)


async def test_a_deposed_leader_says_that_it_does_not_know_and_readers_wait_on(
    partition: Partition,
) -> None:
    partition.replica.become(Role.LEADER, 1, Fixed())
    answered = partition.wait_visible(put(partition, row(b"k", b"v")).base_offset)
    told: list[OnelogError | None] = []
    partition.when_stable(Offset(0), told.append)
    partition.replica.become(Role.FOLLOWER, 2)
    with pytest.raises(Timeout):
        await answered
    assert told == []
    partition.replica.append_copy(b"", 2, Offset(1))
    assert told == [None]


# -- copies


async def test_a_follower_shows_what_its_leader_told_and_what_it_has(
    partition: Partition,
) -> None:
    """High watermark = max(own, min(told, end)); gaps and epochs stay as the leader has them."""
    partition.replica.become(Role.FOLLOWER, 7)
    fed: list[int] = []
    partition.follow(lambda data: fed.extend(first for first, _ in spans(bytes(data))))
    copy = partition.replica.append_copy
    assert copy(copies(0, 1, epoch=2), 7, Offset(0)) == 2
    assert (partition.high_watermark, fed) == (0, [])
    copy(b"", 7, Offset(1))
    assert partition.high_watermark == 1
    assert copy(copies(5, 9, epoch=7), 7, Offset(100)) == 10
    assert partition.high_watermark == 10
    copy(copies(10, epoch=7), 7, Offset(3))
    assert partition.high_watermark == 11, "it was told 100 before"
    assert fed == [0, 1, 5, 9, 10]
    assert partition.epochs.rows() == [(2, 0), (7, 5)]
    assert partition.records_appended == 5
    assert spans(read_all(partition.log)) == [(0, 0), (1, 1), (5, 5), (9, 9), (10, 10)]


async def test_a_copy_that_does_not_follow_is_refused_and_changes_nothing(
    partition: Partition,
) -> None:
    partition.replica.become(Role.FOLLOWER, 7)
    copy = partition.replica.append_copy
    copy(copies(0, 1, 2, epoch=3), 7, Offset(0))
    broken = bytearray(copies(3, epoch=3))
    broken[-1] ^= 1
    with pytest.raises(CorruptBatch):
        copy(bytes(broken), 7, Offset(3))
    for data in (copies(2, epoch=3), copies(4, 3, epoch=3)):
        with pytest.raises(InvalidRequest):
            copy(data, 7, Offset(3))
    with pytest.raises(Fenced):
        copy(copies(3, epoch=2), 7, Offset(3))
    with pytest.raises(CorruptBatch):
        copy(copies(3, epoch=8), 7, Offset(3))
    assert (partition.end_offset, partition.high_watermark) == (3, 0)


async def test_a_follower_at_fsync_syncs_and_says_how_far(
    syncer: Syncer, clock: ManualClock
) -> None:
    class Acks(Told):
        def moved(self, written: Offset, durable: Offset) -> Offset:
            acked.append((written, durable))
            if durable == 2:
                done.set()
            return super().moved(written, durable)

    acked: list[tuple[int, int]] = []
    done = asyncio.Event()
    gated = GatedLog(memory_log(clock))
    gated.gate.release()
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)
    partition.replica.become(Role.FOLLOWER, 1, Acks())
    partition.replica.append_copy(copies(0, 1), 1, Offset(0))
    await asyncio.wait_for(done.wait(), 10)
    assert (2, 0) in acked
    assert acked[-1] == (2, 2)
    assert partition.high_watermark == 0


# -- truncation


async def test_a_follower_is_cut_and_goes_on_as_the_leader_has_it(
    partition: Partition,
) -> None:
    partition.replica.become(Role.LEADER, 1, Fixed(2))
    for number in range(6):
        put(partition, row(b"k", b"v"), producer=(9, 0, number))
    fed: list[int] = []
    partition.follow(lambda data: fed.extend(first for first, _ in spans(bytes(data))))
    put(partition, row(b"k", b"v"), producer=(9, 0, 6))
    assert (partition.high_watermark, partition.end_offset) == (2, 7)
    partition.replica.become(Role.FOLLOWER, 3)
    await partition.replica.truncate(Offset(4))
    assert partition.end_offset == partition.log.end_offset == 4
    assert partition.epochs.rows() == [(1, 0)]
    entry = partition.producers.entry(9)
    assert entry is not None
    assert entry.batches[-1].last_offset == 3
    assert partition.visible.producers is partition.producers
    partition.replica.append_copy(copies(4, 5, epoch=3), 3, Offset(6))
    assert fed == [2, 3, 4, 5]
    assert partition.epochs.rows() == [(1, 0), (3, 4)]


async def test_a_cut_below_what_all_replicas_had_stops_the_partition_uncut(
    partition: Partition,
) -> None:
    """I9."""
    partition.replica.become(Role.FOLLOWER, 1)
    partition.replica.append_copy(copies(0, 5, count=5), 1, Offset(5))
    partition.replica.append_copy(copies(10, count=5), 1, Offset(12))
    assert partition.high_watermark == 12
    with pytest.raises(PartitionCorrupt, match="cut at 10"):
        await partition.replica.truncate(Offset(13))
    assert isinstance(partition.stopped, PartitionCorrupt)
    assert partition.log.end_offset == 15
    with pytest.raises(PartitionCorrupt):
        partition.replica.append_copy(copies(15), 1, Offset(15))


async def test_only_a_follower_is_cut(partition: Partition) -> None:
    put(partition, row(b"k", b"v"))
    with pytest.raises(InvalidRequest, match="leader"):
        await partition.replica.truncate(Offset(0))
    partition.replica.become(Role.OBSERVER, 1)
    with pytest.raises(InvalidRequest, match="observer"):
        await partition.replica.truncate(Offset(0))
    partition.replica.become(Role.FOLLOWER, 1)
    await partition.replica.truncate(Offset(1))
    assert partition.end_offset == 1


async def test_a_cut_waits_for_the_sync_that_runs_and_nothing_else_begins(
    syncer: Syncer, clock: ManualClock
) -> None:
    """A snapshot of what is cut must not be saved after the cut."""
    gated = GatedLog(memory_log(clock))
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)
    partition.replica.become(Role.FOLLOWER, 1)
    partition.replica.append_copy(copies(0, 1, 2), 1, Offset(1))
    assert await asyncio.to_thread(gated.entered.acquire, timeout=10)
    cut = asyncio.ensure_future(partition.replica.truncate(Offset(2)))
    await asyncio.sleep(0)
    for begin in (
        lambda: partition.replica.append_copy(copies(3), 1, Offset(1)),
        lambda: partition.replica.become(Role.LEADER, 2),
    ):
        with pytest.raises(Conflict):
            begin()
    with pytest.raises(Conflict):
        await partition.flush()
    assert gated.end_offset == 3
    cut.cancel()  # the log is cut nevertheless
    gated.gate.release()
    held = partition.jobs.held
    assert held is not None
    await asyncio.wait_for(asyncio.wait([held]), 10)
    assert partition.end_offset == gated.end_offset == 2
    gated.gate.release()
    partition.replica.append_copy(copies(2), 1, Offset(3))
    assert (partition.end_offset, partition.high_watermark) == (3, 3)


async def test_of_a_run_that_a_cut_goes_through_the_rest_is_fed(partition: Partition) -> None:
    partition.replica.become(Role.FOLLOWER, 1)
    fed: list[int] = []
    partition.follow(lambda data: fed.extend(first for first, _ in spans(bytes(data))))
    partition.replica.append_copy(copies(0, 1, 2, 3), 1, Offset(1))
    assert fed == [0]
    await partition.replica.truncate(Offset(3))
    partition.replica.append_copy(copies(3, 4), 1, Offset(5))
    assert fed == [0, 1, 2, 3, 4]
    assert partition.shared.unseen.held == 0


# -- the high watermark that is kept


def replicated(log: PartitionLog, syncer: Syncer, clock: ManualClock) -> Partition:
    return Partition(
        "s",
        PartitionId(0),
        log,
        durability=Durability.OS,
        message_bytes_max=1 << 20,
        shared=Shared(syncer, clock, Troubles(clock)),
        replicated=True,
    )


async def test_a_replica_opens_with_the_high_watermark_that_was_kept(
    tmp_path: Path, syncer: Syncer, clock: ManualClock
) -> None:
    engine = SegmentEngine(tmp_path, clock)
    partition = replicated(engine.open(KEY, LogSettings()), syncer, clock)
    assert partition.replica.role is Role.FOLLOWER
    partition.replica.append_copy(copies(0, 1, 2, 3), 0, Offset(3))
    await partition.close()
    engine.close()
    engine = SegmentEngine(tmp_path, clock)
    log = engine.open(KEY, LogSettings())
    partition = replicated(log, syncer, clock)
    assert (partition.high_watermark, partition.end_offset) == (3, 4)
    assert len(partition.read(Offset(3), 1)) == 0
    alone = make_partition(log, syncer, clock)
    assert alone.high_watermark == 4, "one replica: what is there counts"
    await partition.close()
    engine.close()


async def test_the_high_watermark_is_kept_while_it_moves_and_not_for_one_replica(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "KEEP_S", 0.0)
    loop, log = asyncio.get_running_loop(), partition.log
    kept: asyncio.Queue[int] = asyncio.Queue()
    real = log.keep_high_watermark

    def keep(offset: Offset) -> None:
        real(offset)
        loop.call_soon_threadsafe(kept.put_nowait, offset)

    monkeypatch.setattr(log, "keep_high_watermark", keep)
    put(partition, row(b"k", b"v"))
    partition.replica.become(Role.FOLLOWER, 1)
    partition.replica.append_copy(copies(1, 2, 3), 1, Offset(2))
    assert await asyncio.wait_for(kept.get(), 10) == log.kept_high_watermark == 2
    partition.replica.append_copy(b"", 1, Offset(4))
    assert await asyncio.wait_for(kept.get(), 10) == log.kept_high_watermark == 4
    partition.replica.become(Role.LEADER, 2)
    put(partition, row(b"k", b"v"))
    await partition.flush()
    assert (partition.high_watermark, log.kept_high_watermark) == (5, 4)


async def test_a_transaction_whose_marker_is_not_seen_yet_is_open_after_a_restart(
    tmp_path: Path, syncer: Syncer, clock: ManualClock
) -> None:
    """The marker may be cut off, so nothing is decided by it; a snapshot must not forget that."""
    engine = SegmentEngine(tmp_path, clock)
    leader = make_partition(memory_log(clock), syncer, clock)
    put(leader, row(b"k", b"v"), producer=(9, 0, 0), transactional=True)
    put(leader, row(b"k", b"w"))
    leader.append_marker(Marker.COMMIT, 9, 0)
    partition = replicated(engine.open(KEY, LogSettings()), syncer, clock)
    partition.replica.append_copy(read_all(leader.log), 0, Offset(2))
    assert partition.last_stable_offset == 0
    await partition.close()
    engine.close()
    engine = SegmentEngine(tmp_path, clock)
    partition = replicated(engine.open(KEY, LogSettings()), syncer, clock)
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 0)
    partition.replica.append_copy(b"", 0, Offset(3))
    assert partition.last_stable_offset == 3
    await partition.close()
    engine.close()


async def test_what_an_isolated_leader_holds_for_feeds_is_bounded_and_fed_in_order(
    partition: Partition,
) -> None:
    progress = Fixed()
    partition.replica.become(Role.LEADER, 1, progress)
    fed: list[int] = []
    partition.follow(lambda data: fed.extend(first for first, _ in spans(bytes(data))))
    budget = partition.shared.unseen
    budget.share = 2 * len(make_batch(0, size=60))
    for _ in range(20):
        put(partition, row(b"k", b"x" * 60))
        assert budget.held <= budget.share
    assert budget.overflows
    progress.offset = Offset(20)
    partition.moved()
    for _ in range(20):
        await asyncio.sleep(0)
    assert fed == list(range(20))
    assert budget.held == 0
