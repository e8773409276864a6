"""Cuts the log's end off, so that a crash at any step leaves it cut or not cut.

Rules: the checkpoint that says "cut" is the moment that counts; recovery finishes what follows.
Live bytes are never cut in place, for readers may have them mapped: the kept ones are copied to a
new file that takes the name.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from onelog.base import faults
from onelog.kernel import scan_batches
from onelog.storage.segment.files import OpenFile
from onelog.storage.segment.scan import Walk
from onelog.storage.segment.segment import LOG, Segment

_COPY_BYTES = 8 * 1024 * 1024


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


def last_batch(segment: Segment, size_bytes: int) -> tuple[int, int]:
    """Position of the last batch below `size_bytes`, and the highest timestamp up to there."""
    walk = Walk(segment.buffer(size_bytes), 0, size_bytes, -1, check_crc=False)
    last, highest = 0, -1
    for _, batches, at in walk.pieces():
        last = at + batches[-1].position
        highest = max(highest, *(info.max_timestamp_ms for info in batches))
    return last, highest


def copy_prefix(segment: Segment, size_bytes: int) -> None:
    """Put a file with the first `size_bytes` of the segment in the place of its log."""
    path = segment.stem + LOG
    view = memoryview(segment.buffer(size_bytes))
    file = OpenFile(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for at in range(0, size_bytes, _COPY_BYTES):
        file.write(view[at : min(at + _COPY_BYTES, size_bytes)], at)
    file.sync_all()
    faults.hit("segment.truncate")
    os.replace(path + ".tmp", path)  # noqa: PTH105
