"""Does every storage engine keep the rules of `storage/engine.py`?"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import InvalidRequest, OffsetOutOfRange, OnelogError
from onelog.kernel import BatchBuilder, scan_batches, topic_hash
from onelog.storage.engine import Engine, LogSettings, PartitionKey, PartitionLog
from tests.batches import append, fill, make_batch, read_all, spans
from tests.contract.engines import ENGINES, EngineCase

KEY = PartitionKey("s-1", 0)
SMALL = LogSettings(segment_bytes=2_000, index_interval_bytes=256)


@pytest.fixture(params=sorted(ENGINES))
def case(request: pytest.FixtureRequest) -> EngineCase:
    return ENGINES[request.param]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(case: EngineCase, tmp_path: Path, clock: ManualClock) -> Callable[[], Engine]:
    return lambda: case.make(tmp_path / "data", clock)


@pytest.fixture
def engine(make: Callable[[], Engine]) -> Iterator[Engine]:
    made = make()
    yield made
    made.close()


@pytest.fixture
def log(engine: Engine) -> PartitionLog:
    return engine.open(KEY, SMALL)


def test_a_new_partition_is_empty(log: PartitionLog):
    assert (log.start_offset, log.end_offset, log.durable_offset, log.size_bytes) == (0, 0, 0, 0)
    assert len(log.read(0, 1000, 0)) == 0
    assert log.offset_for_time(0) is None


def test_what_was_appended_is_read_byte_for_byte(log: PartitionLog):
    batches = [make_batch(0, 3), make_batch(3, 1, codec=4), make_batch(4, 5, topic=b"a/b")]
    append(log, *batches[:2])
    append(log, batches[2])
    assert read_all(log) == b"".join(batches)
    assert log.end_offset == 9
    assert log.size_bytes == sum(map(len, batches))


def test_what_is_built_is_appended_as_append_would(engine: Engine, clock: ManualClock):
    """Across rolls by size and by age, index entries, and a topic index that is kept or not."""
    for number, index_topics in enumerate((True, False)):
        settings = LogSettings(
            segment_bytes=6_000,
            index_interval_bytes=300,
            segment_age_ms=1_000,
            topic_index=index_topics,
        )
        built = engine.open(PartitionKey("built", number), settings)
        plain = engine.open(PartitionKey("plain", number), settings)
        builder = BatchBuilder(index_topics)
        for step in range(60):
            for row in range(1 + step % 7):
                topic = b"t/%d" % (row % 3)
                stamp = clock.now_ms() - row
                builder.add(topic, topic, b"%d" % step + bytes(step * 3), (), stamp)
            topics = builder.topics() if index_topics else None
            data = built.append_built(builder, 4, index_topics=index_topics)
            assert builder.count == 0
            plain.append(data, scan_batches(data), topics)
            clock.advance(1.5 if step % 20 == 19 else 0.001)
        assert read_all(built) == read_all(plain)
        assert built.segments() == plain.segments()
        assert built.end_offset == plain.end_offset
        for offset in range(0, built.end_offset, 11):
            assert bytes(built.read(offset, 1, built.end_offset)) == bytes(
                plain.read(offset, 1, plain.end_offset)
            )
        for stamp in range(clock.now_ms() - 7_000, clock.now_ms() + 100, 97):
            assert built.offset_for_time(stamp) == plain.offset_for_time(stamp)
        for topic in (b"t/0", b"t/1", b"t/2", b"no"):
            end = built.end_offset
            found = [log.offsets_of_topic(topic_hash(topic), 0, end, end) for log in (built, plain)]
            assert found[0] == found[1]
            assert index_topics == (found[0] is not None)


def test_a_builder_is_empty_also_when_its_batch_was_refused(log: PartitionLog):
    builder = BatchBuilder(True)
    for step in range(3):
        builder.add(b"t", b"t", b"%d" % step, (), 1)
        log.append_built(builder, 0, index_topics=True)
    log.close()
    builder.add(b"t", b"t", b"late", (), 1)
    with pytest.raises(OnelogError):
        log.append_built(builder, 0, index_topics=True)
    assert builder.count == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_append_takes_any_buffer_and_does_not_keep_it(log: PartitionLog, kind: type):
    data = make_batch(0, 2)
    buffer = kind(data) if kind is not memoryview else memoryview(bytearray(data))
    log.append(buffer, scan_batches(data))
    if not isinstance(buffer, bytes):
        buffer[:] = bytes(len(buffer))
    assert read_all(log) == data


def test_read_answers_from_the_batch_that_holds_the_offset(log: PartitionLog):
    append(log, make_batch(0, 5), make_batch(5, 5), make_batch(10, 5))
    assert spans(log.read(7, 1, 15)) == [(5, 9)]
    assert spans(log.read(5, 1, 15)) == [(5, 9)]
    assert spans(log.read(9, 1 << 20, 15)) == [(5, 9), (10, 14)]


def test_read_gives_one_batch_at_least_and_no_more_than_fit(log: PartitionLog):
    batches = [make_batch(at * 2, 2) for at in range(3)]
    append(log, *batches)
    two = len(batches[0]) + len(batches[1])
    assert spans(log.read(0, 0, 6)) == [(0, 1)]
    assert spans(log.read(0, two - 1, 6)) == [(0, 1)]
    assert spans(log.read(0, two, 6)) == [(0, 1), (2, 3)]


def test_read_never_gives_a_batch_that_reaches_upto(log: PartitionLog):
    append(log, make_batch(0, 5), make_batch(5, 5))
    assert len(log.read(0, 1000, 4)) == 0
    assert spans(log.read(0, 1000, 5)) == [(0, 4)]
    assert spans(log.read(0, 1000, 9)) == [(0, 4)]
    assert spans(log.read(0, 1000, 99)) == [(0, 4), (5, 9)]
    assert len(log.read(3, 1000, 2)) == 0


def test_read_at_the_end_is_empty_and_beyond_the_ends_is_refused(log: PartitionLog):
    fill(log, 3)
    assert len(log.read(3, 1000, 3)) == 0
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 1000, 3)
    with pytest.raises(OffsetOutOfRange):
        log.read(-1, 1000, 3)
    log.trim(2)
    with pytest.raises(OffsetOutOfRange):
        log.read(1, 1000, 3)


def test_a_gap_between_batches_is_skipped(log: PartitionLog):
    append(log, make_batch(0, 2))
    append(log, make_batch(10, 2))
    append(log, make_batch(100, 1))
    assert log.end_offset == 101
    assert spans(log.read(5, 1, 101)) == [(10, 11)]
    assert spans(log.read(12, 1, 101)) == [(100, 100)]
    assert spans(read_all(log)) == [(0, 1), (10, 11), (100, 100)]


def test_a_gap_wider_than_a_segment_can_number_is_kept(log: PartitionLog):
    append(log, make_batch(0, 2))
    append(log, make_batch(1 << 33, 2))
    append(log, make_batch((1 << 40) + 5, 2))
    assert spans(read_all(log)) == [
        (0, 1), (1 << 33, (1 << 33) + 1), ((1 << 40) + 5, (1 << 40) + 6),
    ]  # fmt: skip
    assert spans(log.read(3, 1, log.end_offset)) == [(1 << 33, (1 << 33) + 1)]


def test_append_below_the_end_is_refused_and_changes_nothing(log: PartitionLog):
    append(log, make_batch(0, 5))
    with pytest.raises(InvalidRequest):
        append(log, make_batch(4, 1))
    assert log.end_offset == 5
    assert spans(read_all(log)) == [(0, 4)]


def test_every_offset_is_found_across_segments(log: PartitionLog):
    fill(log, 100, size=50)
    log.roll()
    fill(log, 3)
    for offset in range(103):
        assert spans(log.read(offset, 1, 103)) == [(offset, offset)]


def test_a_batch_larger_than_a_segment_is_kept(log: PartitionLog):
    fill(log, 2)
    big = make_batch(2, 1, size=10_000)
    append(log, big)
    fill(log, 2)
    assert log.read(2, 1, 5) == big
    assert [first for first, _ in spans(read_all(log))] == [0, 1, 2, 3, 4]


def test_views_outlive_every_change(engine: Engine, log: PartitionLog):
    fill(log, 60, size=50)
    log.roll()
    views = [(offset, log.read(offset, 200, 60)) for offset in range(0, 60, 7)]
    copies = [bytes(view) for _, view in views]
    log.trim(30)
    log.truncate(45)
    fill(log, 40, size=70)
    log.close()
    engine.delete(KEY)
    assert [bytes(view) for _, view in views] == copies


# Durability.


def test_sync_makes_everything_before_it_durable(log: PartitionLog):
    fill(log, 3)
    assert log.durable_offset <= log.end_offset
    assert log.sync() == 3
    assert log.durable_offset == 3
    fill(log, 40, size=100)
    assert 3 <= log.durable_offset <= 43
    assert log.sync() == 43 == log.durable_offset
    assert log.sync() == 43


def test_a_closed_partition_opens_as_it_was(make: Callable[[], Engine], case: EngineCase):
    if not case.persistent:
        pytest.skip("holds nothing across a close")
    engine = make()
    log = engine.open(KEY, SMALL)
    fill(log, 50, size=60)
    log.trim(7)
    before = read_all(log)
    engine.close()
    for extra in range(2):
        engine = make()
        log = engine.open(KEY, SMALL)
        assert (log.start_offset, log.end_offset, log.durable_offset) == (7, 50, 50)
        assert read_all(log) == before
        assert log.size_bytes == sum(info.size_bytes for info in log.segments())
        log.close()
        log.close()
        log = engine.open(KEY, SMALL)
        assert read_all(log) == before, extra
        engine.close()


def test_appends_go_on_after_a_reopen(make: Callable[[], Engine], case: EngineCase):
    if not case.persistent:
        pytest.skip("holds nothing across a close")
    for run in range(4):
        engine = make()
        log = engine.open(KEY, SMALL)
        assert log.end_offset == run * 13
        fill(log, 13, size=40)
        engine.close()
    engine = make()
    log = engine.open(KEY, SMALL)
    assert [first for first, _ in spans(read_all(log))] == list(range(52))
    engine.close()


def test_a_closed_partition_refuses_work(log: PartitionLog):
    fill(log, 1)
    log.close()
    with pytest.raises(OnelogError):
        append(log, make_batch(1))
    with pytest.raises(OnelogError):
        log.read(0, 100, 1)


# The ends.


def test_trim_moves_the_start_and_frees_whole_segments(log: PartitionLog):
    fill(log, 60, size=60)
    log.roll()
    fill(log, 1)
    before = log.size_bytes
    log.trim(40)
    assert log.start_offset == 40
    assert log.size_bytes < before
    assert spans(log.read(40, 1, 61)) == [(40, 40)]
    assert log.segments()[0].end_offset > 40
    log.trim(10)
    assert log.start_offset == 40


def test_trim_to_the_end_leaves_an_empty_log_that_keeps_its_end(
    make: Callable[[], Engine], case: EngineCase
):
    engine = make()
    log = engine.open(KEY, SMALL)
    fill(log, 20, size=200)
    log.trim(20)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (20, 20, 0)
    if case.persistent:
        engine.close()
        engine = make()
        log = engine.open(KEY, SMALL)
        assert (log.start_offset, log.end_offset, log.size_bytes) == (20, 20, 0)
    fill(log, 2)
    assert spans(read_all(log)) == [(20, 20), (21, 21)]
    engine.close()


def test_trim_beyond_the_end_is_refused(log: PartitionLog):
    fill(log, 3)
    with pytest.raises(OffsetOutOfRange):
        log.trim(4)
    assert log.start_offset == 0


@pytest.mark.parametrize("end", [0, 1, 9, 10, 11, 29, 30, 31, 58, 59])
def test_truncate_cuts_at_the_end_and_appends_go_on(log: PartitionLog, end: int):
    fill(log, 60, size=60)
    log.truncate(end)
    assert log.end_offset == end
    assert log.durable_offset <= end
    assert [first for first, _ in spans(read_all(log))] == list(range(end))
    fresh = make_batch(end, 3, size=33)
    append(log, fresh)
    assert log.read(end, 1, end + 3) == fresh
    assert [first for first, _ in spans(read_all(log))] == list(range(end + 1))
    assert log.sync() == end + 3


def test_truncate_cuts_a_batch_as_a_whole(log: PartitionLog):
    append(log, make_batch(0, 5), make_batch(5, 5), make_batch(10, 5))
    log.truncate(8)
    assert log.end_offset == 5
    assert spans(read_all(log)) == [(0, 4)]


def test_truncate_beyond_the_end_does_nothing(log: PartitionLog):
    fill(log, 5)
    log.truncate(5)
    log.truncate(9)
    assert log.end_offset == 5


def test_truncate_below_the_start_empties_the_log(log: PartitionLog):
    fill(log, 30, size=60)
    log.trim(20)
    log.truncate(10)
    assert log.start_offset == log.end_offset == 10
    assert log.size_bytes == 0
    append(log, make_batch(10))
    assert spans(read_all(log)) == [(10, 10)]


def test_a_truncated_log_opens_truncated(make: Callable[[], Engine], case: EngineCase):
    if not case.persistent:
        pytest.skip("holds nothing across a close")
    engine = make()
    log = engine.open(KEY, SMALL)
    fill(log, 60, size=60)
    log.truncate(33)
    append(log, make_batch(33, 7))
    log.truncate(38)
    engine.close()
    engine = make()
    log = engine.open(KEY, SMALL)
    assert log.end_offset == 33
    assert [first for first, _ in spans(read_all(log))] == list(range(33))
    engine.close()


# Segments.


def test_segments_cover_the_log_and_the_last_is_active(log: PartitionLog):
    fill(log, 60, size=60)
    rows = log.segments()
    assert rows[0].base_offset == 0
    assert rows[-1].end_offset == 60
    assert not rows[-1].sealed
    assert all(row.sealed for row in rows[:-1])
    assert all(a.end_offset == b.base_offset for a, b in pairwise(rows))
    assert sum(row.size_bytes for row in rows) == log.size_bytes


def test_what_was_not_moved_has_its_place_on_this_machine(log: PartitionLog):
    fill(log, 100)
    end = log.end_offset
    assert {row.place for row in log.segments()} == {"local"}
    assert log.local_start_offset == log.start_offset
    log.trim(log.segments()[1].base_offset)
    assert log.local_start_offset == log.start_offset > 0
    assert (list(log.cold_rows(0, end)), list(log.aborted(0, end))) == ([], [])


def test_roll_seals_what_is_there(log: PartitionLog):
    fill(log, 3)
    log.roll()
    fill(log, 2)
    rows = [row for row in log.segments() if row.size_bytes]
    assert [(row.base_offset, row.end_offset, row.sealed) for row in rows] == [
        (0, 3, True),
        (3, 5, False),
    ]
    log.roll()
    log.roll()
    assert [row.base_offset for row in log.segments() if row.size_bytes] == [0, 3]
    assert not log.segments()[-1].sealed


def test_a_segment_knows_its_highest_timestamp(log: PartitionLog):
    for offset, timestamp_ms in enumerate([500, 900, 700]):
        append(log, make_batch(offset, timestamp_ms=timestamp_ms))
    log.roll()
    append(log, make_batch(3, timestamp_ms=100))
    rows = [row for row in log.segments() if row.size_bytes]
    assert [row.max_timestamp_ms for row in rows] == [900, 100]


def test_reconfigure_counts_from_now_on(engine: Engine):
    log = engine.open(KEY, LogSettings(topic_index=False))
    append(log, make_batch(0, topic=b"t"))
    assert log.offsets_of_topic(topic_hash(b"t"), 0, 1, 10) is None
    log.reconfigure(SMALL)
    append(log, make_batch(1, topic=b"t"))
    found = log.offsets_of_topic(topic_hash(b"t"), 1, 2, 10)
    assert found == [1]


# Lookups.


def test_offset_for_time_finds_the_first_batch_that_reaches_it(log: PartitionLog):
    stamps = [100, 100, 300, 200, 400, 50, 400, 600] * 8
    stamps = [stamp + 1000 * (at // 8) for at, stamp in enumerate(stamps)]
    for offset, stamp in enumerate(stamps):
        append(log, make_batch(offset, timestamp_ms=stamp, size=40))
    for wanted in [0, 100, 101, 300, 301, 600, 601, 1500, 4444, 7600, 7601]:
        expected = next((at for at, stamp in enumerate(stamps) if stamp >= wanted), None)
        assert log.offset_for_time(wanted) == expected, wanted


def test_offset_for_time_knows_no_batch_below_the_start(log: PartitionLog):
    for offset in range(20):
        append(log, make_batch(offset, timestamp_ms=1000 + offset))
    log.trim(7)
    assert log.offset_for_time(0) == 7
    assert log.offset_for_time(1012) == 12


def test_offset_for_time_looks_at_batches_as_wholes(log: PartitionLog):
    append(log, make_batch(0, 5, timestamp_ms=10), make_batch(5, 5, timestamp_ms=20))
    assert log.offset_for_time(15) == 5


def check_topics(log: PartitionLog, topics: list[bytes]) -> None:
    for topic in {*topics, b"nobody"}:
        exact = [at for at, held in enumerate(topics) if held == topic]
        key = topic_hash(topic)
        end = len(topics)
        assert log.offsets_of_topic(key, 0, end, 10_000) == exact
        assert log.offsets_of_topic(key, 0, end, 3) == exact[:3]
        middle = [at for at in exact if 20 <= at < 70]
        assert log.offsets_of_topic(key, 20, 70, 10_000) == middle


@pytest.mark.parametrize("given", [True, False], ids=["given", "derived"])
def test_offsets_of_topic_are_exact_across_segments(
    make: Callable[[], Engine], case: EngineCase, given: bool
):
    engine = make()
    log = engine.open(KEY, SMALL)
    rng = random.Random(7)
    topics = [b"t/%d" % rng.randrange(6) for _ in range(90)]
    for offset in range(0, 90, 2):
        first = make_batch(offset, topic=topics[offset], size=30)
        second = make_batch(offset + 1, topic=topics[offset + 1], codec=offset % 5)
        pairs = b"".join(
            topic_hash(topics[offset + at]).to_bytes(4, "little") + at.to_bytes(4, "little")
            for at in (0, 1)
        )
        append(log, first, second, topics=pairs if given else None)
        if offset % 20 == 0:  # asking in between must not change later answers
            log.offsets_of_topic(topic_hash(b"t/1"), 0, offset, 5)
    check_topics(log, topics)
    if case.persistent:
        engine.close()
        engine = make()
        log = engine.open(KEY, SMALL)
        check_topics(log, topics)
        append(log, make_batch(90, topic=b"t/1"))
        check_topics(log, [*topics, b"t/1"])
    engine.close()


def test_a_topic_index_that_is_off_answers_none(engine: Engine):
    log = engine.open(KEY, LogSettings(topic_index=False))
    append(log, make_batch(0, topic=b"t"))
    assert log.offsets_of_topic(topic_hash(b"t"), 0, 1, 10) is None


# Rewriting.


def sealed_range(log: PartitionLog) -> tuple[int, int]:
    rows = [row for row in log.segments() if row.sealed]
    return rows[0].base_offset, rows[-1].end_offset


def test_a_rewrite_replaces_batches_and_moves_no_offset(
    make: Callable[[], Engine], case: EngineCase
):
    engine = make()
    log = engine.open(KEY, SMALL)
    fill(log, 60, size=60)
    log.roll()
    fill(log, 5)
    start, end = sealed_range(log)
    assert (start, end) == (0, 60)
    rewrite = log.rewrite(start, end)
    kept = [make_batch(offset, size=60) for offset in range(0, 60, 3)]
    for batch in kept:
        rewrite.append(batch, scan_batches(batch))
    assert [first for first, _ in spans(read_all(log))] == list(range(65))
    rewrite.commit()
    expected = [*range(0, 60, 3), *range(60, 65)]
    assert [first for first, _ in spans(read_all(log))] == expected
    assert (log.start_offset, log.end_offset) == (0, 65)
    assert spans(log.read(1, 1, 65)) == [(3, 3)]
    assert spans(log.read(58, 1, 65)) == [(60, 60)]
    fill(log, 2)
    assert [first for first, _ in spans(read_all(log))] == [*expected, 65, 66]
    if case.persistent:
        engine.close()
        engine = make()
        log = engine.open(KEY, SMALL)
        assert [first for first, _ in spans(read_all(log))] == [*expected, 65, 66]
    engine.close()


def test_a_rewrite_keeps_the_topic_and_time_lookups(log: PartitionLog):
    for offset in range(40):
        topic = b"t/%d" % (offset % 4)
        append(log, make_batch(offset, topic=topic, size=60, timestamp_ms=1000 + offset))
    log.roll()
    rewrite = log.rewrite(*sealed_range(log))
    for offset in range(20, 40):
        batch = make_batch(offset, topic=b"t/%d" % (offset % 4), timestamp_ms=1000 + offset)
        rewrite.append(batch, scan_batches(batch))
    rewrite.commit()
    assert log.offset_for_time(1000) == 20
    assert log.offset_for_time(1033) == 33
    found = log.offsets_of_topic(topic_hash(b"t/1"), 20, 40, 100)
    assert found == list(range(21, 40, 4))


def test_a_rewrite_that_keeps_nothing_leaves_a_gap(log: PartitionLog):
    fill(log, 30, size=60)
    log.roll()
    fill(log, 2)
    rewrite = log.rewrite(*sealed_range(log))
    rewrite.commit()
    assert (log.start_offset, log.end_offset) == (0, 32)
    assert spans(log.read(0, 1, 32)) == [(30, 30)]
    assert [first for first, _ in spans(read_all(log))] == [30, 31]


def test_an_aborted_rewrite_leaves_no_trace(log: PartitionLog):
    fill(log, 30, size=60)
    log.roll()
    before, size = read_all(log), log.size_bytes
    rewrite = log.rewrite(*sealed_range(log))
    batch = make_batch(0, size=60)
    rewrite.append(batch, scan_batches(batch))
    rewrite.abort()
    rewrite.abort()
    assert read_all(log) == before
    assert log.size_bytes == size
    again = log.rewrite(*sealed_range(log))
    again.append(batch, scan_batches(batch))
    again.commit()
    assert spans(read_all(log)) == [(0, 0)]


def test_a_rewrite_outside_sealed_segments_is_refused(log: PartitionLog):
    fill(log, 30, size=60)
    log.roll()
    fill(log, 1)
    start, end = sealed_range(log)
    with pytest.raises(InvalidRequest):
        log.rewrite(start, end + 1)
    rewrite = log.rewrite(start, end)
    outside = make_batch(end)
    with pytest.raises(InvalidRequest):
        rewrite.append(outside, scan_batches(outside))
    rewrite.abort()


# Derived state.


def test_the_newest_state_is_loaded(make: Callable[[], Engine], case: EngineCase):
    engine = make()
    log = engine.open(KEY, SMALL)
    fill(log, 10)
    assert log.load_state("producers") is None
    log.save_state("producers", 3, b"three")
    log.save_state("producers", 7, b"seven")
    log.save_state("epochs", 5, b"")
    assert log.load_state("producers") == (7, b"seven")
    assert log.load_state("epochs") == (5, b"")
    log.save_state("producers", 7, b"again")
    assert log.load_state("producers") == (7, b"again")
    if case.persistent:
        engine.close()
        engine = make()
        log = engine.open(KEY, SMALL)
        assert log.load_state("producers") == (7, b"again")
    engine.close()


def test_a_state_beyond_a_truncation_is_gone_for_good(log: PartitionLog):
    fill(log, 10)
    log.save_state("producers", 4, b"four")
    log.save_state("producers", 8, b"eight")
    log.truncate(6)
    assert log.load_state("producers") == (4, b"four")
    fill(log, 10)
    assert log.load_state("producers") == (4, b"four")


# The engine.


def test_partitions_are_apart_and_listed(engine: Engine):
    keys = [PartitionKey("a", 0), PartitionKey("a", 1), PartitionKey("b", 0)]
    for number, key in enumerate(keys):
        log = engine.open(key, SMALL)
        fill(log, number + 1)
    assert sorted(engine.partitions()) == keys


def test_a_deleted_partition_is_gone_and_may_come_back(engine: Engine):
    log = engine.open(KEY, SMALL)
    fill(log, 30, size=60)
    log.save_state("producers", 3, b"x")
    log.close()
    engine.delete(KEY)
    assert engine.partitions() == []
    engine.delete(KEY)
    log = engine.open(KEY, SMALL)
    assert (log.start_offset, log.end_offset) == (0, 0)
    assert log.load_state("producers") is None
    fill(log, 1)
    assert spans(read_all(log)) == [(0, 0)]


def test_a_partition_that_is_set_aside_is_gone_and_may_come_back(engine: Engine):
    for count in (3, 2):
        log = engine.open(KEY, SMALL)
        assert (log.start_offset, log.end_offset) == (0, 0)
        fill(log, count)
        log.close()
        engine.set_aside(KEY)
        assert engine.partitions() == []
    engine.set_aside(KEY)


def test_engine_close_is_idempotent(make: Callable[[], Engine]):
    engine = make()
    fill(engine.open(KEY, SMALL), 3)
    engine.close()
    engine.close()


# Threads.


def test_readers_and_syncs_run_beside_the_writer(log: PartitionLog):
    """Every method may be called from any thread; a reader sees whole batches, in order."""
    done = threading.Event()
    failures: list[BaseException] = []

    def reader() -> None:
        offset = 0
        try:
            while offset < 600:
                view = log.read(offset, 500, log.end_offset)
                for first, last in spans(view):
                    assert first == offset
                    offset = last + 1
                if not len(view) and done.is_set() and offset == log.end_offset:
                    break
            assert offset == 600
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    def syncer() -> None:
        try:
            durable = 0
            while not done.is_set():
                synced = log.sync()
                assert durable <= synced <= log.end_offset
                durable = synced
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (reader, reader, syncer)]
    for thread in threads:
        thread.start()
    try:
        fill(log, 600, size=60)
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    assert log.sync() == 600
