"""Rewriting: neighbouring sealed segments are replaced by what stays of their batches.

Rules:
- Offsets never move. The caller says, batch by batch, what stays: compaction keeps the last record
  of a key, thinning the records that a cursor still needs.
- Every batch is checked before it is rewritten: new CRCs must not hide old damage.
- It blocks, so it runs in a thread. It calls `pace` at every batch, because the interpreter is
  shared with the event loop. Nothing counts before `commit`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from onelog.base.clock import Clock
from onelog.base.errors import Closed, CorruptBatch, MessageTooLarge
from onelog.base.ids import Offset
from onelog.kernel import ATTR_CODEC_MASK, BatchInfo, keep_records, scan_batches
from onelog.record.batch import compress_batch
from onelog.storage.engine import PartitionLog, Rewrite, SegmentInfo, in_place

READ_BYTES: Final = 1024 * 1024
_SEGMENT_OFFSETS_MAX: Final = 2**31 - 1
_PAUSE_S_MAX: Final = 0.05

Pace = Callable[[], None]
"""Called often by work in a thread: sleeps to leave the interpreter to others, or raises."""
Kept = bytes | memoryview | None
"""What stays of a batch: all of its bytes, a smaller batch, or nothing."""
Clean = Callable[[memoryview, BatchInfo], Kept]


class Rewritten(NamedTuple):
    """What stays of a slice of the log, and where the next one begins."""

    data: bytes | bytearray | memoryview
    batches: Sequence[BatchInfo]
    changed: bool
    next_offset: int


CleanSlice = Callable[[memoryview], Rewritten]
"""What stays of the whole batches of a slice. Raises CorruptBatch."""


class Pacer:
    """Lets a thread work a share of the time in short slices, and ends it when asked to stop."""

    __slots__ = ("_clock", "_since_s", "_slice_s", "_stop", "_wait_factor")

    def __init__(
        self, clock: Clock, stop: threading.Event, *, share: float = 0.2, slice_s: float = 0.001
    ) -> None:
        self._clock = clock
        self._stop = stop
        self._slice_s = slice_s
        self._wait_factor = 1 / share - 1
        self._since_s = clock.monotonic()

    def __call__(self) -> None:
        """Sleep when the slice is used up; raise Closed after `stop` was set."""
        busy_s = self._clock.monotonic() - self._since_s
        if busy_s >= self._slice_s:
            self._stop.wait(min(busy_s * self._wait_factor, _PAUSE_S_MAX))
            self._since_s = self._clock.monotonic()
        if self._stop.is_set():
            raise Closed("rewriting was asked to stop; the log is as it was")


class Rewriting:
    """A group of segments whose replacement is written, but not yet in place."""

    __slots__ = ("_changed", "_rewrite", "bytes_after", "bytes_before")

    def __init__(self, rewrite: Rewrite, bytes_before: int, *, merges: bool) -> None:
        self.bytes_before = bytes_before
        self.bytes_after = 0
        self._rewrite = rewrite
        self._changed = merges

    @classmethod
    def write(
        cls,
        log: PartitionLog,
        group: Sequence[SegmentInfo],
        clean: CleanSlice,
        read_bytes: int = READ_BYTES,
    ) -> Rewriting:
        """Write what stays of a group. Raises CorruptBatch, OffsetOutOfRange, Closed."""
        start, end = group[0].base_offset, group[-1].end_offset
        size_bytes = sum(row.size_bytes for row in group)
        made = cls(log.rewrite(start, end), size_bytes, merges=len(group) > 1)
        try:
            offset = max(start, log.start_offset)
            while offset < end and len(data := read_slice(log, offset, read_bytes, end)):
                cleaned = clean(data)
                made._add(cleaned)
                offset = advanced(offset, cleaned.next_offset)
        except BaseException:
            made.abort()
            raise
        return made

    def _add(self, cleaned: Rewritten) -> None:
        if cleaned.batches:
            self._rewrite.append(cleaned.data, cleaned.batches)
        self._changed = self._changed or cleaned.changed
        self.bytes_after += len(cleaned.data)

    def commit(self) -> None:
        """Put the replacement in place, durably. One that would change nothing is thrown away.

        Raises Conflict when the log was trimmed meanwhile.
        """
        if not self._changed:
            self.abort()
            self.bytes_after = self.bytes_before
            return
        try:
            self._rewrite.commit()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Throw the replacement away."""
        self._rewrite.abort()


def neighbours(rows: Sequence[SegmentInfo], segment_bytes: int) -> Iterator[list[SegmentInfo]]:
    """Groups of neighbouring segments that fit into one segment."""
    group: list[SegmentInfo] = []
    size = 0
    for row in rows:
        too_wide = group and row.end_offset - group[0].base_offset > _SEGMENT_OFFSETS_MAX
        if group and (too_wide or size + row.size_bytes > segment_bytes):
            yield group
            group, size = [], 0
        group.append(row)
        size += row.size_bytes
    if group:
        yield group


def read_slice(log: PartitionLog, offset: int, max_bytes: int, end: Offset) -> memoryview:
    """Whole batches from an offset on, wherever they lie; empty at the end."""
    return in_place(log, partial(log.read, Offset(offset), max_bytes, end))


def advanced(offset: int, next_offset: int) -> Offset:
    """Where the next slice begins. Raises CorruptBatch when the last one held no batch."""
    if next_offset <= offset:
        raise CorruptBatch(f"there is no whole batch at offset {offset}")
    return Offset(next_offset)


def batch_by_batch(clean: Clean, pace: Pace) -> CleanSlice:
    """Cleans slices by what stays of each batch."""

    def clean_slice(data: memoryview) -> Rewritten:
        out, rows, changed, next_offset = bytearray(), [], False, -1
        for info in scan_batches(data):
            pace()
            kept = clean(data, info)
            if kept is not None:
                rows.append(_placed(kept, info, len(out)))
                out += kept
            changed = changed or not isinstance(kept, memoryview)
            next_offset = info.last_offset + 1
        return Rewritten(out, rows, changed, next_offset)

    return clean_slice


def whole(data: memoryview, info: BatchInfo) -> memoryview:
    """A batch as it is."""
    return data[info.position : info.position + info.size_bytes]


def with_records(
    data: memoryview,
    info: BatchInfo,
    keep: bytes | bytearray,
    records: bytes | None,
    horizon_ms: int = -1,
) -> Kept:
    """A batch with only some of its records, compressed as it was."""
    try:
        kept = keep_records(data, info.position, bytes(keep), records, horizon_ms)
    except MessageTooLarge:
        return whole(data, info)  # it exists only compressed: keeping too much is safe
    codec = info.attributes & ATTR_CODEC_MASK
    return compress_batch(kept, codec) if codec and any(keep) else kept


def _placed(kept: bytes | memoryview, info: BatchInfo, position: int) -> BatchInfo:
    if isinstance(kept, memoryview):
        return info._replace(position=position)
    return scan_batches(kept, 0, False)[0]._replace(position=position)
