"""Is a tail cut without a copy, and does a crash at any step leave a log that is cut or not cut?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from onelog.base import faults
from onelog.base.clock import ManualClock
from onelog.base.errors import PartitionCorrupt
from onelog.base.ids import Offset
from onelog.kernel import topic_hash
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine, truncation
from onelog.storage.segment.checkpoint import Checkpoint, CheckpointFile, SegmentRow
from onelog.storage.segment.partition import SegmentLog
from onelog.storage.segment.scan import Piece, Walk
from tests.batches import append, fill, make_batch, read_all, spans

KEY = PartitionKey("s-1", 0)
SMALL = LogSettings(segment_bytes=2_000, index_interval_bytes=256)
STEPS = (
    "segment.fsync", "segment.checkpoint", "segment.checkpoint.written", "segment.truncate",
    "segment.unlink", "segment.create",
)  # fmt: skip


def firsts(log: SegmentLog) -> list[int]:
    return [first for first, _ in spans(read_all(log))]


def log_files(root: Path) -> dict[str, tuple[int, int]]:
    """Inode and size of each segment's log."""
    found = {path.name: path.stat() for path in sorted(root.rglob("*.log"))}
    return {name: (row.st_ino, row.st_size) for name, row in found.items()}


def test_a_cut_copies_nothing_and_the_rest_goes_at_the_next_open(tmp_path: Path):
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    fill(log, 10, size=60)
    log.roll()
    (name, (inode, size)), *_ = log_files(tmp_path).items()
    view = log.read(6, 1, 10)
    was = bytes(view)
    log.truncate(5)
    assert log_files(tmp_path)[name] == (inode, size)
    assert bytes(view) == was, "who reads it goes on"
    fill(log, 3, size=60)
    assert firsts(log) == list(range(8))
    kept_bytes = log.segments()[0].size_bytes
    engine.close()
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    assert log_files(tmp_path)[name] == (inode, kept_bytes)
    assert log.recovery.clean
    assert firsts(log) == list(range(8))
    engine.close()


def test_a_cut_looks_at_few_batches_however_large_the_segment_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The index knows nearly all of what the kept part is."""
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, LogSettings(segment_bytes=1 << 20, index_interval_bytes=256))
    for number in range(500):
        append(log, make_batch(number, size=60, timestamp_ms=1_000 + number % 400))
    walked: list[int] = []

    class CountedWalk(Walk):
        def pieces(self) -> Iterator[Piece]:
            for piece in super().pieces():
                walked.append(len(piece[1]))
                yield piece

    monkeypatch.setattr(truncation, "Walk", CountedWalk)
    log.truncate(450)
    assert sum(walked) <= 5
    row = log.segments()[0]
    assert (row.max_timestamp_ms, row.end_offset) == (1_399, 450)
    log.truncate(300)
    row = log.segments()[0]
    assert (row.max_timestamp_ms, row.end_offset) == (1_299, 300)
    assert log.offset_for_time(1_299) == 299
    assert log.offset_for_time(1_300) is None
    assert firsts(log) == list(range(300))
    engine.close()


def test_a_cut_through_a_segment_whose_index_is_gone_is_right(tmp_path: Path):
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    fill(log, 40, size=60)
    engine.close()
    for path in tmp_path.rglob("*.index"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    log.truncate(5)
    assert firsts(log) == list(range(5))
    engine.close()
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    fill(log, 5)
    assert firsts(log) == list(range(10))
    engine.close()


def test_what_was_cut_does_not_come_back_when_both_checkpoints_are_damaged(tmp_path: Path):
    """I9: nobody knows which of the bytes count, so the partition stops."""
    root = tmp_path / "data"
    log = SegmentEngine(root).open(KEY, SMALL)
    fill(log, 10, size=60)
    log.truncate(5)
    shutil.copytree(root, tmp_path / "image")
    for path in (tmp_path / "image").rglob("checkpoint.*"):
        path.write_bytes(b"\0" * 4096)
    with pytest.raises(PartitionCorrupt, match="overlaps"):
        SegmentEngine(tmp_path / "image").open(KEY, SMALL)
    log.close()


def test_a_kept_high_watermark_ends_where_a_torn_tail_was_cut(tmp_path: Path):
    """It would count for other records once the log has grown past it."""
    root = tmp_path / "data"
    log = SegmentEngine(root).open(KEY, LogSettings())
    fill(log, 10, size=60)
    log.keep_high_watermark(Offset(9))
    image = tmp_path / "image"
    shutil.copytree(root, image)
    log.close()
    (path,) = image.rglob("*.log")
    with path.open("r+b") as file:
        file.seek(7 * len(make_batch(0, size=60)) + 70)
        file.write(b"\xff")
    for _ in range(2):
        engine = SegmentEngine(image)
        log = engine.open(KEY, LogSettings())
        assert log.kept_high_watermark == 7
        fill(log, 5)
        engine.close()


@pytest.mark.parametrize("end", [0, 3, 15, 31, 39])
def test_a_crash_at_any_step_leaves_the_log_cut_or_not_cut(tmp_path: Path, end: int):
    """Each step is a copy of the files as kill -9 would leave them."""
    clock = ManualClock()
    root = tmp_path / "data"
    engine = SegmentEngine(root, clock)
    log = engine.open(KEY, SMALL)
    for number in range(40):
        append(log, make_batch(number, size=60, topic=b"t"))
    log.save_state("producers", 20, b"old")
    log.save_state("producers", 35, b"new")
    images: list[Path] = []

    def crash() -> None:
        images.append(tmp_path / f"image{len(images)}")
        shutil.copytree(root, images[-1])

    for step in STEPS:
        faults.arm(step, crash)
    try:
        log.truncate(end)
    finally:
        faults.disarm()
    crash()
    fill(log, 2)  # what came after the cut is not taken for what was cut
    crash()
    after = images[-1]
    engine.close()
    assert len(images) > len(STEPS)
    seen = set()
    for image in images:
        engine = SegmentEngine(image, clock)
        log = engine.open(KEY, SMALL)
        seen.add(log.end_offset)
        assert log.end_offset == end + 2 if image == after else log.end_offset in (40, end)
        was = log.end_offset
        assert firsts(log) == list(range(was))
        held = log.load_state("producers")
        assert held is None or held[0] <= was
        append(log, make_batch(was, topic=b"t"))
        wanted = [at for at in range(was + 1) if image != after or not end <= at < end + 2]
        assert log.offsets_of_topic(topic_hash(b"t"), 0, was + 1, 100) == wanted
        engine.close()
        engine = SegmentEngine(image, clock)
        assert firsts(engine.open(KEY, SMALL)) == list(range(was + 1))
        engine.close()
    assert seen == {40, end, end + 2}


def test_a_truncation_that_older_software_began_is_finished(tmp_path: Path):
    """It left the kept bytes in the tail, and kept no high watermark."""
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, LogSettings())
    fill(log, 10, size=60)
    directory = log.directory
    engine.close()
    box = CheckpointFile(directory)
    saved, _ = box.load()
    assert saved is not None
    size = saved.tail.size_bytes // 10
    tail = SegmentRow(0, 5 * size, 4 * size, saved.tail.max_timestamp_ms, saved.tail.created_ms)
    old = msgspec.msgpack.encode([1, 0, 5, [], msgspec.to_builtins(tail), [], True])
    box.save(msgspec.msgpack.decode(old, type=Checkpoint))
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, LogSettings())
    assert firsts(log) == list(range(5))
    assert log.kept_high_watermark == 0
    fill(log, 2)
    assert firsts(log) == list(range(7))
    engine.close()
