"""Frozen files of every engine: a copy of them is the log up to the cut, whatever comes later."""

from __future__ import annotations

from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import scan_batches
from onelog.storage.engine import LogSettings, PartitionKey, in_place
from tests.batches import append, fill, make_batch, read_all, spans
from tests.contract.engines import ENGINES

KEY = PartitionKey("stream-1", PartitionId(0))
SMALL = LogSettings(segment_bytes=500)


@pytest.fixture(params=[name for name, case in ENGINES.items() if case.persistent and case.freezes])
def case(request):
    return ENGINES[request.param]


def copied(frozen: Path, files: dict[str, int], into: Path) -> Path:
    """Copy the bytes that count, as a backup does."""
    for name, size_bytes in files.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((frozen / name).read_bytes()[:size_bytes])
    return into


def opened(case, root: Path, cut: int):
    engine = case.make(root, ManualClock())
    log = engine.open(KEY, SMALL)
    if log.end_offset > cut:
        log.truncate(Offset(cut))
    return engine, log


@pytest.mark.parametrize("trimmed", [0, 7])
def test_a_copy_ends_at_any_cut_and_goes_on_there(case, tmp_path, trimmed):
    engine = case.make(tmp_path / "engine", ManualClock())
    log = engine.open(KEY, SMALL)
    fill(log, 20)
    log.trim(Offset(trimmed))
    whole = read_all(log)
    cuts = [first for first, _ in spans(whole)] + [int(log.end_offset)]
    frozen = {}
    for cut in cuts:
        frozen[cut] = engine.freeze({KEY: Offset(cut)}, tmp_path / f"frozen{cut}")
    # The log goes on, in the same files, and what was frozen leaves it.
    fill(log, 20)
    log.roll()
    log.trim(log.end_offset)
    for cut in cuts:
        folder = copied(tmp_path / f"frozen{cut}", frozen[cut], tmp_path / f"copy{cut}")
        other, copy = opened(case, folder, cut)
        expected = b"".join(make for make in _batches(whole) if spans(make)[0][1] < cut)
        assert copy.end_offset == cut
        assert read_all(copy) == expected
        for first, _ in spans(expected):
            data = read_all(copy, first)
            assert spans(data)[0][0] == first
        append(copy, make_batch(cut, 1))
        assert copy.end_offset == cut + 1
        other.close()
        again, copy = opened(case, folder, cut + 1)
        assert spans(read_all(copy))[-1] == (cut, cut)
        again.close()
    engine.close()


def _batches(data: bytes) -> list[bytes]:
    return [data[row.position : row.position + row.size_bytes] for row in scan_batches(data)]


def test_a_frozen_copy_has_the_states_that_its_log_has(case, tmp_path):
    engine = case.make(tmp_path / "engine", ManualClock())
    log = engine.open(KEY, SMALL)
    fill(log, 10)
    log.save_state("s", Offset(5), b"five")
    log.save_state("s", Offset(10), b"ten")
    files = engine.freeze({KEY: Offset(10)}, tmp_path / "frozen")
    other, copy = opened(case, copied(tmp_path / "frozen", files, tmp_path / "copy"), 10)
    assert copy.load_state("s") == (10, b"ten")
    other.close()
    engine.close()


def test_indexes_of_sealed_segments_are_frozen_and_are_right(tmp_path):
    case = ENGINES["segment"]
    engine = case.make(tmp_path / "engine", ManualClock())
    log = engine.open(KEY, LogSettings(segment_bytes=1000, index_interval_bytes=1))
    fill(log, 40)
    files = engine.freeze({KEY: log.end_offset}, tmp_path / "frozen")
    assert sum(name.endswith(".index") for name in files) >= 2
    found = [log.offset_for_time(row.max_timestamp_ms) for row in log.segments()]
    other, copy = opened(case, copied(tmp_path / "frozen", files, tmp_path / "copy"), 40)
    assert [
        in_place(copy, lambda row=row: copy.offset_for_time(row.max_timestamp_ms))
        for row in log.segments()
    ] == found
    other.close()
    engine.close()


def test_a_partition_that_was_never_written_has_no_files(tmp_path):
    engine = ENGINES["segment"].make(tmp_path / "engine", ManualClock())
    engine.open(KEY, SMALL)
    assert engine.freeze({KEY: Offset(0)}, tmp_path / "frozen") == {}
    engine.close()


def test_an_engine_in_memory_has_nothing_to_freeze(tmp_path):
    engine = ENGINES["memory"].make(tmp_path, ManualClock())
    log = engine.open(KEY, SMALL)
    fill(log, 3)
    assert engine.freeze({KEY: Offset(3)}, tmp_path / "frozen") == {}
    engine.close()
