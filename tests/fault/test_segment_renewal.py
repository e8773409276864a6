"""Is what a restart calls durable on the disk, when the fsync before it had failed? (I4)

Linux marks pages clean when it could not write them: they are read well from the cache, and the
next fsync succeeds without writing anything. `Disk` is such a system under the real engine.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.base.errors import PartitionStopped
from onelog.storage.engine import Buffer, LogSettings, PartitionKey
from onelog.storage.files import OpenFile
from onelog.storage.segment import SegmentEngine, SegmentLog
from tests.batches import append, fill, make_batch, read_all, spans

pytestmark = pytest.mark.fault

KEY = PartitionKey("s-1", 0)
SETTINGS = LogSettings(segment_bytes=2_000, index_interval_bytes=256)


class Disk:
    """What lies on the disk under the files that are read and written."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.failing = False
        self._stored: dict[str, bytearray] = {}
        self._dirty: dict[str, list[tuple[int, int]]] = {}
        pwrite = os.pwrite
        disk = self

        def write(fd: int, data: Buffer, position: int) -> int:
            wrote = pwrite(fd, data, position)
            disk._dirty.setdefault(disk._path(fd), []).append((position, position + wrote))
            return wrote

        def sync(file: OpenFile) -> None:
            disk.sync(file)

        patch.setattr(os, "pwrite", write)
        patch.setattr(OpenFile, "sync", sync)
        patch.setattr(OpenFile, "sync_all", sync)

    def _path(self, fd: int) -> str:
        return str(Path(f"/proc/self/fd/{fd}").readlink())

    def sync(self, file: OpenFile) -> None:
        """Write what is dirty; if that fails, it is clean all the same."""
        path = self._path(file.fd)
        if Path(path).is_dir():
            return
        dirty = self._dirty.pop(path, [])
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        seen = Path(path).read_bytes()
        stored = self._stored.setdefault(path, bytearray())
        stored[:] = bytes(stored[: len(seen)]).ljust(len(seen), b"\0")
        for start, end in dirty:
            stored[start:end] = seen[start:end]

    def lose_power(self) -> None:
        """From now on the files are what lies on the disk."""
        for path, content in self._stored.items():
            if Path(path).exists():
                Path(path).write_bytes(content)
        self._dirty.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    yield Disk(monkeypatch)
    faults.disarm()


def start(root: Path) -> SegmentLog:
    return SegmentEngine(root).open(KEY, SETTINGS)


def firsts(log: SegmentLog) -> list[int]:
    return [first for first, _ in spans(read_all(log))]


@pytest.mark.parametrize("more", [2, 40])
def test_what_a_restart_after_a_failed_fsync_shows_survives_power_loss(
    more: int, disk: Disk, tmp_path: Path
) -> None:
    """In one segment, and over several that were never synced."""
    log = start(tmp_path)
    fill(log, 3)
    log.sync()
    fill(log, more)
    disk.failing = True
    with pytest.raises(PartitionStopped, match="fsync"):
        log.sync()
    disk.failing = False
    again = start(tmp_path)
    shown = firsts(again)
    assert shown == list(range(3 + more)), "the page cache has all of it"
    assert again.durable_offset == again.end_offset == 3 + more
    disk.lose_power()
    assert firsts(start(tmp_path)) == shown


def test_a_batch_larger_than_a_window_is_written_again_too(disk: Disk, tmp_path: Path) -> None:
    log = start(tmp_path)
    fill(log, 1)
    log.sync()
    append(log, make_batch(1, 1, size=5 * 1024 * 1024))
    append(log, make_batch(2, 1))
    disk.failing = True
    with pytest.raises(PartitionStopped):
        log.sync()
    disk.failing = False
    assert firsts(start(tmp_path)) == [0, 1, 2]
    disk.lose_power()
    assert firsts(start(tmp_path)) == [0, 1, 2]


def test_a_disk_that_fails_again_at_the_restart_leaves_the_recovery_point_where_it_is(
    disk: Disk, tmp_path: Path
) -> None:
    """I9: the partition is stopped with a reason, and a later start finds the same again."""
    log = start(tmp_path)
    fill(log, 3)
    log.sync()
    fill(log, 2)
    disk.failing = True
    with pytest.raises(PartitionStopped):
        log.sync()
    with pytest.raises(PartitionStopped, match="could not be recovered"):
        start(tmp_path)
    disk.failing = False
    disk.lose_power()
    again = start(tmp_path)
    assert firsts(again) == [0, 1, 2], "nothing that was answered is missing"
    assert again.torn is None or again.torn.end_offset == 3


def test_files_do_not_go_because_of_a_checkpoint_that_is_not_on_the_disk(
    disk: Disk, tmp_path: Path
) -> None:
    """A trim whose checkpoint could not be synced is finished by the restart, durably."""
    log = start(tmp_path)
    fill(log, 60)
    log.sync()
    disk.failing = True
    with pytest.raises(PartitionStopped):
        log.trim(log.segments()[2].base_offset)
    disk.failing = False
    again = start(tmp_path)
    begins = again.start_offset
    disk.lose_power()
    last = start(tmp_path)
    assert last.start_offset == begins
    assert firsts(last)[-1] == 59
