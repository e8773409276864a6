"""What a partition's tier knows: which rows lie in the store, and which of them are also here.

Rules: one table has all rows that count, in order. Those that end at or below the log's start are
*leaving*; those that reach beyond a cut are *dropped*, and lie apart: the store's manifest still
names both. Rows that begin below the local start are *cold*: only the store has them. The copy on
the disk is written before anything here changes. `lock` guards all of it, and is never held while
the store is asked.
"""

from __future__ import annotations

import threading
from typing import Final

from onelog.base.errors import InvalidRequest, PartitionCorrupt
from onelog.base.ids import Offset, TimestampMs
from onelog.objects.manifest import NONCE_BYTES, VERSION, Manifest
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.cold import Bringing, ColdRows, RowTable, RunCache
from onelog.storage.cold.table import RowNumbers
from onelog.storage.engine import PartitionKey, SegmentInfo
from onelog.storage.tiered.copies import LOST, NO_CUT, UNMET, TierCopies, TierCopy, encode_copy
from onelog.storage.tiered.inner import LocalLog

NO_ROWS: Final = RowTable()


class TierState:
    """The rows of one partition, and where they lie."""

    __slots__ = (
        "_copies", "_inner", "cold", "cut", "dropped", "head", "key", "local", "lock", "lost",
        "name", "rows", "start", "unmet_cut",
    )  # fmt: skip

    def __init__(
        self,
        key: PartitionKey,
        inner: LocalLog,
        copies: TierCopies,
        store: ObjectStore,
        cache: RunCache,
        bringing: Bringing | None,
    ) -> None:
        """Raises PartitionCorrupt when the local log ends before the rows do."""
        self.key = key
        self.name = f"{key.stream_id}/{key.partition}"
        self.lock = threading.RLock()
        self._inner = inner
        self._copies = copies
        self.local = int(inner.start_offset)
        """Where the local window begins; below it, batches are read from the store."""
        self.start = self.local
        """First offset of the log that may be read."""
        self.cut = NO_CUT
        """Rows that reach beyond it were dropped, and the store does not know it yet."""
        self.unmet_cut = False
        """Whether the cut also counts for rows that are not known here yet."""
        self.head = Manifest(VERSION, 0, bytes(NONCE_BYTES), 0, b"", key.partition, 0)
        """The newest manifest that is known, without its rows; number 0: there is none."""
        self.rows = self.dropped = NO_ROWS
        self.cold = ColdRows(self.name, store, cache, bringing=bringing)
        self.lost = False
        """Whether the copies are damaged, so that only the store knows the rows."""
        self._load()

    def _load(self) -> None:
        copy, is_damaged = self._copies.load()
        if copy is None:
            self.lost = is_damaged
            self.start = 0 if is_damaged else self.start
            return
        self.lost = bool(copy.flags & LOST)
        self.start = copy.start
        self.cut, self.unmet_cut = copy.cut, bool(copy.flags & UNMET)
        if self.lost:
            return
        if copy.head is None:
            self.start = self.local
            return
        self._take(copy.head, copy.rows)
        self._start_here()
        end = self._inner.end_offset
        if self.end > end:
            raise PartitionCorrupt(
                f"{self.name} ends at offset {end} on this machine, and the object store has it up"
                f" to {self.end}: this disk lost records. Restore the partition from a backup or a"
                " replica, then restart; or delete its folder and restore it from the bucket"
            )

    # Rows. The lock is held to change them.

    @property
    def first(self) -> int:
        """The number of the first row that is not leaving."""
        return self.rows.number_at(self.start)

    @property
    def end(self) -> int:
        """First offset behind the rows that are read; 0: there are none."""
        return self.rows.end if self.first < len(self.rows) else 0

    @property
    def has_gone(self) -> bool:
        """Whether the store's manifest names rows that left the log."""
        return bool(self.first or len(self.dropped))

    @property
    def is_known(self) -> bool:
        """Whether there is anything to keep a copy of."""
        return bool(len(self.rows) or len(self.dropped) or self.lost)

    def gone(self) -> list[Row]:
        """Rows that left the log, and that the store's manifest names."""
        return [*self.rows[: self.first], *self.dropped]

    def kept(self) -> RowTable:
        """The rows that are read."""
        first = self.first
        return self.rows.spliced(0, first, ()) if first else self.rows

    def _take(self, head: Manifest, rows: RowTable) -> None:
        self.head, self.dropped = head, NO_ROWS
        if self.cut != NO_CUT:
            count = rows.number_at(self.cut)
            self.dropped = rows.spliced(0, count, ())
            rows = rows.spliced(count, len(rows), ())
        self.rows = rows
        self.cold.replace(rows, start=Offset(self.start))

    def _start_here(self) -> None:
        """Without rows that are read, the log begins where the local one does."""
        if not self.end and not self.lost:
            self.start = max(self.start, self.local)

    def _all(self) -> RowTable:
        if not len(self.dropped):
            return self.rows
        return self.rows.spliced(len(self.rows), len(self.rows), self.dropped)

    # Changes. Each is kept when it returns, and durable at the latest after `wait`.

    def wait(self) -> None:
        """Block until what was changed is durable; without the lock."""
        self._copies.wait()

    def prove(self) -> None:
        """Block until it is sure that this process has the partition. Raises Fenced."""
        self._copies.prove()

    def adopt(self, head: Manifest, rows: RowTable) -> None:
        """The store has this manifest now: keep a copy, and read its rows from now on."""
        with self.lock:
            cut = self.cut if self._is_cut(rows) else NO_CUT
            # A start that a cut overtook meanwhile is as far as the log goes.
            known = self._inner.end_offset if self.cut == NO_CUT else self.cut
            start = max(self.start, min(head.start, known))
            self._copies.save(TierCopy(start, cut, head, rows))
            self.start, self.cut, self.lost, self.unmet_cut = start, cut, False, False
            self._take(head, rows)
            self._start_here()

    def _is_cut(self, rows: RowTable) -> bool:
        """Whether rows hold any that a cut took."""
        if self.cut == NO_CUT or rows.number_at(self.cut) == len(rows):
            return False
        dropped = {row.object for row in self.dropped}
        return self.unmet_cut or any(
            row.object in dropped for row in rows[rows.number_at(self.cut) :]
        )

    def move_start(self, start: Offset) -> None:
        """The log begins at `start` from now on; rows below it leave."""
        with self.lock:
            if start <= self.start:
                return
            if self.is_known:
                self._copies.save(self._copy(start, self.cut))
            self.start = start
            self.cold.replace(self.rows, start=start)

    def cut_rows(self, end: Offset, *, is_met: bool) -> None:
        """Rows that reach beyond `end` are no longer read: the log is to be truncated there.

        Unless the store was compared (`is_met`), it may have rows that are not known here.
        """
        with self.lock:
            start = min(self.start, end)
            if is_met and self.end <= end and start == self.start:
                return
            self.unmet_cut |= not is_met
            cut = min(end, self.cut) if self.cut != NO_CUT else end
            self._copies.save(self._copy(start, cut))
            self.cut, self.start = cut, start
            self._take(self.head, self._all())

    def note_met(self) -> None:
        """The store has no rows that are not known here: an earlier cut took all it could."""
        with self.lock:
            if self.unmet_cut:
                self.unmet_cut = False
                cut = self.cut if len(self.dropped) else NO_CUT
                self._copies.save(self._copy(self.start, cut))
                self.cut = cut

    def follow_cut(self, end: Offset) -> None:
        """The log of a partition that never had a tier is to be truncated."""
        with self.lock:
            self.start = min(self.start, end)

    def move_local(self, local: Offset) -> None:
        """The local window begins elsewhere."""
        with self.lock:
            self.local = local
            self._start_here()

    def _copy(self, start: int, cut: int) -> TierCopy:
        flags = (LOST if self.lost else 0) | (UNMET if self.unmet_cut else 0)
        return TierCopy(start, cut, self.head if self.head.seq else None, self._all(), flags)

    def frozen(self, end: Offset) -> bytes | None:
        """The copy as it is now, for a copy of the partition that ends at `end`; None: there is
        none."""
        with self.lock:
            if self.end > end:
                raise InvalidRequest(
                    f"{self.name} cannot be copied up to offset {end}: the object store has it up"
                    f" to {self.end} already"
                )
            return encode_copy(self._copy(self.start, self.cut), 1) if self.is_known else None

    # What readers of the whole log see.

    @property
    def cold_bytes(self) -> int:
        """Bytes of batches that only the store has."""
        with self.lock:
            rows, first, local = self.rows, self.first, self.local
        last = rows.number_from(local)
        if first >= last:
            return 0
        size_bytes = rows.bytes_between(first, last)
        if rows.end_of(last - 1) > local:
            (row,) = rows.numbers(last - 1, last)
            size_bytes -= row.log_bytes - _as_segment(row, local).size_bytes
        return size_bytes

    def segments(self) -> list[SegmentInfo]:
        """Segments of all places in order; each offset lies in one of them."""
        with self.lock:
            rows, first, local = self.rows, self.first, self.local
            here = self._inner.segments()
        below = int(here[0].base_offset) if here else local
        found = [_as_segment(row, below) for row in rows.numbers(first, rows.number_from(below))]
        return found + [
            info._replace(place="both") if _has(rows, info, local) else info for info in here
        ]


def _as_segment(row: RowNumbers, below: int) -> SegmentInfo:
    """The part of a row that lies before the first local segment."""
    base, end, max_timestamp_ms, size_bytes, created_ms = row
    if end > below:
        size_bytes = size_bytes * (below - base) // (end - base)
        end = below
    return SegmentInfo(
        Offset(base),
        Offset(end),
        size_bytes,
        TimestampMs(max_timestamp_ms),
        True,
        TimestampMs(created_ms),
        "cold",
    )


def _has(rows: RowTable, info: SegmentInfo, local: int) -> bool:
    """Whether the store has all of a local segment that may be read."""
    if not info.sealed or info.end_offset > rows.end:
        return False
    first = max(info.base_offset, local)
    return first >= info.end_offset or rows.base(rows.number_at(first)) <= first
