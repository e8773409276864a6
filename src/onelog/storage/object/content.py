"""What the engine holds of one partition: rows in the store, and batches that are in no row yet.

Rules: batches in memory lie in segments; the last segment is the active one. Rows and segments do
not overlap, and may alternate: a compaction may replace segments in the middle. All methods are
called with the chain's lock held, except those that say otherwise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.errors import InvalidRequest, OffsetOutOfRange
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import REL_MAX, BatchInfo, scan_batches
from onelog.objects.rows import Row
from onelog.storage.batch_segment import MemorySegment
from onelog.storage.cold import ColdRows
from onelog.storage.engine import LogSettings, PartitionKey, SegmentInfo
from onelog.storage.object.image import StateRow
from onelog.storage.topic_pairs import derive_pairs

_EMPTY: Final = memoryview(b"")


class PartitionContent:
    """One partition, open or not."""

    def __init__(
        self,
        key: PartitionKey,
        cold: ColdRows,
        now_ms: Callable[[], int],
        weigh: Callable[[int], None],
    ) -> None:
        """`weigh` gets how many bytes of batches come into memory, or leave it."""
        self.key = key
        self.cold = cold
        self.settings = LogSettings()
        self.start = self.end = self.durable = self.high = 0
        self.states: list[StateRow] = []
        self.segments: list[MemorySegment] = []
        self.cuts = 0
        """How often the log was truncated."""
        self.is_frozen = False
        """Whether it is being truncated."""
        self.boundaries: Counter[int] = Counter()
        """Offsets at which no two segments may become one: bounds of rewrites that run."""
        self._now_ms = now_ms
        self._weigh = weigh

    @property
    def name(self) -> tuple[str, int]:
        """The partition, in the words of the chain."""
        return self.key.stream_id, int(self.key.partition)

    @property
    def place(self) -> str:
        """The partition, for people."""
        return f"partition {self.key.stream_id}/{self.key.partition}"

    @property
    def size_bytes(self) -> int:
        """Bytes of batches held."""
        return self.cold.rows.size_bytes + self.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of batches that are in no row."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def active(self) -> MemorySegment:
        """The segment that appends go to: it lies behind all rows."""
        last = self.segments[-1] if self.segments else None
        if last is None or (len(last) and last.end_offset < self.cold.end_offset):
            self.segments.append(self._fresh(self.end))
        elif not len(last) and last.base_offset < self.cold.end_offset:
            self.segments[-1] = self._fresh(self.end)
        return self.segments[-1]

    def _fresh(self, base: int) -> MemorySegment:
        return MemorySegment(base, self._now_ms(), self.settings.topic_index)

    # Writing.

    def append(
        self, batches: Sequence[tuple[bytes, BatchInfo]], size_bytes: int, pairs: bytes | None
    ) -> None:
        """Add batches at the end."""
        first, last = batches[0][1].base_offset, batches[-1][1].last_offset
        segment = self._writable(size_bytes, first, last)
        if not len(segment):
            segment.created_ms = self._now_ms()
        for data, info in batches:
            segment.add(info, data)
        if pairs:
            segment.add_topics(pairs, first)
        self.end = last + 1
        self._weigh(size_bytes)

    def _writable(self, size_bytes: int, first: int, last: int) -> MemorySegment:
        segment, settings = self.active, self.settings
        if len(segment):
            old = self._now_ms() - segment.created_ms >= settings.segment_age_ms
            wide = last - segment.base_offset > REL_MAX
            if old or wide or segment.size_bytes + size_bytes > settings.segment_bytes:
                self.roll()
                segment = self.active
        if last - segment.base_offset > REL_MAX:  # a gap wider than a segment can be
            if last - first > REL_MAX:
                raise InvalidRequest(f"offsets {first} to {last} do not fit one segment")
            segment = self.segments[-1] = self._fresh(first)
        return segment

    def roll(self) -> None:
        """Seal the active segment, unless it is empty."""
        if len(self.active):
            self.segments.append(self._fresh(self.end))

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on."""
        if settings.topic_index != self.active.indexed:
            self.roll()  # a segment has topic entries of all its batches or of none
        self.settings = settings
        if not len(self.active):
            self.segments[-1] = self._fresh(self.segments[-1].base_offset)

    # Reading.

    def read_memory(self, offset: int, max_bytes: int, upto: int) -> memoryview | None:
        """Batches in memory, if it holds `offset`; None: it does not."""
        at = self._segment_at(offset)
        if at < 0 or offset >= self.segments[at].end_offset:
            return None
        found = self.segments[at].read(offset, max_bytes, upto)
        return memoryview(found[0] if len(found) == 1 else b"".join(found)) if found else _EMPTY

    def _segment_at(self, offset: int) -> int:
        return bisect_right(self.segments, offset, key=lambda row: row.base_offset) - 1

    def next_memory(self, offset: int) -> int:
        """Where to look on when memory has no batch at `offset`: at the end of the segment that
        holds the offset, else where the next segment with batches begins."""
        at = self._segment_at(offset)
        if at >= 0 and offset < self.segments[at].end_offset:
            return self.segments[at].end_offset
        for segment in self.segments[at + 1 :]:
            if len(segment):
                return segment.base_offset
        return self.end

    def memory_for_time(self, timestamp_ms: int) -> int | None:
        """Base offset of the first batch in memory that reaches a time."""
        for segment in self.segments:
            base = segment.base_at_time(timestamp_ms)
            if base is not None:
                return base
        return None

    def memory_of_topic(
        self, topic_hash: int, start: int, upto: int, limit: int
    ) -> list[int] | None:
        """Offsets in memory under a topic's hash; None: a segment has no index."""
        found: list[int] = []
        for segment in self.segments:
            if segment.end_offset <= start or segment.base_offset >= upto or not len(segment):
                continue
            if not segment.indexed:
                return None
            rest = limit - len(found)
            found += segment.offsets_of_topic(topic_hash, start, upto, rest)
            if len(found) >= limit:
                break
        return found

    def infos(self) -> list[SegmentInfo]:
        """Rows and segments in order; the last is the active one."""
        rows = [
            (row.base, row.log_bytes, row.max_timestamp_ms, row.created_ms)
            for row in self.cold.rows
        ]
        active = self.active
        rows += [
            (held.base_offset, held.size_bytes, held.max_timestamp_ms, held.created_ms)
            for held in self.segments[:-1]
        ]
        rows.sort()
        rows.append(
            (active.base_offset, active.size_bytes, active.max_timestamp_ms, active.created_ms)
        )
        ends = [row[0] for row in rows[1:]] + [self.end]
        return [
            SegmentInfo(
                Offset(base),
                Offset(end),
                size_bytes,
                TimestampMs(highest_ms),
                at < len(rows) - 1,
                TimestampMs(created_ms),
            )
            for at, ((base, size_bytes, highest_ms, created_ms), end) in enumerate(
                zip(rows, ends, strict=True)
            )
        ]

    # The ends.

    def trim(self, start: int) -> None:
        """Move the start up; what lies below it leaves."""
        if start > self.end:
            raise OffsetOutOfRange(
                f"{self.place}: cannot trim to {start}, the log ends at {self.end}"
            )
        self.start = max(self.start, start)
        before = self.memory_bytes
        while len(self.segments) > 1 and self.segments[0].end_offset <= self.start:
            del self.segments[0]
        if self.segments:
            first = self.segments[0]
            while len(first) and first.first_last_offset() < self.start:
                first.drop_first()
        self._weigh(self.memory_bytes - before)
        table = self.cold.rows
        self.cold.replace(
            table.spliced(0, table.number_at(self.start), ()), start=Offset(self.start)
        )

    def cut(self, end: int) -> int:
        """Drop the batches in memory that reach `end`, and the rows behind it. Returns where the
        log ends then. No row may reach across that end."""
        self.cuts += 1
        before = self.memory_bytes
        for at, segment in enumerate(self.segments):
            if segment.end_offset > end and segment.base_offset < end:
                end = min(end, segment.cut(end))
                self.segments[at] = _without_stale_topics(segment)
        self.segments = [row for row in self.segments if row.base_offset < end and len(row)]
        self.end = end
        self.start = min(self.start, end)
        self.durable = min(self.durable, end)
        self.high = min(self.high, end)
        self.states = [row for row in self.states if row.offset <= end]
        self._weigh(self.memory_bytes - before)
        table = self.cold.rows
        self.cold.replace(
            table.spliced(table.number_at(end), len(table), ()), start=Offset(self.start)
        )
        return end

    # Rows instead of segments, or of other rows.

    def bounds(self) -> set[int]:
        """Offsets at which a row or a sealed segment begins or ends."""
        found = {info.base_offset for info in self.infos()}
        return {int(offset) for offset in found}

    def swap(self, base: int, end: int, rows: Sequence[Row]) -> None:
        """The batches in [base, end) lie in these rows now."""
        before = self.memory_bytes
        self.segments = [
            held
            for held in self.segments
            if held is self.active or not base <= held.base_offset < end
        ]
        self._weigh(self.memory_bytes - before)
        table = self.cold.rows
        first = last = table.number_at(base)
        while last < len(table) and table.base(last) < end:
            last += 1
        needed = [row for row in rows if row.end > self.start]
        self.cold.replace(table.spliced(first, last, needed), start=Offset(self.start))


def _without_stale_topics(segment: MemorySegment) -> MemorySegment:
    """A segment that was cut, with the topic entries of its own batches only."""
    made = MemorySegment(segment.base_offset, segment.created_ms, segment.indexed)
    for data in segment.batches():
        infos = scan_batches(data, 0, False)
        made.add(infos[0], data)
        if made.indexed:
            made.add_topics(derive_pairs(data, infos), infos[0].base_offset)
    made.end_offset = segment.end_offset
    return made
