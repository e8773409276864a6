"""The cache of runs: cold bytes on this machine, bounded, each fetched once for all who want them.

Rules: bytes that are on their way count, so files and memory never take more than `cache_bytes`
(one run alone may, if a single batch is that large). Runs of a piece do not overlap. A run that was
brought for a reader stays until it was read, or its lease was released. A reader that found nothing
in a run, and goes on in the next one, needs the first no more (`note_empty`): so each reader needs
one run at a time, and comes on however small the cache is. `lock` is never held while anything
waits for the disk or the store.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from onelog.base.errors import ColdUnavailable, ConfigError
from onelog.objects.piece import IndexPart
from onelog.storage.cold.ahead import READ_AHEAD_THREADS, ReadAhead
from onelog.storage.cold.errands import Errand, deadline_after
from onelog.storage.cold.parts import PartCache
from onelog.storage.cold.queues import TwoQueues
from onelog.storage.cold.runs import Marks, PieceKey, Run
from onelog.storage.cold.shelf import MEMORY_BYTES_MAX, RunPlace, Shelf
from onelog.storage.engine import Buffer, Lease
from onelog.storage.files import FileCache

COURIERS: Final = 8
"""Threads that bring runs for readers."""
EMPTIES_MAX: Final = 4096
"""Places where readers found nothing, that are remembered."""
RUN_BYTES: Final = (1 << 20, 4 << 20, 8 << 20)
"""Bytes of a run: of a first read, of a reader that goes on, and of one that still goes on."""


class Span(NamedTuple):
    """Offsets that a run is to answer for."""

    first: int
    end: int
    size_bytes: int
    """About how many bytes of batches; exact for batches that lie in the store as they are."""
    level: int
    """Which of the sizes of `run_bytes`."""


class FetchedRun(NamedTuple):
    """Batches that came, each of them checked."""

    first: int
    end: int
    marks: Marks
    size_bytes: int
    data: Buffer | None
    """The bytes; None: they are in the place's file only."""


Fetch = Callable[[Span, RunPlace], FetchedRun]


class RunLease(Lease):
    """A run that stays until its reader had it."""

    __slots__ = ("_cache", "run")

    def __init__(self, cache: RunCache, run: Run) -> None:
        self._cache: RunCache | None = cache
        self.run = run

    def release(self) -> None:
        """The run may leave the cache."""
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.release(self.run)


class _GaveUp(Exception):
    """The errand that a caller waited for was given up by one that waits for no room."""


class _RunsOfPiece:
    """Runs and errands of one piece, in the order of their offsets, without overlap."""

    __slots__ = ("_firsts", "items")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self.items: list[Run | Errand[Run]] = []

    def at(self, offset: int) -> Run | Errand[Run] | None:
        """The one that answers for an offset."""
        number = bisect_right(self._firsts, offset) - 1
        if number >= 0 and offset < self.items[number].end:
            return self.items[number]
        return None

    def gap(self, offset: int) -> tuple[int, int]:
        """The offsets around `offset` that nothing here answers for."""
        number = bisect_right(self._firsts, offset)
        low = self.items[number - 1].end if number else 0
        high = self._firsts[number] if number < len(self._firsts) else 1 << 63
        return low, high

    def place(self, offset: int, end: int) -> tuple[int, int]:
        """The offsets around `offset`, up to `end`, that a run may answer for which came. An errand
        behind it gives way as far as to the offset that it was asked for."""
        number = bisect_right(self._firsts, offset)
        low = self.items[number - 1].end if number else 0
        if number == len(self.items):
            return low, end
        item = self.items[number]
        if isinstance(item, Run):
            return low, min(end, item.first)
        high = min(end, max(item.asked, item.first))
        if item.first < high:
            self._firsts[number] = item.first = high
        return low, high

    def add(self, item: Run | Errand[Run]) -> None:
        number = bisect_right(self._firsts, item.first)
        self._firsts.insert(number, item.first)
        self.items.insert(number, item)

    def remove(self, item: Run | Errand[Run]) -> None:
        number = self.items.index(item)
        del self._firsts[number], self.items[number]


class RunCache:
    """Runs of all partitions, and the index parts of their pieces."""

    def __init__(
        self,
        directory: Path,
        *,
        cache_bytes: int = 1 << 30,
        index_bytes: int = 256 << 20,
        couriers: int = COURIERS,
        run_bytes: tuple[int, ...] = RUN_BYTES,
    ) -> None:
        """Empties the directory. Raises ConfigError."""
        if couriers * run_bytes[-1] > cache_bytes // 4:
            raise ConfigError(
                f"store.cache_bytes = {cache_bytes} is too small: {couriers} couriers bring up to"
                f" {run_bytes[-1]} bytes each, which may be a quarter of the cache at most; set"
                f" it to {couriers * run_bytes[-1] * 4} or more"
            )
        self.directory = directory
        self.cache_bytes = cache_bytes
        self.run_bytes = run_bytes
        self.index: PartCache[PieceKey, IndexPart] = PartCache(index_bytes * 7 // 8)
        self.postings: PartCache[tuple[PieceKey, int], array[int]] = PartCache(index_bytes // 8)
        self.ahead = ReadAhead(min(READ_AHEAD_THREADS, couriers))
        self.hits = 0
        """Reads that found their run here."""
        self.brought = 0
        """Runs that were fetched."""
        self.brought_bytes = 0
        self.evicted = 0
        self._shelf = Shelf(directory, cache_bytes)
        self._files = FileCache()
        self._queues = TwoQueues()
        self._pieces: dict[PieceKey, _RunsOfPiece] = {}
        self._dead: list[Run] = []
        """Runs that left, and whose files are not unlinked yet."""
        self._empties: OrderedDict[tuple[PieceKey, int, int], int] = OrderedDict()
        """Where readers found nothing, and up to which offset."""
        self._waiting = 0
        """How many wait for room."""
        self._room = threading.Condition(threading.Lock())

    # Finding.

    def find(self, piece: PieceKey, offset: int) -> Run | None:
        """The run that answers for an offset of a piece, if it is here."""
        with self._room:
            runs = self._pieces.get(piece)
            item = None if runs is None else runs.at(offset)
            if not isinstance(item, Run):
                return None
            self._queues.note_use(item)
            self.hits += 1
            return item

    def note_empty(self, piece: PieceKey, offset: int, end: int, timestamp_ms: int = -1) -> None:
        """From `offset` to `end` a piece has no batch; or none that reaches a time. A piece never
        changes, so that this holds for ever."""
        with self._room:
            self._empties[piece, offset, timestamp_ms] = end
            if len(self._empties) > EMPTIES_MAX:
                self._empties.popitem(last=False)

    def empty_to(self, piece: PieceKey, offset: int, timestamp_ms: int = -1) -> int:
        """Up to where a piece is known to have nothing from `offset` on; `offset` itself: it is
        not known."""
        if not self._empties:
            return offset
        with self._room:
            return self._empties.get((piece, offset, timestamp_ms), offset)

    def is_coming(self, piece: PieceKey, offset: int) -> bool:
        """Whether the run that answers for an offset is here, or on its way."""
        with self._room:
            runs = self._pieces.get(piece)
            return runs is not None and runs.at(offset) is not None

    def note_served(self) -> None:
        """A run was read: it may leave now, if somebody waits for room."""
        if self._waiting:
            with self._room:
                self._room.notify_all()

    # Bringing. Couriers call these, and they block.

    def obtain(
        self, piece: PieceKey, offset: int, span: Span, fetch: Fetch, *, patient: bool = True
    ) -> RunLease:
        """Have the run that answers for `offset` here: fetched now, or by another courier.

        An impatient caller waits for nobody. Raises what `fetch` raises, and ColdUnavailable when
        there is no room.
        """
        deadline = deadline_after(span.size_bytes)
        while True:
            try:
                return self._obtain(piece, offset, span, fetch, deadline if patient else 0.0)
            except _GaveUp:
                pass  # an impatient caller ran the errand: this one may wait for room

    def _obtain(
        self, piece: PieceKey, offset: int, span: Span, fetch: Fetch, deadline: float
    ) -> RunLease:
        with self._room:
            runs = self._pieces.setdefault(piece, _RunsOfPiece())
            item = runs.at(offset)
            if isinstance(item, Run):
                item.leases += 1
                item.fresh = True
                return RunLease(self, item)
            errand = item
            if errand is None:
                low, high = runs.gap(offset)
                span = span._replace(first=max(span.first, low), end=min(span.end, high))
                errand = Errand(piece.object, span.first, span.end, offset)
                runs.add(errand)
            else:
                errand.waiters += 1
        if item is not None:
            return self._wait_for(errand, deadline)
        return self._run_errand(piece, offset, span, fetch, errand, deadline)

    def _wait_for(self, errand: Errand[Run], deadline: float) -> RunLease:
        errand.wait(deadline)
        with self._room:
            run = errand.brought
            if run is None:
                errand.waiters -= 1
        if errand.gave_up and time.monotonic() < deadline:
            raise _GaveUp
        errand.fail()
        if run is None:
            raise ColdUnavailable(f"{errand.name} is still on its way: try again")
        return RunLease(self, run)

    def _run_errand(
        self,
        piece: PieceKey,
        offset: int,
        span: Span,
        fetch: Fetch,
        errand: Errand[Run],
        deadline: float,
    ) -> RunLease:
        place: RunPlace | None = None
        try:
            place = self._reserve(span.size_bytes, deadline)
            got = self._fetch(fetch, span, place)
            if place.failure is not None:
                self._to_memory(place, got, deadline)
            assert got is not None
            run = Run(piece, got.first, got.end, got.marks, got.size_bytes, span.level)
            if place.in_memory:
                assert got.data is not None
                run.in_memory(got.data)
            else:
                run.in_file(str(place.path), self._files)
        except BaseException as error:
            if place is not None:
                place.drop()
            with self._room:
                self._remove(piece, errand)
                self._give_back(place)
                failure = error if isinstance(error, Exception) else None
                errand.gave_up = deadline == 0.0 and place is None
                errand.land(None, failure or ColdUnavailable(f"{errand.name} was given up"))
            raise
        with self._room:
            self._remove(piece, errand)
            runs = self._pieces.setdefault(piece, _RunsOfPiece())
            low, high = runs.place(offset, run.end)
            run.first, run.end = max(run.first, low), high
            assert run.first <= offset < run.end, "a fetch brought other offsets"
            runs.add(run)
            self._count(run.size_bytes - place.size_bytes, in_memory=place.in_memory)
            self._queues.add(run)
            run.leases += 1 + errand.waiters
            self.brought += 1
            self.brought_bytes += run.size_bytes
            errand.land(run, None)
        return RunLease(self, run)

    def _fetch(self, fetch: Fetch, span: Span, place: RunPlace) -> FetchedRun | None:
        try:
            return fetch(span, place)
        except OSError as error:  # the file that another process was to write
            place.failure = error
            return None

    def hold(self, run: Run) -> RunLease:
        """A lease of a run that is here."""
        with self._room:
            run.leases += 1
        return RunLease(self, run)

    def runs(self) -> list[Run]:
        """All runs that are here."""
        with self._room:
            return list(self._queues)

    def release(self, run: Run) -> None:
        """A lease ends."""
        with self._room:
            run.leases -= 1
            self._room.notify_all()

    def forget(self, piece: PieceKey) -> None:
        """A piece is no longer read: its runs leave at once."""
        with self._evicting():
            runs = self._pieces.get(piece)
            for item in [] if runs is None else list(runs.items):
                if isinstance(item, Run):
                    self._evict(item)
        self.index.forget(piece)

    def drop(self, run: Run) -> None:
        """A run cannot be read: it leaves, and is fetched again."""
        with self._evicting():
            if not run.gone:
                self._evict(run)

    def drop_failed(self) -> None:
        """A page of a map could not be read somewhere: runs that have zeros there leave."""
        with self._evicting():
            for run in [run for run in self._queues if run.failed]:
                self._evict(run)

    def close(self) -> None:
        """End the threads and delete all files. Readers keep their views."""
        self.ahead.close()
        with self._evicting():
            for run in list(self._queues):
                self._evict(run)

    # Room. The lock is held.

    @contextmanager
    def _evicting(self) -> Iterator[None]:
        """Hold the lock, then unlink the files of runs that left without it."""
        try:
            with self._room:
                yield
        finally:
            with self._room:
                dead, self._dead = self._dead, []
            for run in dead:
                run.discard()

    def _reserve(self, size_bytes: int, deadline: float) -> RunPlace:
        shelf = self._shelf
        with self._evicting():
            while True:
                if self._make_room(size_bytes, in_memory=False):
                    self._count(size_bytes, in_memory=False)
                    return RunPlace(size_bytes, shelf.path())
                is_disk_short = shelf.disk_bound < self.cache_bytes
                if is_disk_short and self._make_room(size_bytes, in_memory=True):
                    self._count(size_bytes, in_memory=True)
                    return RunPlace(size_bytes, None)
                self._wait_for_room(size_bytes, deadline)

    def _to_memory(self, place: RunPlace, got: FetchedRun | None, deadline: float) -> None:
        """The disk did not take a run: it stays in memory, and the cache on the disk shrinks."""
        assert place.failure is not None
        place.drop()
        with self._evicting():
            self._count(-place.size_bytes, in_memory=False)
            place.in_memory = True
            place.size_bytes = 0
            self._shelf.shrink(place.failure)
            self._make_room(0, in_memory=False)
            if got is None or got.data is None:
                raise ColdUnavailable(
                    f"the cache has no room: {self._shelf.last_failure}; free some space"
                )
            while not self._make_room(got.size_bytes, in_memory=True):
                self._wait_for_room(got.size_bytes, deadline)
            self._count(got.size_bytes, in_memory=True)
            place.size_bytes = got.size_bytes

    def _wait_for_room(self, size_bytes: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        self._waiting += 1
        try:
            if left <= 0 or not self._room.wait(left):
                raise ColdUnavailable(
                    f"the cache of cold bytes has no room for {size_bytes} bytes: all of it waits"
                    " for its readers; raise store.cache_bytes, or free space in store.cache_dir"
                )
        finally:
            self._waiting -= 1

    def _make_room(self, size_bytes: int, *, in_memory: bool) -> bool:
        shelf = self._shelf
        while True:
            total = shelf.disk_bytes + shelf.memory_bytes
            is_full = total > 0 and total + size_bytes > self.cache_bytes
            used = shelf.memory_bytes if in_memory else shelf.disk_bytes
            bound = MEMORY_BYTES_MAX if in_memory else shelf.disk_bound
            fits = used + size_bytes <= bound or (used == 0 and bound > 0)
            if fits and not is_full:
                return True

            def may_go(run: Run, anywhere: bool = fits) -> bool:
                return anywhere or run.is_in_memory is in_memory

            run = self._queues.pick(self.cache_bytes, may_go)
            if run is None:
                return False
            self._evict(run)

    def _evict(self, run: Run) -> None:
        run.gone = True
        self._remove(run.piece, run)
        self._queues.remove(run)
        self._count(-run.size_bytes, in_memory=run.is_in_memory)
        self._dead.append(run)
        self.evicted += 1

    def _remove(self, piece: PieceKey, item: Run | Errand[Run]) -> None:
        runs = self._pieces[piece]
        runs.remove(item)
        if not runs.items:
            del self._pieces[piece]

    def _count(self, size_bytes: int, *, in_memory: bool) -> None:
        if in_memory:
            self._shelf.memory_bytes += size_bytes
        else:
            self._shelf.disk_bytes += size_bytes
        if size_bytes < 0:
            self._room.notify_all()

    def _give_back(self, place: RunPlace | None) -> None:
        if place is not None:
            self._count(-place.size_bytes, in_memory=place.in_memory)

    # Numbers, for people and metrics.

    @property
    def disk_bytes(self) -> int:
        """Bytes that files take, or are about to."""
        return self._shelf.disk_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of runs that are in memory because the disk has no room."""
        return self._shelf.memory_bytes

    @property
    def trouble(self) -> str:
        """Why the cache takes less of the disk than it may; empty: it does not."""
        shelf = self._shelf
        return shelf.last_failure if shelf.disk_bound < self.cache_bytes else ""
