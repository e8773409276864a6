"""Compaction by key: the last record of each key stays, offsets never move, damage shows."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import Closed, Conflict, CorruptBatch, OffsetOutOfRange
from onelog.base.ids import Offset
from onelog.kernel import ATTR_CODEC_MASK, ATTR_DELETE_HORIZON
from onelog.log.cleaning import KEY_BYTES_MAX
from onelog.log.compaction import (
    CompactionResult,
    cleanable,
    compact,
    compaction_due,
    dirty_ratio,
    scope_of,
)
from onelog.log.config import Cleanup, Compaction, StreamConfig
from onelog.log.partition import Partition
from onelog.log.replay import replay_state
from onelog.log.rewriting import Pacer
from onelog.log.syncer import Syncer
from onelog.record.batch import Marker
from onelog.record.compression import GZIP, LZ4, SNAPPY, ZSTD
from onelog.storage.engine import Engine, LogSettings
from onelog.storage.kv import KvEngine
from onelog.storage.memory import MemoryEngine
from onelog.storage.segment import SegmentEngine
from tests.logs import KEY, batches, held, make_partition, markers, offsets, pairs, put, row

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
SEGMENT_BYTES = 1 << 20


def nothing() -> None:
    """No pacing."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture(params=["memory", "segment", "kv"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Engine:
    if request.param == "memory":
        return MemoryEngine(clock)
    return {"segment": SegmentEngine, "kv": KvEngine}[request.param](tmp_path, clock)


@pytest.fixture
async def partition(engine: Engine, clock: ManualClock) -> AsyncIterator[Partition]:
    syncer = Syncer(1)
    settings = LogSettings(topic_index=False, segment_bytes=SEGMENT_BYTES)
    yield make_partition(engine.open(KEY, settings), syncer, clock)
    await syncer.close()
    engine.close()


def clean(
    partition: Partition,
    *,
    now_ms: int = NOW_MS,
    keys_max: int = 1000,
    segment_bytes: int = SEGMENT_BYTES,
    config: Compaction | None = None,
    pace: Callable[[], None] = nothing,
) -> CompactionResult:
    return compact(
        partition.log,
        scope_of(partition),
        now_ms=now_ms,
        config=config or Compaction(tombstone_ms=DAY_MS),
        segment_bytes=segment_bytes,
        pace=pace,
        keys_max=keys_max,
    )


# -- what stays


async def test_the_last_record_of_each_key_stays_at_its_offset(partition: Partition) -> None:
    for number in range(9):
        put(partition, row(b"k%d" % (number % 3), b"%d" % number))
    partition.log.roll()
    result = clean(partition)
    assert held(partition.log) == [
        (6, b"k0", b"6", NOW_MS),
        (7, b"k1", b"7", NOW_MS),
        (8, b"k2", b"8", NOW_MS),
    ]
    assert result.records_dropped == 6
    assert result.bytes_after < result.bytes_before
    assert result.bytes_after == partition.log.size_bytes
    assert (result.cleaned_upto, result.complete) == (9, True)
    assert partition.log.end_offset == 9


async def test_records_inside_a_batch_go_and_the_rest_keeps_its_offsets(
    partition: Partition,
) -> None:
    put(partition, row(b"a", b"1", 10), row(b"b", b"2", 30), row(b"a", b"3", 20))
    partition.log.roll()
    clean(partition)
    assert held(partition.log) == [(1, b"b", b"2", 30), (2, b"a", b"3", 20)]
    ((_, info),) = batches(partition.log)
    assert (info.base_offset, info.last_offset, info.count) == (0, 2, 2)


async def test_records_without_a_key_stay(partition: Partition) -> None:
    put(partition, row(None, b"1"), row(None, None), row(b"", b"3"), row(b"", b"4"))
    partition.log.roll()
    clean(partition)
    assert pairs(partition.log) == [(None, b"1"), (None, None), (b"", b"4")]


async def test_an_untouched_batch_is_copied_byte_for_byte(partition: Partition) -> None:
    put(partition, row(b"a", b"1"), row(b"b", b"1"))
    put(partition, row(b"c", b"keep" * 50), row(b"d", b"keep" * 50), codec=ZSTD)
    put(partition, row(b"a", b"2"))
    partition.log.roll()
    before = [
        bytes(data[info.position :][: info.size_bytes]) for data, info in batches(partition.log)
    ]
    clean(partition)
    after = [
        bytes(data[info.position :][: info.size_bytes]) for data, info in batches(partition.log)
    ]
    assert after[0] != before[0]
    assert after[1:] == before[1:]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
async def test_a_compressed_batch_is_compressed_again_with_its_codec(
    codec: int, partition: Partition
) -> None:
    put(partition, *(row(b"k%d" % (n % 2), b"%d" % n) for n in range(6)), codec=codec)
    partition.log.roll()
    clean(partition)
    ((_, info),) = batches(partition.log)
    assert info.attributes & ATTR_CODEC_MASK == codec
    assert held(partition.log) == [(4, b"k0", b"4", NOW_MS), (5, b"k1", b"5", NOW_MS)]


async def test_long_keys_are_told_apart_and_never_mixed_with_short_ones(
    partition: Partition,
) -> None:
    long = b"k" * 5000
    keys = [long + b"1", long + b"2", b"k" * KEY_BYTES_MAX, b"k" * (KEY_BYTES_MAX + 1)]
    for value in (b"old", b"new"):
        put(partition, *(row(key, value) for key in keys))
    partition.log.roll()
    clean(partition)
    assert pairs(partition.log) == [(key, b"new") for key in keys]


# -- what may be touched


async def test_the_active_segment_is_never_touched(partition: Partition) -> None:
    put(partition, row(b"a", b"1"))
    partition.log.roll()
    put(partition, row(b"a", b"2"))
    put(partition, row(b"a", b"3"))
    clean(partition)
    assert offsets(held(partition.log)) == [0, 1, 2]  # 1 and 2 are not known to the map yet


async def test_nothing_at_or_past_the_last_stable_offset_is_touched(partition: Partition) -> None:
    put(partition, row(b"a", b"1"))
    put(partition, row(b"a", b"2"))
    partition.log.roll()
    put(partition, row(b"a", b"3"), producer=(1, 0, 0), transactional=True)
    put(partition, row(b"a", b"4"))
    partition.log.roll()
    result = clean(partition)
    assert result.cleaned_upto == 2
    assert offsets(held(partition.log)) == [1, 2, 3]


async def test_small_segments_become_one(partition: Partition) -> None:
    for number in range(20):
        put(partition, row(b"k%d" % number, b"v"))
        partition.log.roll()
    assert len(cleanable(partition.log.segments(), 20)) == 20
    clean(partition)
    assert len(cleanable(partition.log.segments(), 20)) == 1
    assert offsets(held(partition.log)) == list(range(20))


async def test_segments_that_do_not_fit_together_stay_apart(partition: Partition) -> None:
    for number in range(6):
        put(partition, row(b"k%d" % number, b"v" * 400))
        partition.log.roll()
    clean(partition, segment_bytes=1100)
    assert len(cleanable(partition.log.segments(), 20)) == 3


async def test_a_partition_without_sealed_segments_has_nothing_to_clean(
    partition: Partition,
) -> None:
    put(partition, row(b"a", b"1"), row(b"a", b"2"))
    assert clean(partition) == CompactionResult(0, 0, 0, Offset(0), complete=True)
    assert not compaction_due(
        partition.log, upto=2, now_ms=NOW_MS, config=Compaction(min_dirty_ratio=0)
    )


async def test_a_log_that_begins_inside_a_segment_is_cleaned_from_its_start(
    partition: Partition,
) -> None:
    for number in range(4):
        put(partition, row(b"k%d" % (number % 2), b"%d" % number))
    partition.log.roll()
    await partition.trim(Offset(1))
    clean(partition)
    assert offsets(held(partition.log)) == [2, 3]
    assert partition.start_offset == 1


# -- lags


async def test_what_is_younger_than_the_least_lag_is_not_cleaned(partition: Partition) -> None:
    config = Compaction(min_dirty_ratio=0, min_lag_ms=DAY_MS)
    for number in range(2):  # two segments of two records, a day apart
        when_ms = NOW_MS + number * DAY_MS
        put(partition, row(b"a", b"1", when_ms), row(b"a", b"2", when_ms))
        partition.log.roll()

    def due(now_ms: int) -> bool:
        return compaction_due(partition.log, upto=4, now_ms=now_ms, config=config)

    soon = NOW_MS + DAY_MS - 1
    assert not due(soon)
    assert clean(partition, now_ms=soon, config=config).records_dropped == 0
    assert due(soon + 1)
    clean(partition, now_ms=soon + 1, config=config)
    assert offsets(held(partition.log)) == [1, 2, 3]
    assert not due(soon + 1)
    clean(partition, now_ms=soon + 1 + DAY_MS, config=config)
    assert offsets(held(partition.log)) == [3]


async def test_a_lag_that_was_raised_cleans_nothing_twice_and_loses_nothing(
    partition: Partition,
) -> None:
    for value in (b"1", b"2"):
        put(partition, row(b"a", value))
        partition.log.roll()
    clean(partition)
    put(partition, row(b"b", b"1", NOW_MS + 1))
    partition.log.roll()
    late = Compaction(min_dirty_ratio=0, min_lag_ms=DAY_MS)
    clean(partition, now_ms=NOW_MS + DAY_MS, config=late)
    clean(partition, now_ms=NOW_MS + 2 * DAY_MS, config=late)
    assert pairs(partition.log) == [(b"a", b"2"), (b"b", b"1")]


async def test_what_waited_longer_than_the_greatest_lag_is_cleaned_however_little_it_is(
    partition: Partition, clock: ManualClock
) -> None:
    for number in range(50):
        put(partition, row(b"k%d" % number, b"v" * 100))
    partition.log.roll()
    clean(partition)
    put(partition, row(b"k1", b"new"))
    partition.log.roll()
    config = Compaction(min_dirty_ratio=0.5, max_lag_ms=DAY_MS)

    def due(now_ms: int) -> bool:
        return compaction_due(partition.log, upto=51, now_ms=now_ms, config=config)

    assert not due(NOW_MS + DAY_MS - 1)
    assert due(NOW_MS + DAY_MS)
    clean(partition, now_ms=NOW_MS + DAY_MS, config=config)
    assert 1 not in offsets(held(partition.log))
    assert not due(NOW_MS + 9 * DAY_MS)


def test_a_segment_of_a_compacted_stream_is_sealed_before_its_greatest_lag() -> None:
    lag = Compaction(max_lag_ms=5000)
    compacted = StreamConfig(name="s", cleanup=Cleanup.COMPACT, compaction=lag)
    assert compacted.roll_age_ms == 5000
    assert StreamConfig(name="s", compaction=lag).roll_age_ms == 7 * DAY_MS
    assert StreamConfig(name="s", segment_age_ms=1).roll_age_ms == 1000


# -- tombstones


async def test_a_tombstone_stays_until_its_horizon_and_then_goes(partition: Partition) -> None:
    put(partition, row(b"a", b"1"), row(b"b", b"1"))
    put(partition, row(b"a", None))
    partition.log.roll()
    clean(partition)
    assert pairs(partition.log) == [(b"b", b"1"), (b"a", None)]
    assert held(partition.log)[-1].timestamp_ms == NOW_MS
    clean(partition, now_ms=NOW_MS + DAY_MS - 1)
    assert pairs(partition.log) == [(b"b", b"1"), (b"a", None)]
    result = clean(partition, now_ms=NOW_MS + DAY_MS)
    assert pairs(partition.log) == [(b"b", b"1")]
    assert result.records_dropped == 1


async def test_the_horizon_is_set_once_by_the_first_cleaning(partition: Partition) -> None:
    put(partition, row(b"a", None))
    partition.log.roll()
    clean(partition)
    clean(partition, now_ms=NOW_MS + 1000)
    ((_, info),) = batches(partition.log)
    assert info.attributes & ATTR_DELETE_HORIZON
    assert info.base_timestamp_ms == NOW_MS + DAY_MS


async def test_a_passed_horizon_makes_compaction_due_without_new_data(
    partition: Partition,
) -> None:
    put(partition, row(b"a", None))
    partition.log.roll()
    clean(partition)
    config = Compaction()
    assert not compaction_due(partition.log, upto=1, now_ms=NOW_MS, config=config)
    assert compaction_due(partition.log, upto=1, now_ms=NOW_MS + DAY_MS, config=config)
    clean(partition, now_ms=NOW_MS + DAY_MS)
    assert not compaction_due(partition.log, upto=1, now_ms=NOW_MS + 9 * DAY_MS, config=config)


async def test_a_superseded_tombstone_goes_at_once(partition: Partition) -> None:
    put(partition, row(b"a", None))
    put(partition, row(b"a", b"2"))
    partition.log.roll()
    clean(partition)
    assert pairs(partition.log) == [(b"a", b"2")]


async def test_a_deleted_key_does_not_come_back_when_the_map_was_full(
    partition: Partition,
) -> None:
    """A tombstone beyond what the map covers gets no horizon: older records are still there."""
    put(partition, row(b"a", b"old"))
    for number in range(5):
        put(partition, row(b"k%d" % number, b"v"))
    put(partition, row(b"a", None))
    partition.log.roll()
    now_ms, complete = NOW_MS, False
    while not complete:
        result = clean(partition, now_ms=now_ms, keys_max=2)
        complete, now_ms = result.complete, now_ms + 2 * DAY_MS
        found = pairs(partition.log)
        assert (b"a", b"old") not in found or (b"a", None) in found
    assert (b"a", b"old") not in pairs(partition.log)


# -- the bounded map


async def test_a_full_map_cleans_what_it_covers_and_the_next_pass_goes_on(
    partition: Partition,
) -> None:
    for number in range(12):
        put(partition, row(b"k%d" % (number % 4), b"%d" % number))
    partition.log.roll()
    first = clean(partition, keys_max=3)
    assert (first.cleaned_upto, first.complete) == (3, False)
    config = Compaction(min_dirty_ratio=1)
    assert compaction_due(partition.log, upto=12, now_ms=NOW_MS, config=config)
    passes = 1
    while not clean(partition, keys_max=3).complete:
        passes += 1
        assert passes < 12
    assert offsets(held(partition.log)) == [8, 9, 10, 11]
    assert not compaction_due(partition.log, upto=12, now_ms=NOW_MS, config=config)


async def test_dirty_is_what_was_sealed_since_the_last_cleaning(partition: Partition) -> None:
    put(partition, row(b"a", b"1" * 100))
    partition.log.roll()
    assert dirty_ratio(partition.log, 1) == 1
    clean(partition)
    assert dirty_ratio(partition.log, 1) == 0
    put(partition, row(b"b", b"1" * 100))
    assert dirty_ratio(partition.log, 2) == 0  # it is in the active segment
    partition.log.roll()
    assert dirty_ratio(partition.log, 2) == pytest.approx(0.5)
    assert dirty_ratio(partition.log, 1) == 0
    due = {
        ratio: compaction_due(
            partition.log, upto=2, now_ms=NOW_MS, config=Compaction(min_dirty_ratio=ratio)
        )
        for ratio in (0.4, 0.6)
    }
    assert due == {0.4: True, 0.6: False}


# -- transactions and producers


async def test_records_of_aborted_transactions_go_and_hide_no_older_record(
    partition: Partition,
) -> None:
    put(partition, row(b"a", b"good"))
    put(partition, row(b"a", b"bad"), row(b"b", b"bad"), producer=(1, 0, 0), transactional=True)
    partition.append_marker(Marker.ABORT, 1, 0)
    put(partition, row(b"c", b"good"), producer=(1, 0, 2), transactional=True)
    partition.append_marker(Marker.COMMIT, 1, 0)
    partition.log.roll()
    clean(partition)
    assert pairs(partition.log) == [(b"a", b"good"), (b"c", b"good")]


async def test_committed_records_supersede_like_others(partition: Partition) -> None:
    put(partition, row(b"a", b"1"))
    put(partition, row(b"a", b"2"), producer=(1, 0, 0), transactional=True)
    partition.append_marker(Marker.COMMIT, 1, 0)
    partition.log.roll()
    clean(partition)
    assert pairs(partition.log) == [(b"a", b"2")]


async def test_a_marker_stays_while_a_batch_of_its_transaction_stays(
    partition: Partition,
) -> None:
    put(partition, row(b"a", b"1"), producer=(1, 0, 0), transactional=True)
    partition.append_marker(Marker.COMMIT, 1, 0)
    partition.log.roll()
    for days in range(5):
        clean(partition, now_ms=NOW_MS + days * DAY_MS)
    assert markers(partition.log) == [1]
    producers, _ = replay_state(partition.log, NOW_MS)
    assert producers.first_open_offset is None


async def test_the_marker_of_an_emptied_transaction_goes_after_its_horizon(
    partition: Partition,
) -> None:
    put(partition, row(b"a", b"1"), producer=(1, 0, 0), transactional=True)
    partition.append_marker(Marker.COMMIT, 1, 0)
    put(partition, row(b"a", b"2"), producer=(1, 0, 1), transactional=True)
    partition.append_marker(Marker.COMMIT, 1, 0)
    partition.log.roll()
    clean(partition)
    assert markers(partition.log) == [1, 3]
    clean(partition, now_ms=NOW_MS + DAY_MS)
    assert markers(partition.log) == [3]


async def test_the_last_batch_of_a_live_producer_stays_without_its_records(
    partition: Partition,
) -> None:
    put(partition, row(b"a", b"1"), producer=(1, 3, 0))
    put(partition, row(b"a", b"2"), producer=(1, 3, 1), codec=ZSTD)
    put(partition, row(b"a", b"3"))
    partition.log.roll()
    clean(partition)
    assert pairs(partition.log) == [(b"a", b"3")]
    kept = [info for _, info in batches(partition.log)]
    assert [(info.base_offset, info.count) for info in kept] == [(1, 0), (2, 1)]
    assert (kept[0].producer_id, kept[0].producer_epoch, kept[0].base_sequence) == (1, 3, 1)
    assert put(partition, row(b"a", b"2"), producer=(1, 3, 1)).duplicate
    put(partition, row(b"b", b"4"), producer=(1, 3, 2))
    partition.log.roll()
    clean(partition)
    assert [info.base_offset for _, info in batches(partition.log)] == [2, 3]


async def test_a_transaction_kept_only_as_an_empty_batch_is_still_closed_in_the_log(
    partition: Partition,
) -> None:
    put(partition, row(b"a", b"1"), producer=(1, 0, 0), transactional=True)
    partition.append_marker(Marker.ABORT, 1, 0)
    partition.log.roll()
    for days in range(3):
        clean(partition, now_ms=NOW_MS + days * DAY_MS)
    producers, _ = replay_state(partition.log, NOW_MS)
    assert producers.first_open_offset is None
    entry = producers.entry(1)
    assert entry is not None
    assert [memory.base_sequence for memory in entry.batches] == [0]


async def test_a_marker_that_alone_knows_the_producers_epoch_stays(partition: Partition) -> None:
    put(partition, row(b"a", b"1"), producer=(1, 0, 0), transactional=True)
    partition.append_marker(Marker.ABORT, 1, 1)
    partition.log.roll()
    for days in range(3):
        clean(partition, now_ms=NOW_MS + days * DAY_MS)
    producers, _ = replay_state(partition.log, NOW_MS)
    entry = producers.entry(1)
    assert entry is not None
    assert entry.epoch == 1


# -- what can happen meanwhile


async def test_appends_and_reads_go_on_during_a_compaction(partition: Partition) -> None:
    for number in range(10):
        put(partition, row(b"k%d" % (number % 2), b"%d" % number))
    partition.log.roll()

    def append_one() -> None:
        put(partition, row(b"live", b"%d" % partition.end_offset))
        assert held(partition.log)[-1].key == b"live"

    clean(partition, pace=append_one)
    found = offsets(held(partition.log))
    assert found[:2] == [8, 9]
    assert found[2:] == list(range(10, partition.end_offset))


async def test_a_trim_during_a_compaction_wins(partition: Partition) -> None:
    for number in range(10):
        put(partition, row(b"k%d" % (number % 2), b"%d" % number))
        if number % 5 == 4:
            partition.log.roll()
    calls = 0

    def trim_late() -> None:
        nonlocal calls
        calls += 1
        if calls == 15:  # the second scan has begun
            partition.log.trim(Offset(10))

    # The segments went, or the reading fell before the start: either way it is tried again later.
    with suppress(Conflict, OffsetOutOfRange):
        clean(partition, pace=trim_late)
    assert calls >= 15
    assert partition.log.start_offset == 10
    assert held(partition.log) == []
    with pytest.raises(OffsetOutOfRange):
        partition.log.read(Offset(9), 100, Offset(10))


async def test_a_stopped_compaction_leaves_the_log_as_it_was(
    partition: Partition, clock: ManualClock
) -> None:
    for number in range(10):
        put(partition, row(b"k", b"%d" % number))
    partition.log.roll()
    stop = threading.Event()
    pacer = Pacer(clock, stop)
    calls = 0

    def pace() -> None:
        nonlocal calls
        calls += 1
        if calls == 15:
            stop.set()
        pacer()

    with pytest.raises(Closed):
        clean(partition, pace=pace)
    assert offsets(held(partition.log)) == list(range(10))
    assert dirty_ratio(partition.log, 10) == 1
    clean(partition)
    assert offsets(held(partition.log)) == [9]


async def test_damage_is_found_and_not_rewritten_with_a_good_crc(
    tmp_path: Path, clock: ManualClock
) -> None:
    """I9: a new CRC must never be written over bytes that nobody wrote."""
    syncer = Syncer(1)
    engine = SegmentEngine(tmp_path, clock)
    log = engine.open(KEY, LogSettings(topic_index=False))
    partition = make_partition(log, syncer, clock)
    put(partition, row(b"a", b"first value"), row(b"a", b"second value"))
    log.roll()
    log.sync()
    (path,) = [path for path in tmp_path.rglob("*.log") if b"second" in path.read_bytes()]
    damaged = path.read_bytes().replace(b"second", b"sec0nd")
    with path.open("r+b") as file:
        file.write(damaged)
    with pytest.raises(CorruptBatch):
        clean(partition)
    assert path.read_bytes() == damaged
    await syncer.close()
    engine.close()


# -- pacing


class Waits(threading.Event):
    """Nobody sets it: waiting is the clock going on."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.waited_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.advance(timeout)
        self.waited_s += timeout
        return False


def test_the_pacer_leaves_most_of_the_time_to_others() -> None:
    clock = ManualClock()
    stop = Waits(clock)
    pacer = Pacer(clock, stop, share=0.25, slice_s=1 / 1024)
    for _ in range(40):
        clock.advance(1 / 2048)  # two of them are a slice, to the last bit
        pacer()
    assert stop.waited_s == 3 * 40 / 2048


def test_the_pacer_waits_for_a_slice_that_was_interrupted_no_longer_than_for_a_long_one() -> None:
    clock = ManualClock()
    stop = Waits(clock)
    pacer = Pacer(clock, stop, share=0.2, slice_s=0.001)
    clock.advance(60)
    pacer()
    assert stop.waited_s <= 0.05


def test_the_pacer_is_woken_by_stop_and_raises() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Closed):
        Pacer(ManualClock(), stop)()
