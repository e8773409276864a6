"""Brings the cold bytes of one partition: what is fetched for a read, how much, and ahead of it.

Rules: a run begins and ends at entries of the index. The first one of a reader is short; a reader
that goes on where a run ended gets a longer one, and the next is asked for when half of that was
read. Of the longest ones, several are on their way while threads are idle.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final

from onelog.objects.piece import IndexPart
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.cold.bringing import Bringing
from onelog.storage.cold.cache import FetchedRun, RunCache, RunLease, Span
from onelog.storage.cold.fetching import bring_run, fetch_index, fetch_posting, fetch_run
from onelog.storage.cold.parts import PartLease
from onelog.storage.cold.runs import PieceKey, Run
from onelog.storage.cold.shelf import RunPlace
from onelog.storage.cold.table import RowTable
from onelog.storage.engine import Cold, Lease

POSTING_BYTES_MAX: Final = 256 * 1024
"""A topic with more bytes of postings in a piece has so many records there that reading the batches
costs less."""
TOPICS_AHEAD: Final = 8
"""Pieces whose index parts and postings are fetched ahead for a reader of one topic."""
FRONTIERS_MAX: Final = 256
"""Ends of runs that are remembered, to know readers that go on."""
RUNS_AHEAD: Final = 4
"""Runs that are on their way for a reader that goes on for long, while nobody else wants them: a
store far away answers late, and a row group takes its time to be rebuilt."""
_REBUILT_LEVEL: Final = 1
"""Batches that are rebuilt come in row groups of 4 MiB: less costs the same."""
_REBUILT_SLACK: Final = 8
"""Which part of a run's size rebuilt runs leave out, so that they end with a row group."""
_INTO_NEXT: Final = 128
"""Which part of a run's size lies surely within the next row group, if added to it."""


def piece_of(row: Row) -> PieceKey:
    """The key of a row's piece."""
    return PieceKey(row.object, row.position)


class ColdRun(Cold):
    """Batches, or the index part that says where they lie, are in the store."""

    def __init__(self, row: Row, offset: int, first: int, size_bytes: int) -> None:
        super().__init__(("run", row.object, row.position, first), size_bytes, remote=True)
        self.row, self.end_offset = row, row.end
        self.offset = offset


class ColdIndexPart(Cold):
    """The index part of a piece is in the store."""

    def __init__(self, row: Row) -> None:
        super().__init__(("index", row.object, row.position), row.index_bytes, remote=True)
        self.row, self.end_offset = row, row.end


class ColdPosting(Cold):
    """The records of a topic in a piece are known to the store only."""

    def __init__(self, row: Row, topic_hash: int) -> None:
        key = ("posting", row.object, row.position, topic_hash)
        super().__init__(key, row.index_bytes, remote=True)
        self.row, self.end_offset = row, row.end
        self.topic_hash = topic_hash


class _TwoLeases(Lease):
    __slots__ = ("_first", "_second")

    def __init__(self, first: Lease, second: Lease) -> None:
        self._first = first
        self._second = second

    def release(self) -> None:
        self._first.release()
        self._second.release()


class Carrier:
    """Fetches for one partition. Couriers call it, and it blocks, except where it says so."""

    __slots__ = ("_bringing", "_cache", "_frontiers", "_store")

    def __init__(self, store: ObjectStore, cache: RunCache, bringing: Bringing | None) -> None:
        self._store = store
        self._cache = cache
        self._bringing = bringing
        self._frontiers: OrderedDict[int, int] = OrderedDict()
        """Where runs ended, and how far the read-ahead of their readers had grown."""

    def plan(self, row: Row, index: IndexPart, offset: int, level: int | None = None) -> Span:
        """The run to fetch for an offset; `level`: how far its reader's read-ahead has grown. Does
        not block."""
        position = index.position_of(offset)
        first = index.base_at(position) if position else row.base
        sizes = self._cache.run_bytes
        top = len(sizes) - 1
        if level is None:
            # A run of rebuilt batches ends between entries of the index.
            known = self._frontiers.get(offset, self._frontiers.get(first, -1))
            level = min(known + 1, top)
        if row.kind == "parquet":
            level = max(level, min(_REBUILT_LEVEL, top))
            # Row groups are a little longer than this, so it ends before they do.
            size_bytes = sizes[level] - sizes[level] // _REBUILT_SLACK
        else:
            size_bytes = sizes[level]
        stop = index.run_end(position, size_bytes)
        end = row.end if stop >= index.footer.log_bytes else index.base_at(stop)
        return Span(first, end, stop - position, level)

    def bring_index(self, row: Row) -> PartLease[PieceKey, IndexPart]:
        """Have an index part here."""
        fetch = partial(fetch_index, self._store, row)
        return self._cache.index.obtain(piece_of(row), row.object, row.index_bytes, fetch)

    def bring_run(
        self,
        row: Row,
        offset: int,
        *,
        patient: bool = True,
        level: int | None = None,
        first: int | None = None,
    ) -> RunLease:
        """Have the run here that answers for an offset, and its index part. Nobody else fetches
        from `first` on meanwhile: the run may begin there."""
        with self.bring_index(row) as held:
            index = held.value

            def fetch(span: Span, place: RunPlace) -> FetchedRun:
                if row.kind == "log":
                    return fetch_run(self._store, row, index, span, place)
                assert self._bringing is not None, "nobody rebuilds batches from Parquet"
                return bring_run(self._bringing, row, offset, span, place)

            span = self.plan(row, index, offset, level)
            if first is not None:
                span = span._replace(first=min(first, span.first))
            lease = self._cache.obtain(piece_of(row), offset, span, fetch, patient=patient)
        self._note_end(lease.run)
        return lease

    def _note_end(self, run: Run) -> None:
        self._frontiers[run.end] = run.level
        if len(self._frontiers) > FRONTIERS_MAX:
            self._frontiers.popitem(last=False)

    def look_ahead(self, table: RowTable, number: int, run: Run) -> None:
        """Half of a run of row `number` was read: ask for the one behind it, and for more if its
        reader goes on for long and threads are idle. Does not block."""
        if not (run.level or run.continued):
            return  # its reader may want this run only
        run.next_asked = True
        self._note_end(run)
        top = len(self._cache.run_bytes) - 1
        level = min(run.level + 1, top)
        first = offset = run.end
        for ahead in range(RUNS_AHEAD if run.level == top else 1):
            if ahead and not self._cache.ahead.is_idle:
                return
            if offset >= table[number].end:
                number += 1
                if number == len(table):
                    return
                first = offset = table[number].base
            row = table[number]
            if not row.log_bytes:
                return
            if not self._cache.is_coming(piece_of(row), offset):
                self._cache.ahead.ask(partial(self._fetch_ahead, row, offset, level, first))
            index = self._cache.index.find(piece_of(row))
            if index is None:
                return
            first, offset = self._behind(row, index, offset, run)

    def _behind(self, row: Row, index: IndexPart, offset: int, run: Run) -> tuple[int, int]:
        """Where the run behind that of an offset begins, and an offset of it, as far as one can
        know: row groups that were rebuilt are about as long as those of the run before them."""
        span = self.plan(row, index, offset, run.level)
        if row.kind == "log" or span.end >= row.end:
            return span.end, span.end
        size_bytes = max(run.size_bytes, self._cache.run_bytes[span.level])
        size_bytes += size_bytes // _INTO_NEXT
        stop = index.run_end(index.position_of(offset), size_bytes)
        return span.end, row.end if stop >= index.footer.log_bytes else index.base_at(stop)

    def _fetch_ahead(self, row: Row, offset: int, level: int, first: int) -> None:
        self.bring_run(row, offset, patient=False, level=level, first=first).release()

    def bring_postings(self, table: RowTable, cold: ColdPosting) -> Lease:
        """Have the records of a topic in a piece here, and soon those of the next pieces."""
        number = table.number_at(cold.row.end)
        for row in table[number : number + TOPICS_AHEAD]:
            self._cache.ahead.ask(partial(self._posting_ahead, row, cold.topic_hash))
        return self._bring_posting(cold.row, cold.topic_hash)

    def _posting_ahead(self, row: Row, topic_hash: int) -> None:
        self._bring_posting(row, topic_hash).release()

    def _bring_posting(self, row: Row, topic_hash: int) -> Lease:
        held = self.bring_index(row)
        try:
            span = held.value.topic_span(topic_hash) if held.value.has_topics else None
            if span is None or span.size_bytes > POSTING_BYTES_MAX:
                return held
            fetch = partial(fetch_posting, self._store, row, held.value, span, topic_hash)
            key = (piece_of(row), topic_hash)
            posting = self._cache.postings.obtain(key, row.object, span.size_bytes * 4, fetch)
        except BaseException:
            held.release()
            raise
        return _TwoLeases(held, posting)
