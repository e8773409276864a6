"""The cache of runs: bounds, eviction, one fetch for all, damage, and disks that fail."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest

from onelog.base import faults
from onelog.base.errors import ColdDamaged, ColdUnavailable, ConfigError
from onelog.base.ids import Offset
from onelog.kernel import COMPILED, scan_batches
from onelog.objects import index_building
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.cold import Brought, ColdRows, RunCache
from onelog.storage.cold.ahead import ReadAhead
from onelog.storage.cold.carrying import piece_of
from onelog.storage.cold.queues import TwoQueues
from onelog.storage.cold.runs import Marks, PieceKey, Run
from onelog.storage.cold.shelf import RunPlace
from onelog.storage.engine import Buffer, Cold, Lease, in_place
from tests.batches import make_batch
from tests.support.pieces import put_piece, small_cache

NAMES = count()


@pytest.fixture(autouse=True)
def dense_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_building, "INDEX_INTERVAL_BYTES", 1000)


@pytest.fixture
def store() -> ObjectStore:
    return open_store(StoreSettings(url=f"memory://cache-{next(NAMES)}"))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[RunCache]:
    made = small_cache(tmp_path / "cache")
    yield made
    faults.disarm()
    made.close()


def thousand(store: ObjectStore, name: str = "a", base: int = 0) -> tuple[Row, list[bytes]]:
    """A piece of a thousand batches of a kilobyte."""
    batches = [make_batch(base + at, size=1000 - len(str(base + at))) for at in range(1000)]
    return put_piece(store, name, base, base + 1000, batches), batches


def read_at(rows: ColdRows, offset: int, max_bytes: int = 1) -> bytes:
    return bytes(in_place(rows, partial(rows.read, Offset(offset), max_bytes, Offset(1 << 60))))


def cold_at(rows: ColdRows, offset: int) -> Cold:
    with pytest.raises(Cold) as raised:
        rows.read(Offset(offset), 1, Offset(1 << 60))
    return raised.value


def is_here(rows: ColdRows, offset: int) -> bool:
    try:
        return bool(rows.read(Offset(offset), 1, Offset(1 << 60)))
    except Cold:
        return False


def bring(rows: ColdRows, offset: int) -> Lease:
    return rows.bring(cold_at(rows, offset))


def test_a_cache_that_its_couriers_could_fill_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"store.cache_bytes = 1048575 .* 1048576 or more"):
        RunCache(tmp_path, cache_bytes=(1 << 20) - 1, couriers=8, run_bytes=(32768,))


def test_the_directory_is_emptied_of_runs_at_the_start(tmp_path):
    (tmp_path / "000000000001.run").write_bytes(b"old")
    (tmp_path / "notes.txt").write_bytes(b"not ours")
    small_cache(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_many_who_want_one_run_at_a_time_cost_one_get(store, cache, monkeypatch):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    with bring(rows, 0):
        pass
    plain, gets, together = store.get_range, store.counts.get, threading.Barrier(8)

    def slow(name: str, start: int, length: int) -> bytes:
        arrived.wait(10)
        return plain(name, start, length)

    arrived = threading.Event()
    monkeypatch.setattr(store, "get_range", slow)
    colds = [cold_at(rows, 500) for _ in range(8)]
    assert len({cold.key for cold in colds}) == 1
    found: list[bytes] = []

    def want(cold: Cold) -> None:
        together.wait(10)
        with rows.bring(cold):
            found.append(bytes(rows.read(Offset(500), 1, Offset(1000))))

    threads = [threading.Thread(target=want, args=(cold,)) for cold in colds]
    for thread in threads:
        thread.start()
    arrived.set()
    for thread in threads:
        thread.join(10)
    assert found == [batches[500]] * 8
    assert store.counts.get == gets + 1


def test_a_first_run_costs_two_gets_and_its_neighbours_one_each(store, cache):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    cache.ahead.close()
    for offset, gets in ((0, 2), (1, 2), (500, 3), (501, 3)):
        assert read_at(rows, offset) == batches[offset]
        assert store.counts.get == gets


def test_files_never_take_more_than_the_bound_and_evicted_views_stay(store, tmp_path):
    cache = small_cache(tmp_path, cache_bytes=256 << 10, run_bytes=(8192, 16384))
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    views = []
    for offset in range(0, 1000, 3):
        read = partial(rows.read, Offset(offset), 1, Offset(1000))
        views.append((offset, in_place(rows, read)))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 256 << 10
        assert cache.disk_bytes <= 256 << 10
    assert cache.evicted > 0
    assert all(bytes(view) == batches[offset] for offset, view in views)
    cache.close()
    assert not list(tmp_path.iterdir())
    assert all(bytes(view) == batches[offset] for offset, view in views)


def test_a_run_that_a_reader_waits_for_stays_until_it_was_read(store, tmp_path):
    cache = small_cache(tmp_path, cache_bytes=64 << 10, run_bytes=(4096,))
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    lease = bring(rows, 0)
    for offset in range(100, 900, 2):
        read_at(rows, offset)
    assert bytes(rows.read(Offset(0), 1, Offset(1000))) == batches[0]
    lease.release()
    cache.close()


def test_a_lease_does_not_hold_a_run_that_was_read(store, tmp_path):
    cache = small_cache(tmp_path, cache_bytes=64 << 10, run_bytes=(4096,))
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    leases = []
    for offset in range(0, 900, 2):
        if not is_here(rows, offset):
            leases.append(bring(rows, offset))
        assert bytes(rows.read(Offset(offset), 1, Offset(1000))) == batches[offset]
    assert not is_here(rows, 0)
    for lease in leases:
        lease.release()
    cache.close()


def test_when_all_runs_wait_for_readers_the_next_bring_waits_and_then_fails(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr("onelog.storage.cold.errands.WAIT_S", 0.05)
    cache = small_cache(tmp_path, cache_bytes=64 << 10, run_bytes=(4096,))
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    leases = []
    with pytest.raises(ColdUnavailable, match=r"raise store\.cache_bytes"):
        for offset in range(0, 1000, 5):
            leases.append(bring(rows, offset))  # noqa: PERF401 - it ends in the middle
    assert 8 <= len(leases) <= 16
    leases[0].release()
    with bring(rows, 999):
        assert bytes(rows.read(Offset(999), 1, Offset(1000))) == batches[999]
    cache.close()


def a_run(name: str, first: int = 0, size_bytes: int = 10) -> Run:
    marks = Marks()
    marks.extend(struct.pack("<q", first), struct.pack("<I", 0))
    run = Run(PieceKey(name, 0), first, first + 10, marks, size_bytes, 0)
    run.fresh = False
    return run


def test_runs_that_are_read_once_do_not_push_out_runs_that_are_read_again():
    queues = TwoQueues()
    kept = a_run("kept")
    queues.add(kept)
    kept.again = True
    queues.note_use(kept)
    for number in range(20):
        queues.add(a_run(f"scan {number}"))
        gone = queues.pick(100, lambda _: True) if len(queues) > 10 else None
        if gone is not None:
            assert gone is not kept
            queues.remove(gone)
    assert kept in set(queues)


def test_a_run_that_comes_back_soon_is_kept():
    queues = TwoQueues()
    first = a_run("a")
    queues.add(first)
    queues.remove(first)
    back = a_run("a")
    queues.add(back)
    for number in range(9):
        queues.add(a_run(f"scan {number}"))
    assert queues.pick(100, lambda _: True) is not back


def test_a_new_run_that_was_read_to_its_end_leaves_before_one_that_is_being_read():
    queues = TwoQueues()
    reading, done = a_run("reading"), a_run("done")
    done.passed = done.size_bytes
    queues.add(reading)
    queues.add(done)
    assert queues.pick(10, lambda _: True) is done


def test_a_reader_that_goes_on_gets_longer_runs_that_are_asked_for_at_half(store, tmp_path):
    cache = small_cache(tmp_path, cache_bytes=4 << 20)
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    sizes: list[int] = []
    offset = 0
    while offset < 1000:
        try:
            view = rows.read(Offset(offset), 1, Offset(1000))
        except Cold as cold:
            with rows.bring(cold):
                continue
        assert bytes(view) == batches[offset]
        offset += 1
    sizes = [run.size_bytes for run in sorted(cache.runs(), key=lambda run: run.first)]
    assert sizes[0] < 4096
    assert 8192 <= sizes[1] < 12 << 10
    assert all(16384 <= size < 20 << 10 for size in sizes[2:-1])
    cache.close()
    assert store.counts.get == 1 + len(sizes)


def test_a_single_read_asks_for_nothing_ahead(store, cache):
    row, _ = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    read_at(rows, 500, 1 << 20)
    cache.ahead.close()
    assert store.counts.get == 2


def spoil(store: ObjectStore, name: str, at: int) -> None:
    data = bytearray(store.get(name))
    data[at] ^= 1
    store.put(name, [bytes(data)])


def test_a_damaged_batch_stops_its_run_and_names_object_and_offsets(store, cache):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    spoil(store, "a", len(batches[0]) * 500 + 80)
    with pytest.raises(ColdDamaged, match=r"object a, offsets 500 to 502 .*restored"):
        read_at(rows, 500)
    assert read_at(rows, 100) == batches[100]
    assert read_at(rows, 900) == batches[900]
    spoil(store, "a", len(batches[0]) * 500 + 80)
    assert read_at(rows, 500) == batches[500]


def test_a_damaged_index_part_stops_its_piece_only(store, cache):
    row, _ = thousand(store)
    other, batches = thousand(store, "b", 1000)
    rows = ColdRows("p", store, cache, [row, other])
    spoil(store, "a", row.piece_bytes - 200)
    with pytest.raises(ColdDamaged, match=r"object a, offsets 0 to 1000"):
        read_at(rows, 0)
    assert read_at(rows, 1000) == batches[0]


def test_bytes_that_went_bad_on_their_way_are_fetched_once_more(store, cache, monkeypatch):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    plain, calls = store.get_range, count()

    def flipping(name: str, start: int, length: int) -> bytes:
        data = bytearray(plain(name, start, length))
        if next(calls) % 2 == 0:
            data[length // 2] ^= 0x10
        return bytes(data)

    monkeypatch.setattr(store, "get_range", flipping)
    assert read_at(rows, 500) == batches[500]
    assert next(calls) == 4


def test_a_shorter_object_is_damage(store, cache):
    row, _ = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    store.put("a", [store.get("a")[:5000]])
    with pytest.raises(ColdDamaged, match="offsets 0 to 1000"):
        read_at(rows, 0)


def test_a_full_disk_makes_runs_stay_in_memory_and_the_cache_smaller(store, cache):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    for offset in range(0, 100, 2):
        read_at(rows, offset)
    before = cache.disk_bytes
    faults.arm("cold.write", faults.fail_with(errno.ENOSPC))
    assert read_at(rows, 500) == batches[500]
    assert cache.memory_bytes > 0
    assert cache.disk_bytes <= before * 3 // 4
    assert "No space left" in cache.trouble
    faults.disarm()
    assert read_at(rows, 700) == batches[700]


def test_runs_in_memory_are_bounded(store, tmp_path, monkeypatch):
    monkeypatch.setattr("onelog.storage.cold.cache.MEMORY_BYTES_MAX", 64 << 10)
    cache = small_cache(tmp_path)
    faults.arm("cold.write", faults.fail_with(errno.ENOSPC))
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    try:
        for offset in range(1000):
            assert read_at(rows, offset) == batches[offset]
            assert cache.memory_bytes <= 64 << 10
            assert cache.disk_bytes <= 64 << 10
    finally:
        faults.disarm()
        cache.close()
    assert not list(tmp_path.iterdir())


def test_an_emptied_directory_costs_another_fetch_only(store, cache, tmp_path):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    with bring(rows, 0):
        pass
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    assert read_at(rows, 0) == batches[0]


def test_bytes_of_a_run_that_left_memory_are_local_cold_bytes(store, cache, tmp_path):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    with bring(rows, 0):
        pass
    (path,) = (tmp_path / "cache").iterdir()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        view = rows.read(Offset(0), 1, Offset(1000))
    except Cold as cold:
        assert not cold.remote
        with rows.bring(cold):
            view = rows.read(Offset(0), 1, Offset(1000))
    else:
        pytest.skip("this file system keeps its pages in memory")
    assert bytes(view) == batches[0]
    assert store.counts.get == 2


@pytest.mark.skipif(not COMPILED, reason="the interpreted kernel has no handler for SIGBUS")
def test_a_file_that_was_cut_under_its_map_is_fetched_again(store, cache, tmp_path):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    lease = bring(rows, 0)
    assert bytes(rows.read(Offset(0), 1, Offset(1000))) == batches[0]
    (path,) = (tmp_path / "cache").iterdir()
    os.truncate(path, 0)
    assert read_at(rows, 0) == batches[0]
    lease.release()


def parquet_row(row: Row) -> Row:
    return msgspec.structs.replace(row, kind="parquet")


@pytest.mark.parametrize("failing", [False, True], ids=["disk", "full disk"])
def test_batches_that_another_process_rebuilds_are_checked_and_cached(store, cache, failing):
    row, batches = thousand(store)
    asked = []

    def rebuild(row: Row, offset: Offset, size_bytes: int, path: Path) -> Brought:
        if failing and not str(path).startswith("/proc/"):
            raise OSError(errno.ENOSPC, "No space left on device")
        asked.append(offset)
        first = offset // 100 * 100
        size = path.write_bytes(b"".join(batches[first : first + 100]))
        return Brought(Offset(first), Offset(first + 100), size)

    rows = ColdRows("p", store, cache, [parquet_row(row)], bringing=rebuild)
    if failing:
        with pytest.raises(ColdUnavailable, match="No space left"):
            read_at(rows, 150)
    assert read_at(rows, 150) == batches[150]
    assert read_at(rows, 199) == batches[199]
    assert read_at(rows, 100) == batches[100]
    assert asked == [150]
    assert (cache.memory_bytes > 0) == failing


GROUP = 124
"""Batches of a row group: a little more than the shorter runs of `wide_cache`."""


@pytest.fixture
def wide_cache(tmp_path: Path) -> Iterator[RunCache]:
    sizes = (16 << 10, 128 << 10, 256 << 10)
    made = small_cache(tmp_path / "wide", cache_bytes=8 << 20, run_bytes=sizes)
    yield made
    made.close()


def test_each_row_group_is_rebuilt_once_for_a_reader_that_goes_on(store, wide_cache):
    row, batches = thousand(store)
    brought: list[int] = []
    together: list[int] = []
    busy = threading.Semaphore(8)

    def rebuild(row: Row, offset: Offset, size_bytes: int, path: Path) -> Brought:
        busy.acquire()
        first = last = offset // GROUP * GROUP
        size = 0
        while last < 1000 and size < size_bytes:
            brought.append(last // GROUP)
            size += sum(map(len, batches[last : last + GROUP]))
            last = min(1000, last + GROUP)
        time.sleep(0.01)  # the reader gets there before the run does
        path.write_bytes(b"".join(batches[first:last]))
        together.append(8 - busy._value)
        busy.release()
        return Brought(Offset(first), Offset(last), size)

    rows = ColdRows("p", store, wide_cache, [parquet_row(row)], bringing=rebuild)
    for offset in range(1000):
        assert read_at(rows, offset) == batches[offset]
    wide_cache.ahead.close()
    assert sorted(brought) == list(range(9))
    assert max(together) > 1, "several runs are on their way for a reader that goes on for long"


@pytest.mark.parametrize("is_idle", [False, True], ids=["busy", "idle"])
def test_more_runs_are_asked_for_ahead_of_a_reader_that_goes_on_for_long_while_threads_are_idle(
    store, wide_cache, monkeypatch, is_idle
):
    row, _ = thousand(store)
    rows = ColdRows("p", store, wide_cache, [row])
    wishes: list[partial[None]] = []
    monkeypatch.setattr(ReadAhead, "ask", lambda _ahead, wish: wishes.append(wish))
    monkeypatch.setattr(ReadAhead, "is_idle", is_idle)
    asked: list[int] = []
    for offset in range(700):
        read_at(rows, offset)
        asked.append(len(wishes))
        while wishes:
            wishes.pop()()
    assert (max(asked) > 1) == is_idle
    assert store.counts.get == 1 + len(wide_cache.runs())


def test_a_rebuilt_batch_with_a_bad_checksum_is_damage(store, cache):
    row, batches = thousand(store)

    def rebuild(row: Row, offset: Offset, size_bytes: int, path: Path) -> Brought:
        data = bytearray(b"".join(batches[:10]))
        data[-1] ^= 1
        path.write_bytes(data)
        return Brought(Offset(0), Offset(10), len(data))

    rows = ColdRows("p", store, cache, [parquet_row(row)], bringing=rebuild)
    with pytest.raises(ColdDamaged, match="object a"):
        read_at(rows, 0)


def test_an_error_of_one_fetch_is_raised_by_all_who_waited_and_the_next_one_tries_again(
    store, cache, monkeypatch
):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    plain, asked, go = store.get_range, threading.Event(), threading.Event()

    def failing(name: str, start: int, length: int) -> bytes:
        asked.set()
        go.wait(10)
        raise ColdUnavailable("the store is away")

    monkeypatch.setattr(store, "get_range", failing)
    cold = cold_at(rows, 0)
    raised: list[str] = []

    def want() -> None:
        with pytest.raises(ColdUnavailable) as error:
            rows.bring(cold)
        raised.append(str(error.value))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    asked.wait(10)
    go.set()
    for thread in threads:
        thread.join(10)
    assert raised == ["the store is away"] * 4
    monkeypatch.setattr(store, "get_range", plain)
    assert read_at(rows, 0) == batches[0]
    assert cache.disk_bytes == sum(run.size_bytes for run in cache.runs())


def test_a_reader_that_waits_for_a_read_ahead_without_room_fetches_the_run_itself(
    store, cache, monkeypatch
):
    row, batches = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    plain, asked, go = cache._reserve, threading.Event(), threading.Event()

    def full(size_bytes: int, deadline: float) -> RunPlace:
        if deadline:
            return plain(size_bytes, deadline)
        asked.set()
        go.wait(10)
        raise ColdUnavailable("no room")

    monkeypatch.setattr(cache, "_reserve", full)
    cache.ahead.ask(partial(rows._carrier._fetch_ahead, row, 500, 0, 500))
    assert asked.wait(10)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(read_at(rows, 500)))
    reader.start()
    runs = cache._pieces[piece_of(row)]
    until = time.monotonic() + 10
    while runs.items[0].waiters == 0 and time.monotonic() < until:
        time.sleep(0.001)
    go.set()
    reader.join(10)
    assert found == [batches[500]]


def test_a_run_whose_piece_was_replaced_while_it_came_takes_no_room(store, cache, monkeypatch):
    row, _ = thousand(store)
    rows = ColdRows("p", store, cache, [row])
    other, batches = thousand(store, "b")
    cold, plain = cold_at(rows, 0), store.get_range

    def replacing(name: str, start: int, length: int) -> Buffer:
        if rows.rows[0].object == "a":
            rows.replace([other])
        return plain(name, start, length)

    monkeypatch.setattr(store, "get_range", replacing)
    rows.bring(cold)
    assert cache.runs() == [] and cache.disk_bytes == 0
    assert read_at(rows, 0) == batches[0]


def test_index_parts_are_bounded(store, tmp_path):
    cache = small_cache(tmp_path, index_bytes=20_000)
    made = [thousand(store, f"p{number}", number * 1000) for number in range(6)]
    rows = ColdRows("p", store, cache, [row for row, _ in made])
    for number, (_, batches) in enumerate(made):
        assert read_at(rows, number * 1000 + 500) == batches[500]
    assert cache.index.held_bytes <= 20_000
    assert scan_batches(read_at(rows, 0))[0].base_offset == 0
    cache.close()


def with_gaps(store: ObjectStore) -> Row:
    """Batches of six kilobytes with gaps of ten offsets between them."""
    batches = [make_batch(at * 20, size=6000, timestamp_ms=1000 + at) for at in range(8)]
    return put_piece(store, "gaps", 0, 160, batches)


@pytest.mark.parametrize("readers", [1, 4])
def test_a_reader_goes_on_in_the_next_run_when_the_cache_holds_one_of_them_only(
    store, tmp_path, readers
):
    cache = small_cache(tmp_path / "one", cache_bytes=8192, couriers=1, run_bytes=(512, 1024, 2048))
    row = with_gaps(store)
    rows = ColdRows("p", store, cache, [row])
    failures: list[BaseException] = []

    def read_all() -> None:
        try:
            for at in range(7):
                (info,) = scan_batches(read_at(rows, at * 20 + 5))
                assert info.base_offset == (at + 1) * 20
                found = in_place(rows, partial(rows.offset_for_time, 1001 + at))
                assert found == (at + 1) * 20
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            failures.append(error)

    threads = [threading.Thread(target=read_all) for _ in range(readers)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
    assert not any(thread.is_alive() for thread in threads), "a reader fetches without end"
    assert not failures
    assert time.monotonic() - began < 20, "a reader waited for its deadline"
    if readers == 1:
        assert cache.brought <= 4 * 7, "runs were fetched in turns"
    assert cache.disk_bytes <= 8192
    cache.close()
