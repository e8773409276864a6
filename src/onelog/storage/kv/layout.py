"""The layout of a kv partition: its two ends and its segments, in memory and in the meta.

Rules: a change of the layout is written first and then applied to memory, under the lock of the
partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from rocksdict import WriteBatch

from onelog.base.clock import Clock
from onelog.base.errors import Conflict, InvalidRequest
from onelog.storage.kv import contents, keys
from onelog.storage.kv.database import MAINTENANCE_STALL_S, KvDatabase, new_batch
from onelog.storage.kv.meta import KvSegment, Meta, decode, encode


class Layout:
    """Where a partition begins and ends, and which segments it has."""

    __slots__ = ("_clock", "_name", "_next_segment", "_number", "end", "kept", "segments", "start")

    def __init__(self, name: str, number: int, clock: Clock) -> None:
        self._name = name
        self._number = number
        self._clock = clock
        self._next_segment = 0
        self.start = self.end = 0
        self.kept = 0
        """The high watermark that was kept last."""
        self.segments: list[KvSegment] = []
        """In order; the last is the active one."""

    def open(self, db: KvDatabase, *, indexed: bool) -> None:
        """Read it from the database; a new partition gets its first segment."""
        saved = db.get(keys.of_partition(self._number, keys.META))
        if saved is not None:
            self._load(db, decode(saved, self._name))
            return
        # Written now: recovery finds batches only in segments that the meta names.
        self.segments = [self.new_segment(0, indexed=indexed)]
        change = new_batch()
        self.put(change)
        db.write(change)

    def _load(self, db: KvDatabase, meta: Meta) -> None:
        self.start = meta.start_offset
        self.end = meta.end_offset
        self._next_segment = meta.next_segment
        self.segments = meta.segments
        active = meta.segments[-1]
        for last, row in contents.rows(db, self._number, active.number, active.counted):
            active.count(last, row.size_bytes, row.max_timestamp_ms)
            self.end = max(self.end, last + 1)
        self.kept = min(meta.high_watermark, self.end)
        if self.kept < meta.high_watermark:  # what was lost must not count once the log has grown
            change = new_batch()
            self.put(change)
            db.write(change, stall_s=MAINTENANCE_STALL_S)

    def put(
        self,
        change: WriteBatch,
        *,
        segments: list[KvSegment] | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        """Add the meta to a change, with values that differ from memory."""
        meta = Meta(
            self.start if start is None else start,
            self.end if end is None else end,
            self._next_segment,
            self.segments if segments is None else segments,
            self.kept if end is None else min(self.kept, end),
        )
        change.put(keys.of_partition(self._number, keys.META), encode(meta))

    # -- segments

    @property
    def active(self) -> KvSegment:
        """The segment that grows."""
        return self.segments[-1]

    def new_segment(self, base_offset: int, *, indexed: bool) -> KvSegment:
        """A segment under a number that was never used."""
        number = self._next_segment
        self._next_segment += 1
        return KvSegment(number, base_offset, self._clock.now_ms(), indexed, counted=base_offset)

    def from_offset(self, offset: int) -> list[KvSegment]:
        """The segment that holds an offset, and those after it."""
        after = bisect_right(self.segments, offset, key=_base_offset)
        return self.segments[max(0, after - 1) :]

    def sealed(self, start: int, end: int) -> list[KvSegment]:
        """The sealed segments in [start, end); both are segment boundaries."""
        bases = [segment.base_offset for segment in self.segments]
        first, after = bisect_left(bases, start), bisect_left(bases, end)
        if not first < after < len(bases) or bases[first] != start or bases[after] != end:
            raise InvalidRequest(
                f"[{start}, {end}) of {self._name} is not a run of sealed segments"
            )
        return self.segments[first:after]

    def replaced(self, old: list[KvSegment], fresh: KvSegment) -> list[KvSegment]:
        """The segments with one in place of others. Raises Conflict if those are not there now."""
        at = next((n for n, held in enumerate(self.segments) if held is old[0]), -1)
        span = self.segments[at : at + len(old)] if at >= 0 else []
        if len(span) != len(old) or any(a is not b for a, b in zip(span, old, strict=True)):
            raise Conflict(f"segments of {self._name} were dropped during the rewrite")
        if old[-1] is self.active:
            raise Conflict(f"{self._name} was truncated during the rewrite: begin it again")
        return [*self.segments[:at], fresh, *self.segments[at + len(old) :]]


def _base_offset(segment: KvSegment) -> int:
    return segment.base_offset
