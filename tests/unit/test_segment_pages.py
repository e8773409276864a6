"""Does the log stay within its bound of the page cache, and is everything readable all the same?"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine
from tests.batches import append, make_batch, read_all

MIB = 1024 * 1024
STEPS = 24
SETTINGS = LogSettings(segment_bytes=6 * MIB)
KEY = PartitionKey("s-1", 0)


def resident_bytes(path: Path) -> int:
    """Bytes of a file in the page cache, as the system says."""
    size = path.stat().st_size
    if size == 0:
        return 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        seen = (ctypes.c_ubyte * pages)()
        start = (ctypes.c_char * size).from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), seen) == 0
        del start
    return sum(page & 1 for page in seen) * mmap.PAGESIZE


def written(root: Path, page_cache_bytes: int) -> int:
    """Write 24 MiB in synced steps; how much of it is still in the page cache."""
    engine = SegmentEngine(root, page_cache_bytes=page_cache_bytes)
    log = engine.open(KEY, SETTINGS)
    for step in range(STEPS):
        append(log, make_batch(step, size=MIB))
        log.sync()
    held = sum(resident_bytes(path) for path in root.rglob("*.log"))
    assert len(read_all(log)) > STEPS * MIB
    engine.close()
    return held


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory whose files the page cache can be without; a file system in memory cannot."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(MIB))
    fd = os.open(probe, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if resident_bytes(probe):
        pytest.skip("this file system is in memory")
    return tmp_path


def test_old_bytes_leave_the_page_cache_and_can_be_read(disk: Path):
    assert written(disk / "a", 4 * MIB) <= 8 * MIB


def test_without_a_bound_the_system_decides(disk: Path):
    assert written(disk / "a", 0) > 16 * MIB
