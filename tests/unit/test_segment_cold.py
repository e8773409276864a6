"""Bytes that are not in the page cache: found out before they are touched, and brought."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.base.errors import PartitionCorrupt, PartitionStopped
from onelog.kernel import scan_batches, topic_hash
from onelog.record.batch import build_batch
from onelog.storage.engine import Cold, LogSettings, PartitionKey, PartitionLog, in_place
from onelog.storage.residence import Map
from onelog.storage.segment import SegmentEngine, indexes
from tests.batches import append, make_batch, read_all

KEY = PartitionKey("s-1", 0)
SETTINGS = LogSettings(segment_bytes=256 * 1024, index_interval_bytes=4096)
BATCHES = 40


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.disarm()


def evict(root: Path, pattern: str = "*.log") -> None:
    """Let the page cache go of every log file, or of others."""
    for path in root.rglob(pattern):
        fd = os.open(path, os.O_RDWR)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory whose files the page cache can be without."""
    probe = tmp_path / "probe.log"
    probe.write_bytes(bytes(1 << 20))
    evict(tmp_path)
    with probe.open("rb") as file:
        mapped = Map(file.fileno(), 1 << 20, access=1)
        mapped.locate()
        if mapped.here_to(0, 1 << 20) == 1 << 20:
            pytest.skip("this file system is in memory")
    return tmp_path / "data"


@pytest.fixture
def engine(root: Path) -> Iterator[SegmentEngine]:
    made = SegmentEngine(root)
    log = made.open(KEY, SETTINGS)
    for base in range(BATCHES):
        append(log, make_batch(base, size=32 * 1024))
    made.close()
    evict(root)
    made = SegmentEngine(root)
    yield made
    made.close()


@pytest.fixture
def log(engine: SegmentEngine, root: Path) -> PartitionLog:
    opened = engine.open(KEY, SETTINGS)
    evict(root)
    return opened


def test_a_read_of_bytes_on_the_disk_is_cold_until_they_are_brought(log: PartitionLog):
    with pytest.raises(Cold) as raised:
        log.read(0, 1, log.end_offset)
    with log.bring(raised.value):
        assert scan_batches(log.read(0, 1, log.end_offset))[0].base_offset == 0


def test_brought_bytes_stay_while_the_lease_is_held(log: PartitionLog, root: Path):
    with pytest.raises(Cold) as raised:
        log.read(0, 1, log.end_offset)
    lease = log.bring(raised.value)
    evict(root)
    assert scan_batches(log.read(0, 1, log.end_offset))[0].base_offset == 0
    evict(root)
    lease.release()
    lease.release()
    with pytest.raises(Cold):
        log.read(8, 1, log.end_offset)


def test_everything_is_read_byte_for_byte_wherever_it_lies(log: PartitionLog, root: Path):
    expected = b"".join(make_batch(base, size=32 * 1024) for base in range(BATCHES))
    for max_bytes in (1, 5_000, 100_000, 1 << 22):
        evict(root)
        assert read_all(log, max_bytes=max_bytes) == expected


def test_what_is_in_memory_is_handed_out_though_more_is_not(log: PartitionLog, root: Path):
    path = min(root.rglob("*.log"))
    path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 128 * 1024, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    found = log.read(0, 1 << 22, log.end_offset)
    assert 32 * 1024 < len(found) < 200 * 1024


def test_a_time_is_found_wherever_it_lies(log: PartitionLog, root: Path):
    wanted = scan_batches(read_all(log))[20]
    evict(root)
    assert in_place(log, lambda: log.offset_for_time(wanted.max_timestamp_ms)) is not None


def test_bytes_that_the_disk_does_not_give_stop_the_partition(log: PartitionLog):
    faults.arm("segment.read", faults.fail_with(errno.EIO))
    with pytest.raises(PartitionStopped, match="Input/output error"):
        in_place(log, lambda: log.read(0, 1, log.end_offset))
    faults.disarm()
    with pytest.raises(PartitionStopped):
        append(log, make_batch(int(log.end_offset)))


def test_a_file_that_was_cut_short_stops_the_partition_and_not_the_process(
    log: PartitionLog, root: Path
):
    in_place(log, lambda: log.read(0, 1, log.end_offset))  # it is mapped
    os.truncate(min(root.rglob("*.log")), 70_000)
    with pytest.raises(PartitionCorrupt, match="are expected"):
        in_place(log, lambda: log.read(4, 1, log.end_offset))


def test_the_newest_bytes_are_read_without_asking_the_system(
    engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch
):
    """A reader at the end pays nothing."""
    log = engine.open(PartitionKey("s-2", 0), SETTINGS)
    append(log, make_batch(0), make_batch(1), make_batch(2))
    asked: list[int] = []
    monkeypatch.setattr(Map, "here_to", lambda _map, start, end: asked.append(start) or end)
    assert len(read_all(log)) > 0
    assert asked == []
    log.roll()
    assert len(read_all(log)) > 0
    assert asked != []


def test_what_the_bound_of_the_page_cache_let_go_of_is_asked_about(root: Path):
    engine = SegmentEngine(root / "bound", page_cache_bytes=3 << 20)
    log = engine.open(KEY, LogSettings())
    for base in range(6):
        append(log, make_batch(base, size=1 << 20))
        log.sync()
    with pytest.raises(Cold):
        log.read(0, 1, log.end_offset)
    assert len(log.read(5, 1, log.end_offset)) > 1 << 20
    engine.close()


def test_an_older_part_of_a_log_is_cut_though_it_is_cold(log: PartitionLog):
    log.truncate(20)
    assert log.end_offset == 20
    assert scan_batches(read_all(log))[-1].last_offset == 19


def halve(log: PartitionLog, first: int) -> None:
    """Rewrite two sealed segments from the one numbered `first` on, without every second batch."""
    run = log.segments()[first : first + 2]
    start, end = run[0].base_offset, run[-1].end_offset
    rewrite = log.rewrite(start, end)
    position = start
    while len(data := in_place(log, partial(log.read, position, 1, end))):
        batches = scan_batches(data)
        if batches[0].base_offset % 2 == 0:
            rewrite.append(data, batches)
        position = batches[-1].last_offset + 1
    rewrite.commit()


def test_bytes_of_a_segment_that_was_rewritten_meanwhile_are_brought_from_the_new_one(
    log: PartitionLog, root: Path
):
    with pytest.raises(Cold) as raised:
        log.read(1, 1, log.end_offset)
    halve(log, 0)
    evict(root)
    log.bring(raised.value).release()
    found = in_place(log, lambda: log.read(1, 1, log.end_offset))
    assert scan_batches(found)[0].base_offset == 2
    append(log, make_batch(int(log.end_offset)))  # nothing stopped the partition


def test_a_lease_of_a_segment_that_was_rewritten_says_nothing_of_the_new_one(
    log: PartitionLog, root: Path
):
    with pytest.raises(Cold) as raised:
        log.read(0, 1, log.end_offset)
    with log.bring(raised.value):
        halve(log, 0)
        evict(root)
        with pytest.raises(Cold):
            log.read(0, 1, log.end_offset)


def test_cold_readers_get_whole_batches_in_order_while_segments_are_rewritten(
    log: PartitionLog, root: Path
):
    troubles: list[BaseException] = []
    rounds = [0, 0]
    is_over = threading.Event()

    def follow(number: int) -> None:
        try:
            while not is_over.is_set():
                position, seen = 0, []
                while len(data := in_place(log, partial(log.read, position, 1, log.end_offset))):
                    batches = scan_batches(data)
                    assert bytes(data) == make_batch(batches[0].base_offset, size=32 * 1024)
                    seen += [batch.base_offset for batch in batches]
                    position = batches[-1].last_offset + 1
                assert seen == sorted(set(seen))
                assert set(range(0, BATCHES, 2)) <= set(seen)  # only odd ones are rewritten away
                rounds[number] += 1
        except BaseException as error:  # noqa: BLE001 - told by the test
            troubles.append(error)

    readers = [threading.Thread(target=follow, args=(number,)) for number in range(2)]
    for reader in readers:
        reader.start()
    sealed = len(log.segments()) - 1
    for first in reversed(range(sealed - 1)):
        evict(root)
        halve(log, first)
    before = list(rounds)
    deadline = time.monotonic() + 30
    while not troubles and any(now <= then for now, then in zip(rounds, before, strict=True)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    is_over.set()
    for reader in readers:
        reader.join()
    assert troubles == []
    assert len(scan_batches(read_all(log))) < BATCHES


# -- index files


def topics_of(log: PartitionLog) -> list[int] | None:
    return in_place(log, lambda: log.offsets_of_topic(topic_hash(b"t"), 0, log.end_offset, 100))


@pytest.fixture
def indexed(root: Path) -> Iterator[PartitionLog]:
    """A log of several sealed segments with topics, opened anew; its index files are not mapped."""
    made = SegmentEngine(root)
    log = made.open(KEY, SETTINGS)
    for base in range(BATCHES):
        row = (b"t", b"t", b"x" * 32 * 1024, (), 1000 + base)
        batch = build_batch([row], base_offset=base, tag_topics=True)
        log.append(batch, scan_batches(batch))
    made.close()
    made = SegmentEngine(root)
    yield made.open(KEY, SETTINGS)
    made.close()


READS = {
    ".index": lambda log: log.read(0, 1, log.end_offset),
    ".timeindex": lambda log: log.offset_for_time(1001),
    ".topics": lambda log: log.offsets_of_topic(topic_hash(b"t"), 0, log.end_offset, 1),
}


@pytest.mark.parametrize("extension", READS)
def test_an_index_file_that_is_not_in_memory_is_cold_until_it_is_brought(
    indexed: PartitionLog, root: Path, extension: str
):
    evict(root, f"*{extension}")
    read = READS[extension]
    with pytest.raises(Cold) as raised:
        read(indexed)
    with indexed.bring(raised.value):
        evict(root, f"*{extension}")
        assert len(read(indexed)) > 0 if extension != ".timeindex" else read(indexed) == 1


@pytest.mark.parametrize("extension", READS)
@pytest.mark.parametrize("harm", ["missing", "damaged", "short", "unreadable"])
def test_an_index_file_that_is_no_good_is_rebuilt_by_who_brings_it(
    indexed: PartitionLog, root: Path, extension: str, harm: str
):
    path = min(root.rglob(f"*{extension}"))
    if harm == "missing":
        path.unlink()
    elif harm == "damaged":
        path.write_bytes(bytes(path.stat().st_size))
    elif harm == "short":
        os.truncate(path, 8)
    else:
        path.unlink()
        path.mkdir()
    read = READS[extension]
    with pytest.raises(Cold) as raised:
        read(indexed)
    if harm == "unreadable":
        path.rmdir()
    indexed.bring(raised.value).release()
    assert topics_of(indexed) == list(range(BATCHES))
    assert in_place(indexed, lambda: indexed.offset_for_time(1001)) == 1
    assert scan_batches(read_all(indexed))[-1].last_offset == BATCHES - 1


def test_a_large_index_file_is_checked_by_who_brings_it(
    indexed: PartitionLog, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(indexes, "CHECKED_BYTES", 8)
    with pytest.raises(Cold) as raised:
        indexed.read(0, 1, indexed.end_offset)
    indexed.bring(raised.value).release()
    assert len(indexed.read(0, 1, indexed.end_offset)) > 0


def test_whether_an_index_is_in_memory_is_asked_once_in_a_while(
    indexed: PartitionLog, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(indexes, "ASK_EVERY_S", 3600.0)
    assert topics_of(indexed)
    asked: list[int] = []
    monkeypatch.setattr(Map, "here_to", lambda _map, start, end: asked.append(start) or end)
    for _ in range(10):
        assert topics_of(indexed)
    assert asked == []
