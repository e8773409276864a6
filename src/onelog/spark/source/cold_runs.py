"""Runs of pieces, fetched ahead: index parts and ranges come while earlier ones are decoded.

Rules: runs come in the order of their offsets. At most `AHEAD` of about `RUN_BYTES` are under way
or wait, over the ends of pieces, too, so that small pieces are read as fast as large ones. A run
begins and ends where a batch with an index entry begins. The error of a get appears with the run
that it is about, never before earlier runs were taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, NamedTuple

from onelog.objects.access import Buffer
from onelog.objects.piece import AbortedSpan, IndexPart
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore

RUN_BYTES: Final = 8 << 20
AHEAD: Final = 4


class Run(NamedTuple):
    """Neighbouring batches of a piece."""

    row: Row
    reached: int
    """Behind it reading goes on here."""
    fetched: Future[Buffer] | None
    """None: the piece has no batches."""
    aborted: list[AbortedSpan]
    """Transactions with records in the piece."""


class RunsAhead:
    """The runs of neighbouring pieces that hold the offsets in [start, end)."""

    def __init__(self, store: ObjectStore, rows: list[Row], start: int, end: int) -> None:
        self._store = store
        self._rows = rows
        self._bounds = start, end
        self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="onelog-cold")
        self._indexes: deque[Future[IndexPart]] = deque()
        self._next_index = 0

    def __enter__(self) -> RunsAhead:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __iter__(self) -> Iterator[Run]:
        waiting: deque[Run] = deque()
        for run in self._asked():
            waiting.append(run)
            if len(waiting) >= AHEAD:
                yield waiting.popleft()
        yield from waiting

    def _asked(self) -> Iterator[Run]:
        for row in self._rows:
            found = self._index(row)
            error = found.exception()
            if error is not None:
                failed: Future[Buffer] = Future()
                failed.set_exception(error)
                yield Run(row, row.base, failed, [])
                return
            yield from self._runs(row, found.result())

    def _index(self, row: Row) -> Future[IndexPart]:
        """The index part of a row; those of the next rows are asked for, too."""
        while self._next_index < len(self._rows) and len(self._indexes) < AHEAD:
            one = self._rows[self._next_index]
            self._indexes.append(self._pool.submit(self._get_index, one))
            self._next_index += 1
        return self._indexes.popleft()

    def _get_index(self, row: Row) -> IndexPart:
        at = row.position + row.piece_bytes - row.index_bytes
        data = self._store.get_range(row.object, at, row.index_bytes)
        return IndexPart(data, row.object, row)

    def _runs(self, row: Row, index: IndexPart) -> Iterator[Run]:
        start, end = max(self._bounds[0], row.base), min(self._bounds[1], row.end)
        if not row.log_bytes:
            yield Run(row, end, None, [])
            return
        aborted = index.aborted_between(start, end)
        at = index.position_of(start)
        stop = index.run_end(index.position_of(end - 1), 1)
        while at < stop:
            upto = min(index.run_end(at, RUN_BYTES), stop)
            get = self._pool.submit(self._store.get_range, row.object, row.position + at, upto - at)
            reached = end if upto == stop else index.base_at(upto)
            yield Run(row, reached, get, aborted)
            at = upto
