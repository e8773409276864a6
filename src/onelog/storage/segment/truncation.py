"""Finds where to cut a log, and the part of the cut segment that stays.

Rules: nothing is copied and nothing is cut in place, because readers may have the bytes mapped: the
segment is sealed with fewer bytes than its file has, and the log goes on in a new one. The bytes
behind that size mean nothing and are deleted at the next open. The last batch before the cut is
found by the index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from onelog.kernel import crc32c, scan_batches
from onelog.storage.segment.checkpoint import UNKNOWN, SegmentRow
from onelog.storage.segment.index import POSITION_MASK
from onelog.storage.segment.indexes import BadIndex
from onelog.storage.segment.scan import Walk
from onelog.storage.segment.segment import Segment


class Cut(NamedTuple):
    """Where a log is to be cut."""

    kept: list[Segment]
    """Segments that stay as they are."""
    split: Segment | None
    """The segment of which only `size_bytes` stay."""
    size_bytes: int
    end_offset: int


def find_cut(segments: list[Segment], end: int) -> Cut:
    """The cut after which no batch reaches `end`."""
    kept: list[Segment] = []
    for segment in segments:
        if segment.base_offset >= end or segment.size_bytes == 0:
            break
        position = segment.locate(end, segment.size_bytes)
        if position < 0:
            kept.append(segment)
            continue
        buffer = segment.buffer(segment.size_bytes)
        info = scan_batches(buffer, position, False, 1)[0]
        split = segment if position else None
        return Cut(kept, split, position, min(end, info.base_offset))
    return Cut(kept, None, 0, end)


def shortened(segment: Segment, size_bytes: int) -> SegmentRow:
    """The row of a segment of which only the first `size_bytes` count; a batch ends there."""
    row = segment.row()
    try:
        with segment.indexes.brought():
            offsets, times = segment.indexes.offsets(), segment.indexes.times()
    except BadIndex:
        offsets = times = ()
    entries = bisect_left(offsets, size_bytes, key=lambda entry: entry & POSITION_MASK)
    at = offsets[entries - 1] & POSITION_MASK if entries else 0
    first = scan_batches(segment.buffer(size_bytes), at, False, 1)[0]
    rel = first.base_offset - segment.base_offset
    if not entries or row.index_bytes == UNKNOWN or offsets[entries - 1] >> 32 != rel:
        at = entries = rel = 0
        row = msgspec.structs.replace(row, index_bytes=UNKNOWN)
    count = bisect_right(range(len(times) // 2), rel, key=lambda entry: times[2 * entry + 1])
    highest = times[2 * count - 2] if entries and count else -1
    walk = Walk(segment.buffer(size_bytes), at, size_bytes, -1, check_crc=False)
    last = at
    for _, batches, start in walk.pieces():
        last = start + batches[-1].position
        highest = max(highest, *(info.max_timestamp_ms for info in batches))
    plain = msgspec.structs.replace(
        row, size_bytes=size_bytes, last_batch_at=last, max_timestamp_ms=highest
    )
    if plain.index_bytes == UNKNOWN:
        return plain
    index, timed = _bytes_of(offsets[:entries]), _bytes_of(times[: 2 * count])
    return msgspec.structs.replace(
        plain,
        index_bytes=len(index),
        index_crc=crc32c(index),
        times_bytes=len(timed),
        times_crc=crc32c(timed),
    )


def _bytes_of(entries: Sequence[int]) -> bytes:
    """Entries of 8 bytes as their file has them."""
    return bytes(memoryview(entries).cast("B")) if len(entries) else b""  # type: ignore[arg-type]
