"""Does every storage engine cut a tail so that nothing of it is left, however often?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset
from onelog.kernel import topic_hash
from onelog.storage.engine import Engine, LogSettings, PartitionKey, PartitionLog
from tests.batches import append, make_batch, read_all, spans
from tests.contract.engines import ENGINES, EngineCase

KEY = PartitionKey("s-1", 0)
SMALL = LogSettings(segment_bytes=2_000, index_interval_bytes=256)
TOPICS = (b"even", b"odd")


@pytest.fixture(params=sorted(ENGINES))
def case(request: pytest.FixtureRequest) -> EngineCase:
    return ENGINES[request.param]


@pytest.fixture
def engine(case: EngineCase, tmp_path: Path) -> Iterator[Engine]:
    made = case.make(tmp_path / "data", ManualClock())
    yield made
    made.close()


def write(log: PartitionLog, upto: int) -> None:
    """Batches of one record whose topic and time follow from the offset."""
    for offset in range(log.end_offset, upto):
        append(
            log, make_batch(offset, size=40, topic=TOPICS[offset % 2], timestamp_ms=1000 + offset)
        )


def check(log: PartitionLog, end: int) -> None:
    """It is what `write` made, up to `end`, whichever way it is asked."""
    assert log.end_offset == end
    data = read_all(log)
    assert [first for first, _ in spans(data)] == list(range(end))
    assert log.size_bytes == len(data)
    rows = log.segments()
    assert rows[-1].end_offset == end
    assert max((row.max_timestamp_ms for row in rows), default=-1) == (999 + end if end else -1)
    assert log.offset_for_time(1000 + end) is None
    if end:
        assert log.offset_for_time(999 + end) == end - 1
    for number, topic in enumerate(TOPICS):
        found = log.offsets_of_topic(topic_hash(topic), 0, end, 1000)
        assert found == list(range(number, end, 2))


@pytest.mark.parametrize("cuts", [(50, 40, 30), (7, 6, 5), (30, 30, 1), (45, 0, 12)])
def test_a_log_that_is_cut_again_and_again_holds_what_was_written_last(
    engine: Engine, cuts: tuple[int, ...]
):
    log = engine.open(KEY, SMALL)
    for cut in cuts:
        write(log, 60)
        log.truncate(cut)
        check(log, cut)
        write(log, cut + 3)
        check(log, cut + 3)
    write(log, 60)
    check(log, 60)


@pytest.mark.parametrize("cut", [1, 17, 44])
def test_a_cut_log_opens_as_it_was_and_grows(case: EngineCase, tmp_path: Path, cut: int):
    if not case.persistent:
        pytest.skip("holds nothing across a close")
    for grown in (cut + 10, cut + 20):
        engine = case.make(tmp_path / "data", ManualClock())
        log = engine.open(KEY, SMALL)
        write(log, 60)
        log.truncate(cut)
        engine.close()
        engine = case.make(tmp_path / "data", ManualClock())
        log = engine.open(KEY, SMALL)
        check(log, cut)
        write(log, grown)
        check(log, grown)
        engine.close()


def test_a_high_watermark_is_kept_and_grows_and_never_passes_the_end(
    case: EngineCase, tmp_path: Path
):
    engine = case.make(tmp_path / "data", ManualClock())
    log = engine.open(KEY, SMALL)
    assert log.kept_high_watermark == 0
    write(log, 40)
    log.keep_high_watermark(Offset(30))
    log.keep_high_watermark(Offset(20))
    assert log.kept_high_watermark == 30
    log.truncate(Offset(35))
    assert log.kept_high_watermark == 30
    log.truncate(Offset(25))
    assert log.kept_high_watermark == 25
    write(log, 40)
    assert log.kept_high_watermark == 25
    log.keep_high_watermark(Offset(1000))
    assert log.kept_high_watermark == 40
    write(log, 50)
    log.sync()
    log.trim(Offset(10))
    engine.close()
    if case.persistent:
        engine = case.make(tmp_path / "data", ManualClock())
        assert engine.open(KEY, SMALL).kept_high_watermark == 40
        engine.close()


def test_a_cut_log_is_trimmed_and_rewritten_like_any_other(engine: Engine):
    log = engine.open(KEY, SMALL)
    write(log, 60)
    log.truncate(25)
    write(log, 40)
    log.roll()
    rows = [row for row in log.segments() if row.sealed]
    rewrite = log.rewrite(rows[0].base_offset, rows[-1].end_offset)
    rewrite.commit()
    assert read_all(log) == b""
    write(log, 50)
    assert [first for first, _ in spans(read_all(log))] == list(range(40, 50))
    log.trim(45)
    assert [first for first, _ in spans(read_all(log))] == list(range(45, 50))
