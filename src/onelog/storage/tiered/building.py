"""Builds the next piece of a partition from its sealed segments.

Rules: neighbours are joined as long as their batches fit one segment. Bytes of the log are not
copied: the piece holds views of the segments' maps, which outlive a trim. The topic index comes
from the segments' own files; only a segment whose file cannot be used is decoded. Every batch is
checked before it leaves this machine. The work is done in short stretches with a rest after each,
because the loop wants the interpreter, too.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from onelog.base.errors import CorruptBatch, PartitionCorrupt
from onelog.base.ids import Offset
from onelog.kernel import REL_MAX, scan_batches, scan_valid
from onelog.objects.piece_building import BuiltPiece, PieceBuilder
from onelog.objects.rows import LOG_BYTES_MAX
from onelog.storage.engine import SegmentInfo, in_place
from onelog.storage.tier import PieceSource
from onelog.storage.tiered.inner import LocalLog
from onelog.storage.topic_pairs import derive_pairs

READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the log that are read at once."""
STRETCH_BYTES: Final = 64 * 1024
"""Bytes that are checked before a rest, if batches are not larger."""
_REST_S: Final = 50e-6


class SealedRun(NamedTuple):
    """Neighbouring sealed segments that become one piece."""

    base: Offset
    end: Offset
    segments: Sequence[SegmentInfo]


def next_run(
    log: LocalLog, waiting: Sequence[SegmentInfo], end: int, segment_bytes: int
) -> SealedRun:
    """The oldest segments that fit one piece, of some; `end` is where the rows end."""
    chosen: list[SegmentInfo] = []
    size_bytes = 0
    first = _first_offset(log, waiting[0], end)
    for info in waiting:
        size_bytes += info.size_bytes
        is_large = size_bytes > min(segment_bytes, LOG_BYTES_MAX)
        if chosen and (is_large or info.end_offset - first > REL_MAX + 1):
            break
        chosen.append(info)
    # A gap behind the last batch may be wider than a piece can be.
    last = min(chosen[-1].end_offset, first + REL_MAX + 1)
    return SealedRun(first, Offset(last), chosen)


def _first_offset(log: LocalLog, info: SegmentInfo, end: int) -> Offset:
    """Where a piece begins: behind the rows, with the batch that the log's start may lie in."""
    first = Offset(max(end, info.base_offset, log.start_offset))
    if first == info.base_offset:
        return first
    view = in_place(log, partial(log.read, first, 1, info.end_offset))
    return Offset(min(first, scan_batches(view, 0, False)[0].base_offset)) if view else first


def build(
    log: LocalLog, run: SealedRun, source: PieceSource, *, index_topics: bool
) -> tuple[BuiltPiece, int]:
    """The piece of a run, and the epoch of its last batch. Raises PartitionCorrupt."""
    builder = PieceBuilder(run.base, index_topics=index_topics, pause=_rest)
    for info in run.segments:
        _add(builder, log, info, run, index_topics=index_topics)
    piece = builder.finish(
        run.end, state=source.state(run.end), aborted=source.aborted(run.base, run.end)
    )
    return piece, builder.leader_epoch


def _add(
    builder: PieceBuilder, log: LocalLog, info: SegmentInfo, run: SealedRun, *, index_topics: bool
) -> None:
    start = max(run.base, info.base_offset, log.start_offset)
    chunks = log.sealed_topics(info.base_offset) if index_topics else None
    if chunks is not None and (start > info.base_offset or _reaches_beyond(chunks, info)):
        chunks = None  # of a segment that is not all here, or that was cut
    derives = index_topics and chunks is None
    offset, end = start, min(info.end_offset, run.end)
    while offset < end:
        view = in_place(log, partial(log.read, offset, READ_BYTES, end))
        if not view:
            break
        offset = _add_view(builder, view, info.base_offset, derives=derives)
    if chunks:
        try:
            builder.add_topic_chunks(chunks, len(chunks), info.base_offset)
        except CorruptBatch as error:  # it was checked when it was read
            raise AssertionError("a topic index changed while it was used") from error


def _add_view(builder: PieceBuilder, view: memoryview, segment: Offset, *, derives: bool) -> Offset:
    """Add batches in stretches. Returns the offset behind them. Raises PartitionCorrupt."""
    position, stretch_bytes, end = 0, STRETCH_BYTES, segment
    while position < len(view):
        window = view[position : position + stretch_bytes]
        batches, stop, why = scan_valid(window, 0, True, -1)
        if not batches:
            if position + len(window) < len(view):
                stretch_bytes *= 4  # one batch does not fit
                continue
            raise PartitionCorrupt(
                f"the segment at offset {segment} cannot be moved to the object store: the batch"
                f" behind offset {end} is damaged ({why}); restore the file from a replica or a"
                " backup"
            )
        data = window[:stop]
        builder.add(data, batches, derive_pairs(data, batches) if derives else None)
        end = Offset(batches[-1].last_offset + 1)
        position, stretch_bytes = position + stop, STRETCH_BYTES
        _rest()
    return end


def _rest() -> None:
    """Let other threads of the interpreter have their turn."""
    time.sleep(_REST_S)


def _reaches_beyond(chunks: bytes, info: SegmentInfo) -> bool:
    """Whether chunks name an offset that the segment does not have: entries of batches that were
    cut off stay."""
    numbers = array("I", chunks)
    position, limit = 0, info.end_offset - info.base_offset
    while position < len(numbers):
        end = position + 4 + 2 * numbers[position + 2]
        if max(numbers[position + 5 : end : 2], default=0) >= limit:
            return True
        position = end
        _rest()
    return False
