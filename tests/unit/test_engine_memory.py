"""What only the memory engine promises: a bounded ring that gives up its oldest batches."""

from __future__ import annotations

import random

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import Closed, Conflict, MessageTooLarge, OffsetOutOfRange
from onelog.kernel import scan_batches, topic_hash
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.memory import MemoryEngine
from tests.batches import append, fill, make_batch, read_all, spans

KEY = PartitionKey("s", 0)
RING = LogSettings(ring_bytes=2_000)


def test_a_full_ring_drops_its_oldest_whole_batches():
    """I8: memory is bounded by the ring, however much is written."""
    log = MemoryEngine(ManualClock()).open(KEY, RING)
    fill(log, 200, size=40)
    each = len(make_batch(100, size=40))
    held = [first for first, _ in spans(read_all(log))]
    assert log.size_bytes <= 2_000 < log.size_bytes + 2 * each
    assert held == list(range(log.start_offset, 200))
    assert log.end_offset == log.durable_offset == log.sync() == 200
    with pytest.raises(OffsetOutOfRange):
        log.read(log.start_offset - 1, 100, 200)


def test_a_batch_larger_than_the_ring_is_refused_and_changes_nothing():
    log = MemoryEngine().open(KEY, RING)
    fill(log, 3)
    before = read_all(log)
    small = make_batch(3)
    with pytest.raises(MessageTooLarge, match="ring_bytes"):
        append(log, small, make_batch(4, size=3_000))
    assert read_all(log) == before
    assert (log.end_offset, log.size_bytes) == (3, len(before))


def test_one_append_larger_than_the_ring_keeps_its_newest_batches():
    log = MemoryEngine().open(KEY, RING)
    batches = [make_batch(at, size=400) for at in range(10)]
    append(log, *batches)
    assert log.end_offset == 10
    assert log.size_bytes <= 2_000
    assert spans(read_all(log))[-1] == (9, 9)
    assert log.start_offset == spans(read_all(log))[0][0]


def test_a_smaller_ring_drops_at_once():
    log = MemoryEngine().open(KEY, RING)
    fill(log, 15)
    log.reconfigure(LogSettings(ring_bytes=500))
    assert log.size_bytes <= 500
    assert spans(read_all(log))[-1] == (14, 14)


def test_lookups_follow_the_ring():
    log = MemoryEngine(ManualClock()).open(KEY, RING)
    rng = random.Random(3)
    topics, stamps = [], []
    for at in range(400):
        topics.append(b"t/%d" % rng.randrange(5))
        stamps.append(rng.randrange(1_000) + at * 3)
        append(log, make_batch(at, topic=topics[-1], timestamp_ms=stamps[-1]))
    start = log.start_offset
    assert start > 300
    for topic in set(topics):
        exact = [at for at in range(start, 400) if topics[at] == topic]
        assert log.offsets_of_topic(topic_hash(topic), 0, 400, 1000) == exact
    for wanted in range(0, 2_500, 37):
        exact_time = next((at for at in range(start, 400) if stamps[at] >= wanted), None)
        assert log.offset_for_time(wanted) == exact_time
    for row in log.segments():
        held = stamps[max(row.base_offset, start) : row.end_offset]
        assert row.max_timestamp_ms == max(held, default=-1)


def test_topic_entries_leave_with_their_run():
    """I8: the index is bounded as the ring is."""
    log = MemoryEngine(ManualClock()).open(KEY, RING)
    for at in range(2_000):
        append(log, make_batch(at, topic=b"t"))
    entries = sum(len(run._chunks) + len(run._pending) for run in log._segments)
    assert entries < 8 * 2_000 // 20


def test_a_segment_that_is_old_is_rolled_by_the_next_append():
    clock = ManualClock()
    log = MemoryEngine(clock).open(KEY, LogSettings(segment_age_ms=1_000))
    fill(log, 2)
    clock.advance(1.0)
    fill(log, 1)
    assert [(row.base_offset, row.sealed) for row in log.segments()] == [(0, True), (2, False)]


def test_a_rewrite_of_what_the_ring_dropped_meanwhile_stays_dropped():
    log = MemoryEngine().open(KEY, RING)
    fill(log, 4, size=40)
    log.roll()
    fill(log, 4, size=40)
    log.roll()
    rewrite = log.rewrite(0, 8)
    for at in range(8):
        batch = make_batch(at, size=10)
        rewrite.append(batch, scan_batches(batch))
    while log.start_offset < 6:
        fill(log, 1, size=40)
    rewrite.commit()
    held = [first for first, _ in spans(read_all(log))]
    assert held == list(range(log.start_offset, log.end_offset))
    assert log.size_bytes == len(read_all(log))


def test_a_rewrite_of_a_truncated_log_is_refused():
    log = MemoryEngine().open(KEY, RING)
    fill(log, 4)
    log.roll()
    rewrite = log.rewrite(0, 4)
    log.truncate(2)
    with pytest.raises(Conflict):
        rewrite.commit()
    assert [first for first, _ in spans(read_all(log))] == [0, 1]


def test_a_closed_partition_is_gone():
    engine = MemoryEngine()
    log = engine.open(KEY, RING)
    fill(log, 3)
    with pytest.raises(Conflict):
        engine.open(KEY, RING)
    with pytest.raises(Conflict):
        engine.delete(KEY)
    log.close()
    assert engine.partitions() == []
    assert engine.open(KEY, RING).end_offset == 0
    engine.close()
    with pytest.raises(Closed):
        engine.open(KEY, RING)
