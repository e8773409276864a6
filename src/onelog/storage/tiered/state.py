"""What a partition's tier knows: which rows lie in the store, and which of them are also here.

Rules: rows ascend, and each is in one of four lists. *Leaving* ones lie below the log's start, and
*dropped* ones beyond a cut: the store's manifest still names both. Of the rest, *cold* ones begin
below the local start, so that only the store has them, and *both* are here, too. The copy on the
disk is written before anything here changes. `lock` guards all of it, and is never held while the
store is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import ColdDamaged, InvalidRequest, PartitionCorrupt
from onelog.base.ids import Offset, TimestampMs
from onelog.objects.manifest import NONCE_BYTES, VERSION, Manifest
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.cold import Bringing, ColdRows, RunCache
from onelog.storage.cold.table import RowTable
from onelog.storage.engine import PartitionKey, SegmentInfo
from onelog.storage.tiered.copies import LOST, NO_CUT, UNMET, TierCopy, TierFiles, encode_copy
from onelog.storage.tiered.inner import LocalLog

_NO_ROWS: Final = RowTable()


class TierState:
    """The rows of one partition, and where they lie."""

    __slots__ = (
        "_files", "_inner", "both", "cold", "cut", "dropped", "head", "key", "leaving", "local",
        "lock", "lost", "name", "start", "unmet_cut",
    )  # fmt: skip

    def __init__(
        self,
        key: PartitionKey,
        inner: LocalLog,
        folder: Path,
        store: ObjectStore,
        cache: RunCache,
        bringing: Bringing | None,
    ) -> None:
        """Raises PartitionCorrupt when the local log ends before the rows do."""
        self.key = key
        self.name = f"{key.stream_id}/{key.partition}"
        self.lock = threading.RLock()
        self._inner = inner
        self._files = TierFiles(folder)
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
        self.leaving: list[Row] = []
        self.dropped: list[Row] = []
        self.both = _NO_ROWS
        self.cold = ColdRows(self.name, store, cache, bringing=bringing)
        self.lost = False
        """Whether the copies are damaged, so that only the store knows the rows."""
        self._load()

    def _load(self) -> None:
        copy, is_damaged = self._files.load()
        if copy is None:
            self.lost = is_damaged
            self.start = 0 if is_damaged else self.start
            return
        self.start = copy.start
        self.lost = bool(copy.flags & LOST)
        self.cut, self.unmet_cut = copy.cut, bool(copy.flags & UNMET)
        if self.lost:
            return
        if not copy.manifest:
            self.start = self.local
            return
        try:
            manifest = Manifest.decode(copy.manifest, f"the copy of the manifest of {self.name}")
        except ColdDamaged:
            self.lost = True
            return
        self._take(manifest)
        end = self._inner.end_offset
        if self.end > end:
            raise PartitionCorrupt(
                f"{self.name} ends at offset {end} on this machine, and the object store has it up"
                f" to {self.end}: this disk lost records. Restore the partition from the bucket"
                " (onelog store restore), from a backup or a replica, then restart"
            )

    # Rows. The lock is held to change them.

    @property
    def end(self) -> int:
        """First offset behind the rows that are read; 0: there are none."""
        return self.both.end or self.cold.rows.end

    @property
    def has_rows(self) -> bool:
        """Whether rows are known that the store's manifest names."""
        return bool(self.leaving or self.dropped or len(self.cold.rows) or len(self.both))

    def rows(self) -> Iterator[Row]:
        """The rows that are read, in order."""
        return chain(self.cold.rows, self.both)

    def _all(self) -> tuple[Row, ...]:
        return (*self.leaving, *self.rows(), *self.dropped)

    def _take(self, manifest: Manifest) -> None:
        self.head = msgspec.structs.replace(manifest, rows=())
        self._sort(manifest.rows)
        if not self.end:
            self.start = max(self.start, self.local)

    def _sort(self, rows: Iterable[Row]) -> None:
        leaving, cold, both, dropped = [], [], [], []
        cut = self.cut if self.cut != NO_CUT else 1 << 63
        for row in rows:
            if row.end > cut:
                dropped.append(row)
            elif row.end <= self.start:
                leaving.append(row)
            elif row.base < self.local:
                cold.append(row)
            else:
                both.append(row)
        self.leaving, self.dropped = leaving, dropped
        self.both = RowTable(both)
        self.cold.replace(RowTable(cold), start=Offset(self.start))

    # Changes. Each is durable when it returns.

    def adopt(self, manifest: Manifest, data: bytes) -> None:
        """The store has this manifest now: keep a copy, and read its rows from now on."""
        with self.lock:
            dropped = {row.object for row in self.dropped}
            is_cut = any(
                row.object in dropped or (self.unmet_cut and row.end > self.cut)
                for row in manifest.rows
            )
            cut = self.cut if is_cut else NO_CUT
            # A start that a cut overtook meanwhile is as far as the log goes.
            known = self._inner.end_offset if self.cut == NO_CUT else self.cut
            start = max(self.start, min(manifest.start, known))
            self._files.save(TierCopy(start, cut, data))
            self.start, self.cut, self.lost, self.unmet_cut = start, cut, False, False
            self._take(manifest)

    def move_start(self, start: Offset) -> None:
        """The log begins at `start` from now on; rows below it leave."""
        with self.lock:
            if start <= self.start:
                return
            if self.has_rows or self.lost:
                self._save(start, self.cut)
            self.start = start
            self._sort(self._all())

    def cut_rows(self, end: Offset, *, is_met: bool) -> None:
        """Rows that reach beyond `end` are no longer read: the log is to be truncated there.

        Unless the store was compared (`is_met`), it may have rows that are not known here.
        """
        with self.lock:
            start = min(self.start, end)
            if (is_met and self.end <= end) and start == self.start:
                return
            self.unmet_cut |= not is_met
            cut = min(end, self.cut) if self.cut != NO_CUT else end
            self._save(start, cut)
            self.cut, self.start = cut, start
            self._sort(self._all())

    def note_met(self) -> None:
        """The store has no rows that are not known here: an earlier cut took all it could."""
        with self.lock:
            if self.unmet_cut:
                self.unmet_cut = False
                cut = self.cut if self.dropped else NO_CUT
                self._save(self.start, cut)
                self.cut = cut

    def follow_cut(self, end: Offset) -> None:
        """The log of a partition that never had a tier is to be truncated."""
        with self.lock:
            self.start = min(self.start, end)

    def move_local(self, local: Offset) -> None:
        """The local window begins elsewhere."""
        with self.lock:
            if local != self.local:
                self.local = local
                self._sort(self._all())

    def _save(self, start: int, cut: int) -> None:
        self._files.save(self._copy(start, cut))

    def _copy(self, start: int, cut: int) -> TierCopy:
        manifest = msgspec.structs.replace(self.head, rows=self._all())
        data = manifest.encode() if manifest.seq else b""
        flags = (LOST if self.lost else 0) | (UNMET if self.unmet_cut else 0)
        return TierCopy(start, cut, data, flags)

    def frozen(self, end: Offset) -> bytes | None:
        """The copy as it is now, for a copy of the partition that ends at `end`; None: there is
        none."""
        with self.lock:
            if self.end > end:
                raise InvalidRequest(
                    f"{self.name} cannot be copied up to offset {end}: the object store has it up"
                    f" to {self.end} already"
                )
            if not (self.has_rows or self.lost):
                return None
            return encode_copy(self._copy(self.start, self.cut), 1)

    # What readers of the whole log see.

    @property
    def cold_bytes(self) -> int:
        """Bytes of batches that only the store has."""
        cold, local = self.cold.rows, self.local
        if cold.end <= local:
            return cold.size_bytes
        last = cold[-1]
        return cold.size_bytes - last.log_bytes + _as_segment(last, local).size_bytes

    def segments(self) -> list[SegmentInfo]:
        """Segments of all places in order; each offset lies in one of them."""
        with self.lock:
            cold, both = self.cold.rows, self.both
            local = self._inner.segments()
        first = int(local[0].base_offset) if local else self.local
        found = [_as_segment(row, first) for row in cold if row.base < first]
        here = [cold[-1], *both] if len(cold) and cold.end > first else both
        return found + [
            info._replace(place="both") if _has(here, info, self.local) else info for info in local
        ]


def _as_segment(row: Row, first: int) -> SegmentInfo:
    """The part of a row that lies before the first local segment."""
    size_bytes = row.log_bytes
    if row.end > first:
        size_bytes = size_bytes * (first - row.base) // (row.end - row.base)
    return SegmentInfo(
        Offset(row.base),
        Offset(min(row.end, first)),
        size_bytes,
        TimestampMs(row.max_timestamp_ms),
        True,
        TimestampMs(row.created_ms),
        "cold",
    )


def _has(rows: RowTable | list[Row], info: SegmentInfo, local: int) -> bool:
    """Whether the store has all of a local segment that may be read."""
    if not info.sealed or not len(rows) or info.end_offset > rows[-1].end:
        return False
    table = rows if isinstance(rows, RowTable) else RowTable(rows)
    first = max(info.base_offset, local)
    return first >= info.end_offset or table.base(table.number_at(first)) <= first
