"""What both kernels promise about the end of a log file, and about pages that are in memory."""

import errno
import mmap
import os
from types import SimpleNamespace

import pytest

from onelog.base import faults
from onelog.storage.engine import LogSettings
from onelog.storage.files import FileCache
from onelog.storage.residence import Map
from onelog.storage.segment.files import WriteHandle
from onelog.storage.segment.index import SparseIndex
from onelog.storage.segment.topics import TopicTail

SETTINGS = LogSettings(segment_bytes=100_000, index_interval_bytes=500, segment_age_ms=1_000)
FIRST = 40
"""Bytes that are in the file already."""


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


class Indexes:
    """The index entries of the file, and how often they were saved."""

    def __init__(self):
        self.live = SparseIndex()
        self.tail = TopicTail()
        self.saves = 0

    def save(self):
        self.saves += 1


@pytest.fixture
def end(kernel, tmp_path):
    """A file whose next batch nothing stands against."""
    made = kernel.FileEnd()
    made.base_offset = 1_000
    made.size_bytes = made.last_batch_at = FIRST
    made.max_timestamp_ms = 7
    made.created_ms = 5_000
    made.reserved_bytes = 90_000
    made.indexes = Indexes()
    made.settings = SETTINGS
    made.writer = WriteHandle(str(tmp_path / "0.log"), FileCache())
    made.writer.open(create=True).write(b"x" * FIRST, 0)
    made.writer.dirty = False
    return made


def staged(kernel, count=3, size=100, topics=True):
    builder = kernel.BatchBuilder(topics)
    for number in range(count):
        topic = b"t/%d" % number if topics else None
        builder.add(topic, topic, b"v" * size, (), 10 + number)
    return builder


def put(end, builder, at=1_000, now_ms=5_100, index_topics=True):
    return end.append_built(builder, at, 3, index_topics, now_ms)


def content(end):
    with open(end.writer.path, "rb") as file:  # noqa: PTH123
        return file.read()[: end.size_bytes]


def facts(end):
    return (
        end.size_bytes, end.last_batch_at, end.max_timestamp_ms, end.reserved_bytes,
        list(end.indexes.live.offsets), list(end.indexes.tail.raw), end.writer.dirty, content(end),
    )  # fmt: skip


def test_a_batch_is_sealed_written_and_noted(kernel, end):
    first, second = staged(kernel), staged(kernel, 2)
    expected = staged(kernel).seal(1_000, 3)
    data = put(end, first)
    assert data == expected
    assert first.count == 0
    later = put(end, second, 1_003)
    assert content(end) == b"x" * FIRST + data + later
    assert (end.last_batch_at, end.size_bytes) == (FIRST + len(data), len(content(end)))
    assert end.max_timestamp_ms == 12
    assert end.writer.dirty
    assert list(end.indexes.live.offsets) == [FIRST]
    assert [rel for _, rel in end.indexes.tail.raw] == [0, 3]
    assert end.indexes.tail.raw[0][0] == staged(kernel).topics()


def test_an_index_entry_comes_after_each_interval(kernel, end):
    positions = []
    for number in range(10):
        if end.size_bytes >= end.indexes.live.next_at:
            positions.append((number << 32) | end.size_bytes)
        put(end, staged(kernel, 1), 1_000 + number)
    assert list(end.indexes.live.offsets) == positions
    assert 2 < len(positions) < 10


def test_a_file_without_a_topic_index_gets_no_topics(kernel, end):
    end.indexes.tail = None
    assert put(end, staged(kernel, topics=False), index_topics=False) is not None
    assert put(end, staged(kernel), 1_003) is not None


@pytest.mark.parametrize("count", [1, 64, 65, 3_000])
def test_topics_wait_unpacked_only_in_small_numbers(kernel, end, count):
    end.reserved_bytes = 1 << 40
    end.settings = LogSettings(segment_bytes=1 << 40)
    for number in range(600):
        put(end, staged(kernel, count, 0), 1_000 + number * count)
        raw = end.indexes.tail.raw
        assert len(raw) < 256
        assert sum(len(pairs) for pairs, _ in raw) <= 64 * 1024
        if end.indexes.saves:
            break
    found = end.indexes.tail
    if count == 3_000:
        assert end.indexes.saves == 1
        assert number < 10
    else:
        assert len(found.lookup(kernel.topic_hash(b"t/0"), 0, 1_000)) == number + 1


AGAINST = {
    "the file is empty": {"size_bytes": 0},
    "the index is not loaded": {"live": None},
    "nobody writes": {"writer": None},
    "the file is closed": {"file": None},
    "no space is reserved": {"reserved_bytes": FIRST + 100},
    "the segment is full": {"settings": LogSettings(segment_bytes=FIRST + 100)},
    "offsets are far from the first": {"base_offset": 1_000 - (1 << 31)},
    "the segment is old": {"created_ms": 5_100 - 1_000},
    "the clock went back": {"created_ms": 5_101},
}


@pytest.mark.parametrize("why", AGAINST)
def test_whatever_has_to_come_first_leaves_everything_as_it_was(kernel, end, why):
    for name, value in AGAINST[why].items():
        owner = {"live": end.indexes, "file": end.writer}.get(name, end)
        setattr(owner, name, value)
    builder = staged(kernel)
    if why in ("nobody writes", "the index is not loaded"):
        assert put(end, builder) is None
    else:
        before = facts(end)
        assert put(end, builder) is None
        assert facts(end) == before
    assert builder.count == 3


def test_a_topic_index_needs_the_topics(kernel, end):
    assert put(end, staged(kernel), index_topics=False) is None


def test_an_armed_fault_point_takes_the_long_way(kernel, end):
    faults.arm("segment.write", lambda: None)
    try:
        assert put(end, staged(kernel)) is None
    finally:
        faults.disarm()
    assert put(end, staged(kernel)) is not None


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_failed_write_leaves_nothing_behind_the_end(kernel, end, tmp_path, size):
    end.settings = LogSettings(segment_bytes=1 << 30)
    end.reserved_bytes = 1 << 30
    cuts = []
    fd = os.open(end.writer.path, os.O_RDONLY)
    end.writer.file = SimpleNamespace(
        fd=fd, cut=cuts.append, write=lambda data, at: os.pwrite(fd, data, at)
    )
    with pytest.raises(OSError) as raised:
        put(end, staged(kernel, 1, size))
    os.close(fd)
    assert raised.value.errno == errno.EBADF
    assert cuts == [FIRST]
    assert end.reserved_bytes == FIRST
    assert end.size_bytes == FIRST
    assert list(end.indexes.live.offsets) == []


def test_short_writes_are_finished(kernel, end, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:7], at))
    data = put(end, staged(kernel))
    assert content(end) == b"x" * FIRST + data


def test_a_large_batch_is_written_whole(kernel, end):
    end.settings = LogSettings(segment_bytes=1 << 30)
    end.reserved_bytes = 1 << 30
    data = put(end, staged(kernel, 4, 1 << 20))
    assert content(end)[FIRST:] == data


def test_nothing_staged_is_refused(kernel, end):
    with pytest.raises(Exception, match="nothing is staged"):
        put(end, kernel.BatchBuilder(True))


# -- pages


def test_bytes_are_in_memory_up_to_the_first_page_that_is_not(kernel, tmp_path):
    page, pages = mmap.PAGESIZE, 600
    path = tmp_path / "file"
    path.write_bytes(b"x" * (page * pages - 10))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    found = Map(fd, page * pages - 10, access=mmap.ACCESS_READ)
    found.locate()
    size = len(found)
    assert kernel.here_to(found.address, fd, 0, size) == size
    assert kernel.here_to(found.address, fd, 5, 6) == 6
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 300 * page, 0)
    os.pread(fd, 10 * page, 590 * page)
    gap = kernel.here_to(found.address, fd, 0, size)
    if gap == size:
        pytest.skip("this file system is in memory")
    assert gap % page == 0
    assert 300 * page <= gap < 590 * page  # the system may bring a little more
    assert kernel.here_to(found.address, -1, 0, size) == gap
    assert kernel.here_to(found.address, fd, gap + 7, size) == gap + 7
    assert kernel.here_to(found.address, fd, 500 * page, 501 * page) == 500 * page
    assert kernel.here_to(found.address, fd, 590 * page, size) == size
    assert kernel.here_to(0, fd, 0, size) == size
    os.close(fd)
