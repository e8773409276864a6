"""Runs of pieces, fetched ahead: index parts and ranges come while earlier ones are decoded.

Rules: runs come in the order of their offsets. About `AHEAD_BYTES` of them are under way or wait,
and as many of whole pieces, over the ends of pieces, too. A run begins and ends where a batch with
an index entry begins. The error of a get appears with the run that it is about, never before
earlier runs were taken. Of one topic, only runs that have it are fetched, if the piece knows its
topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, NamedTuple

from onelog.kernel import topic_hash
from onelog.objects.access import Buffer
from onelog.objects.piece import AbortedSpan, IndexPart
from onelog.objects.postings import read_posting
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore

RUN_BYTES: Final = 32 << 20
"""Measured: ranges of 8 MiB take 1.2 to 1.6 times as long, since a store reads the chunks of an
object whole, wherever a range begins."""
AHEAD_BYTES: Final = 64 << 20
"""So many are under way, and one run more: three connections with large runs."""
GETS: Final = 8
"""Gets under way at most: small pieces want more of them."""
NEAR_BYTES: Final = 256 << 10
"""Runs of one topic that are not further apart are one get."""
WHOLE_BYTES: Final = RUN_BYTES
"""A piece that is not larger is one get, with its index."""
POSTING_BYTES_MAX: Final = 4 << 20
"""A topic with more offsets than this holds is all over its piece."""


class Run(NamedTuple):
    """Neighbouring batches of a piece."""

    row: Row
    reached: int
    """Behind it reading goes on here."""
    fetched: Future[Buffer] | None
    """None: the piece has no batches."""
    aborted: list[AbortedSpan]
    """Transactions with records in the piece."""
    size_bytes: int = 0


class _Opened(NamedTuple):
    """A piece whose index part is here."""

    part: IndexPart
    spans: list[tuple[int, int]]
    """Where wanted batches lie in the log, by positions with an index entry."""
    whole: Buffer | None = None
    """The piece, if it was small enough for one get."""


class RunsAhead:
    """The runs of neighbouring pieces that hold the offsets in [start, end)."""

    def __init__(
        self, store: ObjectStore, rows: list[Row], start: int, end: int, topic: bytes | None = None
    ) -> None:
        """With a topic, runs without it may be left out."""
        self._store = store
        self._rows = rows
        self._bounds = start, end
        self._hash = None if topic is None else topic_hash(topic)
        self._pool = ThreadPoolExecutor(GETS, thread_name_prefix="onelog-cold")
        self._opened: deque[tuple[Future[_Opened], int]] = deque()
        self._opened_bytes = 0
        self._next = 0

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
        size_bytes = 0
        for run in self._asked():
            if not waiting and (run.fetched is None or run.fetched.done()):
                yield run  # of a whole piece: those behind it are on their way
                continue
            waiting.append(run)
            size_bytes += run.size_bytes
            while size_bytes > AHEAD_BYTES or len(waiting) >= GETS:
                first = waiting.popleft()
                size_bytes -= first.size_bytes
                yield first
        yield from waiting

    def _asked(self) -> Iterator[Run]:
        for row in self._rows:
            found = self._open_ahead()
            error = found.exception()
            if error is not None:
                failed: Future[Buffer] = Future()
                failed.set_exception(error)
                yield Run(row, row.base, failed, [])
                return
            yield from self._runs(row, found.result())

    def _open_ahead(self) -> Future[_Opened]:
        """The next row; the index parts of those behind it are asked for, too."""
        while self._next < len(self._rows):
            row = self._rows[self._next]
            size_bytes = row.piece_bytes if self._is_whole(row) else row.index_bytes
            is_much = self._opened_bytes + size_bytes > AHEAD_BYTES or len(self._opened) >= GETS
            if self._opened and is_much:
                break
            self._opened.append((self._pool.submit(self._open, row), size_bytes))
            self._opened_bytes += size_bytes
            self._next += 1
        found, size_bytes = self._opened.popleft()
        self._opened_bytes -= size_bytes
        return found

    def _is_whole(self, row: Row) -> bool:
        """Whether one get fetches a piece with its index."""
        start, end = self._within(row)
        is_all = end - start == row.end - row.base
        return self._hash is None and row.piece_bytes <= WHOLE_BYTES and is_all

    def _open(self, row: Row) -> _Opened:
        """In a thread: what of a piece is to be read."""
        start, end = self._within(row)
        if self._is_whole(row):
            data = self._store.get_range(row.object, row.position, row.piece_bytes)
            tail = memoryview(data)[row.piece_bytes - row.index_bytes :]
            spans = [(0, row.log_bytes)] if row.log_bytes else []
            return _Opened(IndexPart(tail, row.object, row), spans, data)
        at = row.position + row.piece_bytes - row.index_bytes
        index = IndexPart(self._store.get_range(row.object, at, row.index_bytes), row.object, row)
        if not row.log_bytes:
            return _Opened(index, [])
        rels = self._posting(row, index)
        if rels is not None:
            return _Opened(index, _spans_of(index, [row.base + rel for rel in rels], start, end))
        stop = index.run_end(index.position_of(end - 1), 1)
        return _Opened(index, [(index.position_of(start), stop)])

    def _posting(self, row: Row, index: IndexPart) -> Sequence[int] | None:
        """Where the topic is, relative to the base; None: nobody knows, or in too many places."""
        if self._hash is None or not index.has_topics:
            return None
        span = index.topic_span(self._hash)
        if span is None:
            return ()
        if span.size_bytes > POSTING_BYTES_MAX:
            return None
        at = row.position + index.footer.postings.position + span.position
        data = self._store.get_range(row.object, at, span.size_bytes)
        return read_posting(data, span, self._hash, row.end - row.base)

    def _within(self, row: Row) -> tuple[int, int]:
        return max(self._bounds[0], row.base), min(self._bounds[1], row.end)

    def _runs(self, row: Row, opened: _Opened) -> Iterator[Run]:
        index, spans, whole = opened
        start, end = self._within(row)
        aborted = index.aborted_between(start, end)
        for number, (first, stop) in enumerate(spans):
            at = first
            while at < stop:
                upto = min(index.run_end(at, RUN_BYTES), stop)
                get = self._get(row, at, upto, whole)
                following = upto if upto < stop else None
                if following is None and number + 1 < len(spans):
                    following = spans[number + 1][0]
                reached = end if following is None else min(index.base_at(following), end)
                yield Run(row, reached, get, aborted, upto - at)
                at = upto
        if not spans:
            yield Run(row, end, None, [])

    def _get(self, row: Row, at: int, upto: int, whole: Buffer | None) -> Future[Buffer]:
        if whole is None:
            start = row.position + at
            return self._pool.submit(self._store.get_range, row.object, start, upto - at)
        done: Future[Buffer] = Future()
        done.set_result(memoryview(whole)[at:upto])
        return done


def _spans_of(
    index: IndexPart, offsets: Sequence[int], start: int, end: int
) -> list[tuple[int, int]]:
    """Where batches with these offsets lie; what is near enough is one span."""
    spans: list[tuple[int, int]] = []
    for offset in offsets:
        if not start <= offset < end or (spans and offset < _base_of(index, spans[-1][1], end)):
            continue
        first = index.position_of(offset)
        stop = index.run_end(first, 1)
        if spans and first - spans[-1][1] <= NEAR_BYTES:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((first, stop))
    return spans


def _base_of(index: IndexPart, position: int, end: int) -> int:
    """The first offset behind a span."""
    return end if position >= index.footer.log_bytes else index.base_at(position)
