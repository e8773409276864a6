"""Reads the cold rows of one partition: whole batches, and the offsets of times and topics.

Rules: no read waits. What is not here raises `Cold`, and `bring` fetches it. A reader works on the
rows of the moment when it began. Rows may be replaced meanwhile (pieces joined, or dropped by
retention), and their objects deleted: then `bring` brings nothing, and the reader finds the new
rows. An object that a row still names and the store does not have is ColdDamaged, never
OffsetOutOfRange: a consumer would skip its history.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from onelog.base.errors import CorruptBatch, NotFound, OffsetOutOfRange, StorageError
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import bus_faults
from onelog.objects.piece import AbortedSpan, IndexPart
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.cold.bringing import Bringing
from onelog.storage.cold.cache import RunCache
from onelog.storage.cold.carrying import (
    POSTING_BYTES_MAX,
    Carrier,
    ColdIndexPart,
    ColdPosting,
    ColdRun,
    piece_of,
)
from onelog.storage.cold.fetching import gone
from onelog.storage.cold.runs import ColdPages, PieceKey, Run
from onelog.storage.cold.table import RowTable
from onelog.storage.engine import NO_LEASE, Cold, Lease
from onelog.storage.files import ShortFile

T = TypeVar("T")
_EMPTY: Final = memoryview(b"")


class _RunGone(Exception):
    """A run left the cache while it was read: look again."""


class ColdRows:
    """The rows of one partition, read through the cache."""

    __slots__ = ("_bus_faults", "_cache", "_carrier", "_name", "_view", "found", "missed")

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        cache: RunCache,
        rows: Iterable[Row] = (),
        *,
        start: Offset | None = None,
        bringing: Bringing | None = None,
    ) -> None:
        self._name = name
        self._cache = cache
        self._carrier = Carrier(store, cache, bringing)
        self._bus_faults = bus_faults()
        self._view = _view(rows, start)
        self.found = 0
        """Reads of runs that were here, also after they were brought."""
        self.missed = 0
        """Reads that had to wait for the store."""

    # Rows.

    @property
    def rows(self) -> RowTable:
        """The rows; this table never changes."""
        return self._view[0]

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return Offset(self._view[1])

    @property
    def end_offset(self) -> Offset:
        """First offset behind the rows."""
        table, start = self._view
        return Offset(max(start, table.end))

    def replace(self, rows: Iterable[Row], *, start: Offset | None = None) -> None:
        """Read other rows from now on. Readers of the old ones go on.

        `start` is the first offset that may be read, if it is not the first row's.
        """
        old = self._view[0]
        self._view = _view(rows, start)
        if len(old):
            self._cache.ahead.ask(partial(self._forget_replaced, old))

    # Reading: nothing here waits.

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset` (or the next), as one view.

        The contract is that of `PartitionLog.read`. Raises Cold, OffsetOutOfRange, and ColdDamaged
        by its `bring`.
        """
        while True:
            table, start = self._view
            end = max(start, table.end)
            if not start <= offset <= end:
                raise OffsetOutOfRange(
                    f"offset {offset} of {self._name}: the cold rows hold {start} to {end}"
                )
            below = min(upto, end)
            try:
                found = self._read(table, offset, max_bytes, below) if offset < below else _EMPTY
            except _RunGone:
                continue
            if bus_faults() == self._bus_faults:
                return found
            self._drop_failed()

    def _read(self, table: RowTable, offset: int, max_bytes: int, below: int) -> memoryview:
        number = table.number_at(offset)
        position = offset
        while number < len(table) and table.base(number) < below:
            row = table[number]
            position = max(position, row.base)
            if row.log_bytes == 0:
                position = row.end
            while position < row.end:
                known = self._cache.empty_to(piece_of(row), position)
                if known > position:
                    position = known
                    continue
                run = self._run_at(row, position)
                found = self._use(run, partial(run.read, position, max_bytes, below))
                if found is not None:
                    if run.is_half_read and not run.next_asked:
                        self._carrier.look_ahead(table, number, run)
                    return found
                self._cache.note_empty(run.piece, position, run.end)
                position = run.end
            number += 1
        return _EMPTY

    def _use(self, run: Run, read: Callable[[], T]) -> T:
        """Read a run. Raises _RunGone when its file is not what it was."""
        try:
            found = read()
        except (FileNotFoundError, ShortFile, CorruptBatch):
            # It left in this moment, or somebody or the disk changed its file.
            self._cache.drop(run)
            raise _RunGone from None
        except OSError as error:
            raise StorageError(f"reading cold bytes of {self._name} failed: {error}") from error
        self._cache.note_served()
        return found

    def _drop_failed(self) -> None:
        """The cache's disk failed somewhere: runs that have zeros now are fetched again."""
        self._bus_faults = bus_faults()
        self._cache.drop_failed()

    def _run_at(self, row: Row, offset: int) -> Run:
        """The run that answers for an offset. Raises ColdRun."""
        piece = piece_of(row)
        run = self._cache.find(piece, offset)
        if run is not None:
            self.found += 1
            return run
        self.missed += 1
        index = self._cache.index.find(piece)
        if index is None:
            raise ColdRun(row, offset, -1, row.index_bytes + self._cache.run_bytes[0])
        span = self._carrier.plan(row, index, offset)
        raise ColdRun(row, offset, span.first, span.size_bytes)

    def offset_for_time(
        self, timestamp_ms: TimestampMs, below: Offset | None = None
    ) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none.

        With `below`, only rows that begin below it are looked at.
        """
        while True:
            table, start = self._view
            count = len(table) if below is None else table.number_from(below)
            try:
                found = self._offset_for_time(table, start, timestamp_ms, count)
            except _RunGone:
                continue
            if bus_faults() == self._bus_faults:
                return found
            self._drop_failed()

    def _offset_for_time(
        self, table: RowTable, start: int, timestamp_ms: int, count: int
    ) -> Offset | None:
        number = table.number_for_time(timestamp_ms, table.number_at(start))
        while number < count:
            row = table[number]
            index = self._index_of(row)
            position = index.position_for_time(timestamp_ms)
            offset = max(start, row.base, index.base_at(position) if row.log_bytes else row.end)
            while offset < row.end:
                known = self._cache.empty_to(piece_of(row), offset, timestamp_ms)
                if known > offset:
                    offset = known
                    continue
                run = self._run_at(row, offset)
                found = self._use(run, partial(run.offset_for_time, timestamp_ms, offset))
                if found is not None:
                    return Offset(max(start, found))
                self._cache.note_empty(run.piece, offset, run.end, timestamp_ms)
                offset = run.end
            number = table.number_for_time(timestamp_ms, number + 1)
        return None

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) whose record's topic has this hash; None: no index,
        or so many records that reading all of them costs less."""
        table, begin = self._view
        first, below = max(start, begin), min(upto, table.end)
        found: list[Offset] = []
        number = table.number_at(first)
        while number < len(table) and table.base(number) < below and len(found) < limit:
            row = table[number]
            rels = self._posting(row, topic_hash)
            if rels is None:
                return None
            at = bisect_left(rels, max(0, first - row.base))
            stop = min(bisect_left(rels, below - row.base), at + limit - len(found))
            found += [Offset(row.base + rel) for rel in rels[at:stop]]
            number += 1
        return found

    def _posting(self, row: Row, topic_hash: int) -> Sequence[int] | None:
        piece = piece_of(row)
        index = self._cache.index.find(piece)
        if index is None:
            raise ColdPosting(row, topic_hash)
        if not index.has_topics:
            return None
        span = index.topic_span(topic_hash)
        if span is None:
            return ()
        if span.size_bytes > POSTING_BYTES_MAX:
            return None
        rels = self._cache.postings.find((piece, topic_hash))
        if rels is None:
            raise ColdPosting(row, topic_hash)
        return rels

    def aborted(self, start: Offset, end: Offset) -> list[AbortedSpan]:
        """Aborted transactions with offsets in [start, end), each once. Raises Cold."""
        table = self._view[0]
        found: dict[AbortedSpan, None] = {}
        number = table.number_at(start)
        while number < len(table) and table.base(number) < end:
            index = self._index_of(table[number])
            found.update(dict.fromkeys(index.aborted_between(start, end)))
            number += 1
        return list(found)

    def _index_of(self, row: Row) -> IndexPart:
        index = self._cache.index.find(piece_of(row))
        if index is None:
            raise ColdIndexPart(row)
        return index

    # Bringing: couriers call this, and it blocks.

    def bring(self, cold: Cold) -> Lease:
        """Have the bytes here that a read found cold. Raises ColdUnavailable when that may work
        later, and ColdDamaged when an object is gone or does not hold what was written."""
        if isinstance(cold, ColdPages):
            return self._warm(cold.run)
        assert isinstance(cold, ColdRun | ColdIndexPart | ColdPosting)
        row = cold.row
        try:
            if isinstance(cold, ColdRun):
                return self._still_named(row, self._carrier.bring_run(row, cold.offset))
            if isinstance(cold, ColdIndexPart):
                return self._carrier.bring_index(row)
            return self._carrier.bring_postings(self.rows, cold)
        except NotFound as error:
            if self._names(row):
                raise gone(row, error) from error
            return NO_LEASE  # the next read finds the new rows

    def _still_named(self, row: Row, lease: Lease) -> Lease:
        """A run whose piece was replaced while it came serves nobody: it must take no room."""
        if self._names(row):
            return lease
        lease.release()
        self._cache.forget(piece_of(row))
        return NO_LEASE

    def _warm(self, run: Run) -> Lease:
        try:
            run.warm()
        except OSError:
            self._cache.drop(run)
            return NO_LEASE
        return self._cache.hold(run)

    def _names(self, row: Row) -> bool:
        """Whether the rows of now name this piece."""
        return _names(self._view[0], row.base, piece_of(row))

    def _forget_replaced(self, old: RowTable) -> None:
        """Runs of pieces that no row names any more leave the cache."""
        for run in self._cache.runs():
            if _names(old, run.first, run.piece) and not _names(self.rows, run.first, run.piece):
                self._cache.forget(run.piece)

    def close(self) -> None:
        """Let the runs of this partition go. Blocks."""
        for run in self._cache.runs():
            if _names(self.rows, run.first, run.piece):
                self._cache.forget(run.piece)


def _names(table: RowTable, offset: int, piece: PieceKey) -> bool:
    number = table.number_at(offset)
    return number < len(table) and piece_of(table[number]) == piece


def _view(rows: Iterable[Row], start: int | None) -> tuple[RowTable, int]:
    table = rows if isinstance(rows, RowTable) else RowTable(rows)
    return table, table.start if start is None else max(start, table.start)
