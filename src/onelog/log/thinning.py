"""Thinning: rewrites segments that are held back for a few records, so that only these records
stay.

Without it, one message that nobody fetches would keep everything that was sent after it.

Rules:
- It only touches segments that retention would remove if no durable cursor needed a record in them.
- Below `Needs.upto` the needs name every record that a cursor still needs; records beyond are not
  touched. Offsets never move. Batches of a producer with an id stay, because replay reads them.
- The newest record of all stays: by it, readers know that they are at the end.
- A segment is rewritten when at least half of what it had goes, so the work stays a fraction of
  what was written. Many small segments become one.
- It runs in a thread. Meanwhile a cursor may come to need more (history that a queue takes): then
  the new segment is thrown away (`Needs.still_hold`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from onelog.kernel import ATTR_CONTROL, BatchInfo, decode_batch
from onelog.log.rewriting import (
    Kept,
    Pace,
    Rewriting,
    batch_by_batch,
    neighbours,
    whole,
    with_records,
)
from onelog.record.batch import inflated_records
from onelog.storage.engine import PartitionLog, SegmentInfo

MERGED_AT_ONCE: Final = 8
"""So many small neighbours become one segment, even when no record of them goes."""


class Needs(Protocol):
    """The records of one partition that durable cursors still need."""

    @property
    def upto(self) -> int:
        """From this offset on, every record is needed."""
        ...

    def count(self, start: int, end: int) -> int:
        """How many records of [start, end) are needed."""
        ...

    def __contains__(self, offset: int) -> bool:
        """Whether a record below `upto` is needed."""
        ...

    async def still_hold(self) -> bool:
        """Whether no cursor has come to need more since the needs were gathered."""
        ...


class Thinned:
    """How many records were needed in each segment of one partition when it was last rewritten."""

    __slots__ = ("_had",)

    def __init__(self) -> None:
        self._had: dict[int, int] = {}
        """Base offset → records that were needed then."""

    def due(
        self, rows: Sequence[SegmentInfo], needs: Needs, segment_bytes: int
    ) -> Iterator[list[SegmentInfo]]:
        """Groups of segments that are worth rewriting now."""
        known = {int(row.base_offset) for row in rows}
        self._had = {base: had for base, had in self._had.items() if base in known}
        reached = [row for row in rows if row.end_offset <= needs.upto]
        for group in neighbours(reached, segment_bytes):
            if len(group) >= MERGED_AT_ONCE or any(self._is_thin(row, needs) for row in group):
                yield group

    def _is_thin(self, row: SegmentInfo, needs: Needs) -> bool:
        had = self._had.get(row.base_offset, row.end_offset - row.base_offset)
        return had > 0 and 2 * needs.count(row.base_offset, row.end_offset) <= had

    def note(self, group: Sequence[SegmentInfo], needs: Needs) -> None:
        """A group was rewritten."""
        start, end = group[0].base_offset, group[-1].end_offset
        self._had[start] = needs.count(start, end)


def thin(log: PartitionLog, group: Sequence[SegmentInfo], needs: Needs, pace: Pace) -> Rewriting:
    """Write the records of a group of segments that are needed. Blocks: run it in a thread.

    Raises CorruptBatch when stored bytes are damaged, OffsetOutOfRange when the log was trimmed
    meanwhile, Closed when `pace` was asked to stop.
    """

    def clean(data: memoryview, info: BatchInfo) -> Kept:
        if info.producer_id >= 0 or info.attributes & ATTR_CONTROL:
            return whole(data, info)
        needed = needs.count(info.base_offset, info.last_offset + 1)
        if not needed:
            return None
        if needed >= info.count:
            return whole(data, info)
        records = inflated_records(data, info)
        offsets = decode_batch(data, info.position, records, False).offsets()
        return with_records(data, info, bytes(offset in needs for offset in offsets), records)

    return Rewriting.write(log, group, batch_by_batch(clean, pace))
