"""Do open files stay bounded, and does nobody lose a file that is in use?"""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

from onelog.base.clock import ManualClock
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.files import FileCache, MappedFile
from onelog.storage.segment import SegmentEngine
from onelog.storage.segment.files import WriteHandle
from tests.batches import append, fill, make_batch, read_all, spans

LIMIT = 16


def open_files() -> int:
    """Files only: threads of clients that other tests left behind make sockets at any time."""
    gc.collect()
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += str(link.readlink()).startswith("/")
    return found


def file_of(tmp_path: Path, name: str, data: bytes = b"12345678") -> str:
    path = tmp_path / name
    path.write_bytes(data)
    return str(path)


def test_maps_beyond_the_bound_are_let_go_and_their_views_stay(tmp_path: Path):
    cache = FileCache(LIMIT)
    maps = [MappedFile(file_of(tmp_path, f"f{at}", b"%08d" % at), cache) for at in range(50)]
    views = [memoryview(mapped.open(8))[:8] for mapped in maps]
    assert len(cache) == LIMIT
    assert sum(mapped.peek(8) is not None for mapped in maps) == LIMIT // MappedFile.DESCRIPTORS
    assert [int(bytes(view)) for view in views] == list(range(50))
    assert bytes(maps[0].open(8)) == b"%08d" % 0


def test_a_map_that_is_used_stays_longer_than_one_that_is_not(tmp_path: Path):
    cache = FileCache(LIMIT)
    hot = MappedFile(file_of(tmp_path, "hot"), cache)
    hot.open(8)
    for at in range(60):
        MappedFile(file_of(tmp_path, f"f{at}"), cache).open(8)
        assert hot.peek(8) is not None


def test_a_file_with_unsynced_bytes_stays_open(tmp_path: Path):
    cache = FileCache(LIMIT)
    dirty = WriteHandle(file_of(tmp_path, "dirty"), cache)
    held = dirty.open().fd
    dirty.dirty = True
    for at in range(60):
        WriteHandle(file_of(tmp_path, f"f{at}"), cache).open()
    assert dirty.open().fd == held
    assert len(cache) == LIMIT


def test_even_unsynced_files_are_bounded(tmp_path: Path):
    cache = FileCache(LIMIT)
    handles = [WriteHandle(file_of(tmp_path, f"f{at}"), cache) for at in range(200)]
    for handle in handles:
        handle.open()
        handle.dirty = True
    assert len(cache) <= 4 * LIMIT + 1


def test_a_map_grows_with_its_file(tmp_path: Path):
    mapped = MappedFile(file_of(tmp_path, "f"), FileCache(LIMIT))
    old = mapped.open(8)
    with Path(mapped.path).open("ab") as file:
        file.write(b"more")
    assert bytes(mapped.open(8)) == b"12345678"
    assert bytes(mapped.open(12)) == b"12345678more"
    assert bytes(old) == b"12345678"


def test_an_idle_partition_holds_no_file_and_an_empty_one_has_none(tmp_path: Path):
    engine = SegmentEngine(tmp_path)
    before = open_files()
    logs = [engine.open(PartitionKey("s", at), LogSettings()) for at in range(100)]
    assert open_files() == before
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    fill(logs[0], 1)
    engine.close()
    assert open_files() == before
    engine = SegmentEngine(tmp_path)
    logs = [engine.open(PartitionKey("s", at), LogSettings()) for at in range(100)]
    assert open_files() == before
    assert logs[0].end_offset == 1
    engine.close()


def test_many_partitions_share_few_open_files(tmp_path: Path):
    engine = SegmentEngine(tmp_path, ManualClock(), open_files_max=LIMIT)
    before = open_files()
    logs = [engine.open(PartitionKey("s", at), LogSettings()) for at in range(40)]
    for turn in range(3):
        for log in logs:
            append(log, make_batch(turn))
            log.sync()
            assert spans(read_all(log)) == [(at, at) for at in range(turn + 1)]
        assert open_files() - before <= LIMIT + 1
    engine.close()
    assert open_files() == before
