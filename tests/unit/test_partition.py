"""A partition: answers mean durable (I4), one sync serves all, errors stop it (I9), it recovers."""

import asyncio
import errno
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.base.clock import ManualClock
from onelog.base.errors import (
    CorruptBatch,
    InvalidRecords,
    MessageTooLarge,
    OffsetOutOfRange,
    OnelogError,
    PartitionCorrupt,
    PartitionStopped,
    StorageFull,
)
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import (
    ATTR_CONTROL,
    ATTR_LOG_APPEND_TIME,
    BatchBuilder,
    decode_batch,
    scan_batches,
)
from onelog.log import partition as partition_module
from onelog.log.partition import Durability, Partition
from onelog.log.progress import Role
from onelog.log.replay import replay_state
from onelog.log.syncer import Syncer
from onelog.record.batch import Marker, build_batch, build_marker
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine
from tests.logs import (
    KEY,
    GatedLog,
    append_batches,
    held,
    make_partition,
    markers,
    memory_log,
    pairs,
    put,
    row,
)
from tests.support.backups import until

NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def gated(clock: ManualClock) -> GatedLog:
    return GatedLog(memory_log(clock))


async def reached(log: GatedLog) -> None:
    """A sync runs and waits at the gate."""
    assert await asyncio.to_thread(log.entered.acquire, timeout=10)


# -- durability


async def test_a_waiter_is_not_called_before_the_sync_returned(
    gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    """I4, and nobody reads what a crash could take back."""
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)
    placed = put(partition, row(b"k", b"v"))
    waiting = partition.wait_visible(placed.base_offset)
    await reached(gated)
    assert not waiting.done()
    assert partition.high_watermark == 0
    assert len(partition.read(Offset(0), 1000)) == 0
    gated.gate.release()
    await asyncio.wait_for(waiting, 10)
    assert partition.high_watermark == 1
    assert len(partition.read(Offset(0), 1000)) > 0


async def test_appends_during_a_sync_share_the_next_one(
    gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)
    first = partition.wait_visible(put(partition, row(b"k", b"0")).base_offset)
    await reached(gated)
    rest = [
        partition.wait_visible(put(partition, row(b"k", b"%d" % number)).base_offset)
        for number in range(100)
    ]
    gated.gate.release()
    await asyncio.wait_for(first, 10)
    assert not any(waiting.done() for waiting in rest)
    gated.gate.release()
    await asyncio.wait_for(asyncio.gather(*rest), 10)
    assert gated.syncs == partition.syncs == 2


@pytest.mark.parametrize("durability", [Durability.OS, Durability.MEMORY])
async def test_weaker_durability_answers_in_the_same_pass_without_a_sync(
    durability: Durability, gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(gated, syncer, clock, durability)
    waiting = partition.wait_visible(Offset(0))
    put(partition, row(b"k", b"v"))
    assert waiting.done()
    assert gated.syncs == 0


async def test_a_failed_sync_stops_the_partition_and_fails_every_waiter(
    gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    """I9: after a failed fsync nothing is answered and nothing more is taken."""
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)
    gated.error = PartitionStopped("the disk is gone")
    waiting = [partition.wait_visible(put(partition, row(b"k", b"v")).base_offset)]
    waiting.append(partition.wait_visible(Offset(5)))
    gated.gate.release()
    answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert answers == [gated.error, gated.error]
    assert partition.high_watermark == 0
    for attempt in (
        lambda: put(partition, row(b"k", b"v")),
        lambda: partition.read(Offset(0), 10),
        lambda: partition.append_marker(Marker.COMMIT, 1, 0),
    ):
        with pytest.raises(PartitionStopped):
            attempt()
    with pytest.raises(PartitionStopped):
        await partition.wait_visible(Offset(9))


async def test_a_failing_disk_stops_a_partition_of_the_segment_engine(
    tmp_path: Path, syncer: Syncer, clock: ManualClock
) -> None:
    engine = SegmentEngine(tmp_path, clock)
    partition = make_partition(engine.open(KEY, LogSettings()), syncer, clock, Durability.FSYNC)
    faults.arm("segment.fsync", faults.fail_with(errno.EIO))
    try:
        with pytest.raises(PartitionStopped):
            await partition.wait_visible(put(partition, row(b"k", b"v")).base_offset)
    finally:
        faults.disarm()
    assert partition.stopped is not None
    await partition.close()
    engine.close()


async def test_waiters_of_a_closed_partition_are_told(syncer: Syncer, clock: ManualClock) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    waiting = partition.wait_visible(Offset(3))
    await partition.close()
    with pytest.raises(PartitionStopped):
        await waiting
    await partition.close()


async def test_waiting_counts_only_those_who_still_wait(syncer: Syncer, clock: ManualClock) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    waiting = partition.wait_visible(Offset(0))
    other = partition.wait_visible(Offset(1))
    assert partition.visible.waiting == 2
    other.cancel()
    await asyncio.sleep(0)
    assert partition.visible.waiting == 1
    put(partition, row(b"k", b"v"))
    await waiting
    assert partition.visible.waiting == 0


# -- appends


async def test_client_batches_get_consecutive_offsets_and_the_leader_epoch(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    partition.replica.become(Role.LEADER, 4)
    data = bytearray(
        build_batch([row(b"a", b"1"), row(b"b", b"2")], base_offset=77)
        + build_batch([row(b"c", b"3")], base_offset=5)
    )
    placed = append_batches(partition, data)
    assert (placed.base_offset, placed.end_offset, placed.duplicate) == (0, 3, False)
    assert [one.offset for one in held(partition.log)] == [0, 1, 2]
    assert partition.epochs.rows() == [(4, 0)]
    assert partition.records_appended == 3


async def test_built_batches_are_appended_at_the_end(syncer: Syncer, clock: ManualClock) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    put(partition, row(b"a", b"1"))
    builder = BatchBuilder(True)
    builder.add(b"t/1", None, b"2", (), NOW_MS)
    placed = partition.append_built(builder, index_topics=True)
    assert placed.base_offset == 1
    assert pairs(partition.log) == [(b"a", b"1"), (None, b"2")]


async def test_a_repeated_idempotent_batch_is_answered_but_not_appended(
    syncer: Syncer, clock: ManualClock
) -> None:
    """I1: one write."""
    partition = make_partition(memory_log(clock), syncer, clock)
    put(partition, row(b"k", b"0"))
    first = put(partition, row(b"k", b"v"), producer=(9, 0, 0))
    again = put(partition, row(b"k", b"v"), producer=(9, 0, 0))
    assert again == first._replace(duplicate=True)
    assert partition.end_offset == 2


async def test_a_partition_of_append_times_gives_every_record_the_time_of_its_append(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    partition.stamps = True
    clock.advance(0.005)
    mine = put(partition, row(b"k", b"v", timestamp_ms=1), producer=(9, 0, 0))
    assert mine.append_time_ms == NOW_MS + 5
    clock.advance(0.005)
    again = put(partition, row(b"k", b"v", timestamp_ms=1), producer=(9, 0, 0))
    assert (again.duplicate, again.append_time_ms) == (True, NOW_MS + 5)
    builder = BatchBuilder(True)
    builder.add(b"t/1", None, b"2", (), 7)
    partition.append_built(builder, index_topics=True)
    data = partition.read(Offset(0), 1 << 20)
    first, second = scan_batches(data)  # the checksums are right
    for info, at_ms in ((first, NOW_MS + 5), (second, NOW_MS + 10)):
        assert info.attributes & ATTR_LOG_APPEND_TIME
        assert info.max_timestamp_ms == at_ms
        assert decode_batch(data, info.position).timestamp_ms(0) == at_ms
    assert partition.time_offset_now(TimestampMs(NOW_MS + 6)) == (1, NOW_MS + 10)


async def test_what_a_client_may_not_send_is_refused_and_changes_nothing(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    partition.message_bytes_max = 100
    with pytest.raises(MessageTooLarge):
        put(partition, row(b"k", b"v" * 200))
    control = bytearray(build_marker(Marker.COMMIT, 1, 0, NOW_MS))
    with pytest.raises(InvalidRecords):
        append_batches(partition, control)
    assert partition.end_offset == 0
    assert len(partition.producers) == 0


async def test_a_full_disk_refuses_the_append_and_the_partition_goes_on(
    tmp_path: Path, syncer: Syncer, clock: ManualClock
) -> None:
    engine = SegmentEngine(tmp_path, clock)
    partition = make_partition(engine.open(KEY, LogSettings()), syncer, clock, Durability.FSYNC)
    await partition.wait_visible(put(partition, row(b"k", b"1"), producer=(1, 0, 0)).base_offset)
    faults.arm("segment.write", faults.fail_with(errno.ENOSPC))
    try:
        with pytest.raises(StorageFull):
            put(partition, row(b"k", b"2"), producer=(1, 0, 1))
    finally:
        faults.disarm()
    placed = put(partition, row(b"k", b"2"), producer=(1, 0, 1))
    await partition.wait_visible(placed.base_offset)
    assert pairs(partition.log) == [(b"k", b"1"), (b"k", b"2")]
    await partition.close()
    engine.close()


async def test_a_full_disk_at_a_snapshot_does_not_stop_the_partition(
    tmp_path: Path, syncer: Syncer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_module, "SNAPSHOT_BYTES", 1)
    engine = SegmentEngine(tmp_path, clock)
    log = engine.open(KEY, LogSettings())
    partition = make_partition(log, syncer, clock, Durability.FSYNC)
    faults.arm("segment.state", faults.fail_with(errno.ENOSPC))
    try:
        await partition.wait_visible(put(partition, row(b"k", b"1")).base_offset)
        await until(lambda: partition.unsnapshotted_bytes > 0)  # it failed, and is due again
    finally:
        faults.disarm()
    assert log.load_state("partition") is None
    await partition.wait_visible(put(partition, row(b"k", b"2")).base_offset)
    await until(lambda: log.load_state("partition") is not None)
    saved = log.load_state("partition")
    assert saved is not None
    assert saved[0] == 2
    await partition.close()
    engine.close()


# -- transactions


async def test_committed_reads_end_at_the_first_open_transaction(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    put(partition, row(b"k", b"0"))
    put(partition, row(b"k", b"1"), producer=(3, 0, 0), transactional=True)
    put(partition, row(b"k", b"2"))
    assert partition.last_stable_offset == 1
    assert len(scan_batches(partition.read(Offset(0), 9999, committed=True))) == 1
    assert len(scan_batches(partition.read(Offset(0), 9999))) == 3
    assert len(partition.read(Offset(1), 9999, committed=True)) == 0
    partition.append_marker(Marker.ABORT, 3, 0)
    assert partition.last_stable_offset == 4
    (aborted,) = partition.aborted_between(0, 4)
    assert (aborted.first_offset, aborted.last_offset) == (1, 3)


async def test_a_commit_decides_only_when_its_marker_is_durable(
    gated: GatedLog, syncer: Syncer, clock: ManualClock
) -> None:
    """I4: a reader of committed data never sees a transaction that a crash could still undo."""
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)
    waiting = partition.wait_visible(
        put(partition, row(b"k", b"v"), producer=(3, 0, 0), transactional=True).base_offset
    )
    await reached(gated)
    gated.gate.release()
    await asyncio.wait_for(waiting, 10)
    marker = partition.append_marker(Marker.COMMIT, 3, 0)
    assert partition.high_watermark == 1
    assert partition.last_stable_offset == 0
    visible = partition.wait_visible(marker.base_offset)
    gated.gate.release()
    await asyncio.wait_for(visible, 10)
    assert partition.last_stable_offset == 2


async def test_markers_are_control_batches_of_the_producer(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    partition.append_marker(Marker.COMMIT, 3, 1)
    (info,) = scan_batches(partition.read(Offset(0), 999))
    assert info.attributes & ATTR_CONTROL
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (3, 1, -1)
    assert markers(partition.log) == [0]


# -- reading


async def test_reading_past_the_end_is_refused_and_at_the_end_is_empty(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    put(partition, row(b"k", b"v"))
    assert len(partition.read(Offset(1), 10)) == 0
    with pytest.raises(OffsetOutOfRange):
        partition.read(Offset(2), 10)


async def test_the_first_record_at_or_after_a_time_is_found(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    put(partition, row(b"k", b"0", 100), row(b"k", b"1", 300), row(b"k", b"2", 200))
    put(partition, row(b"k", b"3", 400), codec=4)
    assert partition.time_offset_now(TimestampMs(0)) == (0, 100)
    assert partition.time_offset_now(TimestampMs(150)) == (1, 300)
    assert partition.time_offset_now(TimestampMs(301)) == (3, 400)
    assert partition.time_offset_now(TimestampMs(401)) is None


# -- life


def write_history(partition: Partition) -> None:
    put(partition, row(b"a", b"1"), producer=(1, 0, 0))
    put(partition, row(b"b", b"2"), producer=(2, 0, 0), transactional=True)
    put(partition, row(b"c", b"3"), producer=(3, 0, 0), transactional=True)
    partition.append_marker(Marker.ABORT, 3, 0)
    put(partition, row(b"a", b"4"), producer=(1, 0, 1))


async def test_the_state_after_a_clean_restart_is_what_it_was(
    tmp_path: Path, syncer: Syncer, clock: ManualClock
) -> None:
    engine = SegmentEngine(tmp_path, clock)
    partition = make_partition(engine.open(KEY, LogSettings()), syncer, clock)
    partition.replica.become(Role.LEADER, 3)
    write_history(partition)
    await partition.close()
    engine.close()
    engine = SegmentEngine(tmp_path, clock)
    again = make_partition(engine.open(KEY, LogSettings()), syncer, clock)
    assert again.producers.entries() == partition.producers.entries()
    assert again.aborted_between(0, 99) == partition.aborted_between(0, 99)
    assert again.epochs.rows() == [(3, 0)]
    assert again.leader_epoch == 3
    assert (again.end_offset, again.last_stable_offset) == (5, 1)
    assert put(again, row(b"a", b"4"), producer=(1, 0, 1)).duplicate
    await again.close()
    engine.close()


async def test_producers_whose_batches_were_trimmed_are_known_after_a_crash(
    tmp_path: Path, syncer: Syncer, clock: ManualClock
) -> None:
    engine = SegmentEngine(tmp_path, clock)
    log = engine.open(KEY, LogSettings())
    partition = make_partition(log, syncer, clock)
    put(partition, row(b"a", b"1"), producer=(1, 0, 0))
    log.roll()
    put(partition, row(b"b", b"2"), producer=(2, 0, 0))
    await partition.trim(Offset(1))
    assert partition.start_offset == 1
    producers, _ = replay_state(log, NOW_MS)  # what a start without a clean shutdown does
    assert producers.entries() == partition.producers.entries()
    await partition.close()
    engine.close()


async def test_trim_forgets_aborted_transactions_and_stops_at_the_high_watermark(
    syncer: Syncer, clock: ManualClock
) -> None:
    partition = make_partition(memory_log(clock), syncer, clock)
    write_history(partition)
    await partition.trim(Offset(99))
    assert partition.start_offset == partition.high_watermark == 5
    assert partition.aborted_between(0, 99) == []


async def test_flush_makes_everything_durable_at_any_level(
    tmp_path: Path, syncer: Syncer, clock: ManualClock
) -> None:
    engine = SegmentEngine(tmp_path, clock)
    partition = make_partition(engine.open(KEY, LogSettings()), syncer, clock)
    put(partition, row(b"k", b"v"))
    assert partition.log.durable_offset == 0
    await partition.flush()
    assert partition.log.durable_offset == 1
    await partition.close()
    engine.close()


async def test_found_damage_stops_the_partition_with_an_error_that_says_where(
    syncer: Syncer, clock: ManualClock
) -> None:
    """I9."""
    partition = make_partition(memory_log(clock), syncer, clock)
    heard: list[OnelogError | None] = []
    partition.when_visible(Offset(5), heard.append)
    failure = partition.stop_damaged(2, CorruptBatch("bad CRC"))
    assert isinstance(failure, PartitionCorrupt)
    assert "offset 2" in str(failure)
    assert heard == [failure]
    with pytest.raises(PartitionCorrupt):
        put(partition, row(b"k", b"v"))


async def test_unsynced_records_found_at_the_start_are_synced_before_they_are_shown(
    gated: GatedLog, syncer: Syncer, clock: ManualClock, tmp_path: Path
) -> None:
    engine = SegmentEngine(tmp_path, clock)
    log = engine.open(KEY, LogSettings())
    put(make_partition(log, syncer, clock), row(b"k", b"v"))
    assert log.durable_offset == 0
    partition = make_partition(log, syncer, clock, Durability.FSYNC)
    assert log.durable_offset == partition.high_watermark == 1
    await partition.close()
    engine.close()
