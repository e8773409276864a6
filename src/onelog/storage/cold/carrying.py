"""Brings the cold bytes of one partition: what is fetched for a read, how much, and ahead of it.

Rules: a run begins and ends at entries of the index. The first one of a reader is short; a reader
that goes on where a run ended gets a longer one, and the next is asked for when half of that was
read.
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
_REBUILT_LEVEL: Final = 1
"""Batches that are rebuilt come in row groups of 4 MiB: less costs the same."""


def piece_of(row: Row) -> PieceKey:
    """The key of a row's piece."""
    return PieceKey(row.object, row.position)


class ColdRun(Cold):
    """Batches, or the index part that says where they lie, are in the store."""

    def __init__(self, row: Row, offset: int, first: int, size_bytes: int) -> None:
        super().__init__(("run", row.object, row.position, first), size_bytes, remote=True)
        self.row = row
        self.offset = offset


class ColdIndexPart(Cold):
    """The index part of a piece is in the store."""

    def __init__(self, row: Row) -> None:
        super().__init__(("index", row.object, row.position), row.index_bytes, remote=True)
        self.row = row


class ColdPosting(Cold):
    """The records of a topic in a piece are known to the store only."""

    def __init__(self, row: Row, topic_hash: int) -> None:
        key = ("posting", row.object, row.position, topic_hash)
        super().__init__(key, row.index_bytes, remote=True)
        self.row = row
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

    def plan(self, row: Row, index: IndexPart, offset: int) -> Span:
        """The run to fetch for an offset. Does not block."""
        position = index.position_of(offset)
        first = index.base_at(position) if position else row.base
        sizes = self._cache.run_bytes
        level = min(self._frontiers.get(first, -1) + 1, len(sizes) - 1)
        if row.kind == "parquet":
            level = max(level, min(_REBUILT_LEVEL, len(sizes) - 1))
        stop = index.run_end(position, sizes[level])
        end = row.end if stop >= index.footer.log_bytes else index.base_at(stop)
        return Span(first, end, stop - position, level)

    def bring_index(self, row: Row) -> PartLease[PieceKey, IndexPart]:
        """Have an index part here."""
        fetch = partial(fetch_index, self._store, row)
        return self._cache.index.obtain(piece_of(row), row.object, row.index_bytes, fetch)

    def bring_run(self, row: Row, offset: int, *, patient: bool = True) -> RunLease:
        """Have the run here that answers for an offset, and its index part."""
        with self.bring_index(row) as held:
            index = held.value

            def fetch(span: Span, place: RunPlace) -> FetchedRun:
                if row.kind == "log":
                    return fetch_run(self._store, row, index, span, place)
                assert self._bringing is not None, "nobody rebuilds batches from Parquet"
                return bring_run(self._bringing, row, offset, span, place)

            span = self.plan(row, index, offset)
            lease = self._cache.obtain(piece_of(row), offset, span, fetch, patient=patient)
        self._note_end(lease.run)
        return lease

    def _note_end(self, run: Run) -> None:
        self._frontiers[run.end] = run.level
        if len(self._frontiers) > FRONTIERS_MAX:
            self._frontiers.popitem(last=False)

    def look_ahead(self, table: RowTable, number: int, run: Run) -> None:
        """Half of a run of row `number` was read: ask for the one behind it. Does not block."""
        if not (run.level or run.continued):
            return  # its reader may want this run only
        run.next_asked = True
        row, offset = table[number], run.end
        if offset >= row.end:
            if number + 1 == len(table):
                return
            row = table[number + 1]
            offset = row.base
        if row.log_bytes and not self._cache.is_coming(piece_of(row), offset):
            self._note_end(run)
            self._cache.ahead.ask(partial(self._fetch_ahead, row, offset))

    def _fetch_ahead(self, row: Row, offset: int) -> None:
        self.bring_run(row, offset, patient=False).release()

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
