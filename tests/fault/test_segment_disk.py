"""What does the segment engine do when the disk is full or fails? (I4, I9)"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.base.errors import OnelogError, PartitionStopped, StorageError, StorageFull
from onelog.kernel import scan_batches
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine, SegmentLog
from tests.batches import append, fill, make_batch, read_all, spans

KEY = PartitionKey("s-1", 0)
SETTINGS = LogSettings(segment_bytes=2_000, index_interval_bytes=256)


@pytest.fixture
def log(tmp_path: Path) -> SegmentLog:
    return SegmentEngine(tmp_path).open(KEY, SETTINGS)


def firsts(log: SegmentLog) -> list[int]:
    return [first for first, _ in spans(read_all(log))]


@pytest.mark.parametrize("point", ["write", "allocate", "create", "roll"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_append_after_enospc_leaves_the_log_as_it_was(
    tmp_path: Path, log: SegmentLog, point: str, code: int
):
    """A full disk refuses the append, loses nothing, and the partition goes on with room."""
    fill(log, 20, size=60)
    if point in ("allocate", "create"):
        log.roll()
    log.sync()
    before, size = read_all(log), log.size_bytes
    faults.arm(f"segment.{point}", faults.fail_with(code))
    for _ in range(3):
        with pytest.raises(StorageFull, match="no room"):
            append(log, make_batch(20, 40, size=60))
    assert (log.end_offset, log.size_bytes) == (20, size)
    assert read_all(log) == before
    faults.disarm()
    fill(log, 20, size=60)
    assert firsts(log) == list(range(40))
    assert log.sync() == 40
    again = SegmentEngine(tmp_path).open(KEY, SETTINGS)
    assert firsts(again) == list(range(40))


def test_a_smaller_reserve_is_tried_before_an_append_is_refused(log: SegmentLog):
    refused = iter([True])

    def once() -> None:
        if next(refused, False):
            raise OSError(errno.ENOSPC, "full")

    faults.arm("segment.allocate", once)
    fill(log, 3)
    assert log.end_offset == 3


def test_a_file_system_without_reservation_works(tmp_path: Path, log: SegmentLog):
    faults.arm("segment.allocate", faults.fail_with(errno.EOPNOTSUPP))
    fill(log, 50, size=60)
    assert firsts(log) == list(range(50))
    path = tmp_path / "s-1" / "0" / f"{log.segments()[-1].base_offset:020}.log"
    assert path.stat().st_size == log.segments()[-1].size_bytes


def test_what_a_failed_append_wrote_is_not_found_by_recovery(
    tmp_path: Path, log: SegmentLog, monkeypatch: pytest.MonkeyPatch
):
    """Half of a refused append must not come to life behind a later, shorter one."""
    first, second = make_batch(0), make_batch(1)
    real = os.pwrite

    def short(fd: int, data: bytes, at: int) -> int:
        if at == 0 and len(data) > len(first):
            real(fd, data, at)  # all of it reached the page cache before the error
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", short)
    with pytest.raises(StorageFull):
        append(log, first, second)
    monkeypatch.undo()
    append(log, first)
    again = SegmentEngine(tmp_path).open(KEY, SETTINGS)
    assert firsts(again) == [0]


def test_short_writes_are_finished(log: SegmentLog, monkeypatch: pytest.MonkeyPatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:7], at))
    batch = make_batch(0, 3)
    append(log, batch)
    monkeypatch.undo()
    assert read_all(log) == batch


def test_a_failed_write_stops_the_partition(tmp_path: Path, log: SegmentLog):
    fill(log, 3)
    log.sync()
    faults.arm("segment.write", faults.fail_with(errno.EIO))
    with pytest.raises(PartitionStopped, match="check the disk"):
        fill(log, 1)
    faults.disarm()
    with pytest.raises(PartitionStopped):
        fill(log, 1)
    assert firsts(log) == [0, 1, 2]
    assert firsts(SegmentEngine(tmp_path).open(KEY, SETTINGS)) == [0, 1, 2]


def test_a_failed_fsync_stops_the_partition_until_it_is_opened_again(
    tmp_path: Path, log: SegmentLog
):
    """I4: after a failed fsync nothing is called durable; I9: and nothing more is taken."""
    fill(log, 3)
    log.sync()
    fill(log, 2)
    faults.arm("segment.fsync", faults.fail_with(errno.EIO))
    with pytest.raises(PartitionStopped, match="fsync"):
        log.sync()
    faults.disarm()
    assert log.durable_offset == 3
    for work in (log.sync, log.roll, lambda: fill(log, 1), lambda: log.trim(1)):
        with pytest.raises(PartitionStopped, match="restart"):
            work()
    assert firsts(log) == [0, 1, 2, 3, 4]
    log.close()
    again = SegmentEngine(tmp_path).open(KEY, SETTINGS)
    assert again.end_offset == again.durable_offset == 5
    fill(again, 1)
    assert again.sync() == 6


def test_an_engine_with_a_stopped_partition_is_not_marked_clean(tmp_path: Path):
    engine = SegmentEngine(tmp_path)
    log = engine.open(KEY, SETTINGS)
    fill(log, 1)
    faults.arm("segment.fsync", faults.fail_with(errno.EIO))
    with pytest.raises(PartitionStopped):
        log.sync()
    faults.disarm()
    engine.close()
    assert not SegmentEngine(tmp_path).was_clean


def test_a_stop_that_cannot_be_noted_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    engine = SegmentEngine(tmp_path)
    fill(engine.open(KEY, SETTINGS), 1)
    monkeypatch.setattr("onelog.storage.segment.engine.sync_directory", fail)
    with pytest.raises(StorageError, match="nothing is lost"):
        engine.close()
    monkeypatch.undo()
    assert SegmentEngine(tmp_path).open(KEY, SETTINGS).end_offset == 1


@pytest.mark.parametrize("left", [0, 1], ids=["nothing left", "later ones left"])
def test_segments_behind_one_that_lost_all_are_not_the_log(tmp_path: Path, left: int):
    """A log that begins with a hole would keep its readers at it for ever. Found by a seed."""
    log = SegmentEngine(tmp_path).open(KEY, SETTINGS)
    fill(log, 100, size=60)  # several segments, and no sync
    files = sorted(tmp_path.rglob("*.log"))
    assert len(files) > 1
    for file in files[: 1 if left else None]:
        file.write_bytes(b"")
    again = SegmentEngine(tmp_path).open(KEY, SETTINGS)
    assert again.end_offset == again.start_offset == 0
    fill(again, 1)
    assert firsts(again) == [0]


def fail(*_arguments: object) -> None:
    raise OSError(errno.EIO, "the disk failed")


def test_no_room_for_a_checkpoint_does_not_fail_the_sync(tmp_path: Path, log: SegmentLog):
    faults.arm("segment.checkpoint", faults.fail_with(errno.ENOSPC))
    fill(log, 60, size=60)
    assert log.sync() == 60
    with pytest.raises(StorageFull):
        log.trim(30)
    assert log.start_offset == 0
    again = SegmentEngine(tmp_path).open(KEY, SETTINGS)  # as after a kill, the disk still full
    assert firsts(again) == list(range(60))
    faults.disarm()
    again.trim(30)
    assert firsts(again) == list(range(30, 60))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("after", range(8))
def test_a_rewrite_that_fails_leaves_old_or_new_batches(
    tmp_path: Path, log: SegmentLog, code: int, after: int
):
    fill(log, 45, size=60)
    log.roll()
    log.sync()
    old = list(range(45))
    new = list(range(0, 45, 2))
    rewrite = log.rewrite(0, 45)
    for offset in new:
        batch = make_batch(offset, size=60)
        rewrite.append(batch, scan_batches(batch))
    for point in ("segment.swap", "segment.fsync", "segment.unlink", "segment.checkpoint"):
        faults.arm(point, faults.fail_with(code, after))
    with contextlib.suppress(OnelogError):
        rewrite.commit()
    faults.disarm()
    again = SegmentEngine(tmp_path).open(KEY, SETTINGS)
    assert firsts(again) in (old, new)
    fill(again, 2)
    assert firsts(again)[-2:] == [45, 46]


def test_a_failed_state_is_an_error_and_the_older_one_stays(log: SegmentLog):
    fill(log, 5)
    log.save_state("producers", 2, b"two")
    faults.arm("segment.state", faults.fail_with(errno.ENOSPC))
    with pytest.raises(StorageFull):
        log.save_state("producers", 4, b"four")
    faults.arm("segment.state", faults.fail_with(errno.EIO))
    with pytest.raises(StorageError):
        log.save_state("producers", 4, b"four")
    assert log.load_state("producers") == (2, b"two")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one mebibyte."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs failed: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_really_full_disk_refuses_appends_and_takes_them_again(small_disk: Path):
    """I4: acknowledged records stay; trimming makes room although the disk is full."""
    settings = LogSettings(segment_bytes=100_000)
    engine = SegmentEngine(small_disk)
    log = engine.open(KEY, settings)
    with pytest.raises(StorageFull):
        while True:
            fill(log, 1, size=5_000)
            log.sync()
    end = log.end_offset
    assert end > 100
    assert firsts(log) == list(range(end))
    with pytest.raises(StorageFull):
        fill(log, 1, size=5_000)
    log.trim(end // 2)
    fill(log, 20, size=5_000)
    assert log.sync() == end + 20
    assert firsts(log) == list(range(end // 2, end + 20))
    engine.close()
    log = SegmentEngine(small_disk).open(KEY, settings)
    assert firsts(log) == list(range(end // 2, end + 20))
