"""Retention: which of a partition's oldest segments leave, decided without touching anything.

Rules:
- Whole sealed segments go, oldest first. Never the active one, never one that reaches past the
  high watermark.
- Age looks at the newest record of a segment. A wall clock that jumps backwards makes everything
  younger, so it deletes nothing.
- A pin is the lowest offset that a durable cursor still needs. It holds segments back from
  retention by age and bytes, up to `pin_bytes_max`. Beyond that the oldest go all the same, and the
  decision says so.
- `consumed` drops segments that lie wholly below the pin. Without a durable cursor nothing is
  consumed.
- The decision names the segments that a pin holds back, so that they can be thinned to the records
  that are needed (`log/thinning.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from onelog.base.ids import Offset
from onelog.log.config import Retention
from onelog.log.partition import Partition
from onelog.log.tier_config import LocalWindow
from onelog.storage.engine import SegmentInfo


class Reason(StrEnum):
    """Why the newest of the dropped segments goes."""

    NONE = "none"
    AGE = "age"
    BYTES = "bytes"
    CONSUMED = "consumed"
    PIN_QUOTA = "pin_quota"


class Decision(NamedTuple):
    """Where the log begins from now on, and how much durable cursors hold back."""

    start: Offset | None
    """The new start; None when nothing goes."""
    reason: Reason
    segments: int
    """How many segments go."""
    bytes: int
    """How many bytes go with them."""
    pinned_bytes: int
    """Bytes that would have gone if no durable cursor needed them."""
    quota_exceeded: bool
    """Durable cursors lose records: they held back more than `pin_bytes_max`."""
    held: Sequence[SegmentInfo]
    """The segments that would have gone if no durable cursor needed a record in them."""


def new_start(
    segments: Sequence[SegmentInfo],
    retention: Retention,
    now_ms: int,
    *,
    high_watermark: int,
    pin: int | None,
    durable_cursors: bool,
) -> Decision:
    """Decide where the log begins; `segments` in order, as the engine names them."""
    candidates = _droppable(segments, high_watermark)
    by_age = _older_than(candidates, retention.age_ms, now_ms)
    by_bytes = _beyond_bytes(candidates, sum(row.size_bytes for row in segments), retention.bytes)
    wanted, reason = max((by_age, Reason.AGE), (by_bytes, Reason.BYTES), key=lambda row: row[0])
    dropped, pinned_bytes, exceeded = wanted, 0, False
    if pin is not None:
        dropped, pinned_bytes, exceeded = _held_back(candidates[:wanted], pin, retention)
        if exceeded:
            reason = Reason.PIN_QUOTA
        if retention.consumed and durable_cursors:
            consumed = _below(candidates, pin)
            if consumed > dropped:
                dropped, reason = consumed, Reason.CONSUMED
            wanted = len(candidates)
    gone = candidates[:dropped]
    return Decision(
        start=gone[-1].end_offset if gone else None,
        reason=reason if gone else Reason.NONE,
        segments=len(gone),
        bytes=sum(row.size_bytes for row in gone),
        pinned_bytes=pinned_bytes,
        quota_exceeded=exceeded,
        held=candidates[dropped:wanted],
    )


def new_local_start(
    segments: Sequence[SegmentInfo], window: LocalWindow, now_ms: int
) -> Offset | None:
    """Where the local part of a log may begin; None: nothing of it may go.

    Segments go that are in the object store, too, oldest first. Pins of cursors hold nothing back:
    no record leaves the log. Bytes that are only in the store do not count.
    """
    local = [row for row in segments if row.place != "cold"]
    candidates = list(takewhile(lambda row: row.place == "both" and row.sealed, local))
    dropped = max(
        _older_than(candidates, window.age_ms, now_ms),
        _beyond_bytes(candidates, sum(row.size_bytes for row in local), window.bytes),
    )
    return candidates[dropped - 1].end_offset if dropped else None


def roll_due(
    active: SegmentInfo, *, now_ms: int, segment_age_ms: int, retention_age_ms: int
) -> bool:
    """Whether an active segment must be sealed, so that the old records in it can leave.

    An append seals an old segment itself. This is for partitions that nobody writes to.
    """
    if active.end_offset <= active.base_offset:
        return False
    if now_ms - active.created_ms >= segment_age_ms:
        return True
    return retention_age_ms >= 0 and _newest_ms(active) < now_ms - retention_age_ms


async def apply_retention(partition: Partition, decision: Decision) -> None:
    """Let a partition begin where the decision says."""
    if decision.start is not None and decision.start > partition.start_offset:
        await partition.trim(decision.start)


def _droppable(segments: Sequence[SegmentInfo], high_watermark: int) -> Sequence[SegmentInfo]:
    for index, row in enumerate(segments):
        if not row.sealed or row.end_offset > high_watermark:
            return segments[:index]
    return segments[:-1]  # the last one is the active one


def _newest_ms(row: SegmentInfo) -> int:
    return row.max_timestamp_ms if row.max_timestamp_ms >= 0 else row.created_ms


def _older_than(candidates: Sequence[SegmentInfo], age_ms: int, now_ms: int) -> int:
    if age_ms < 0:
        return 0
    for index, row in enumerate(candidates):
        if _newest_ms(row) >= now_ms - age_ms:
            return index
    return len(candidates)


def _beyond_bytes(candidates: Sequence[SegmentInfo], held_bytes: int, keep_bytes: int) -> int:
    if keep_bytes < 0:
        return 0
    for index, row in enumerate(candidates):
        held_bytes -= row.size_bytes
        if held_bytes < keep_bytes:
            return index
    return len(candidates)


def _below(candidates: Sequence[SegmentInfo], offset: int) -> int:
    for index, row in enumerate(candidates):
        if row.end_offset > offset:
            return index
    return len(candidates)


def _held_back(
    wanted: Sequence[SegmentInfo], pin: int, retention: Retention
) -> tuple[int, int, bool]:
    """How many of `wanted` go in spite of the pin, the bytes it still holds back, and whether it
    held back too much."""
    free = _below(wanted, pin)
    pinned_bytes = sum(row.size_bytes for row in wanted[free:])
    exceeded = pinned_bytes > retention.pin_bytes_max
    while pinned_bytes > retention.pin_bytes_max:
        pinned_bytes -= wanted[free].size_bytes
        free += 1
    return free, pinned_bytes, exceeded
