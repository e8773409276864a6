"""One partition of the memory engine: segments of batches, the oldest batch leaves when it is full.

Rules:
- `settings.ring_bytes` bounds the bytes of batches. Lists, times and topic entries come on top;
  they are freed with whole segments, each an eighth of the ring.
- The end is durable at once, as far as memory can be: `durable_offset` is `end_offset`.
- A closed partition holds nothing; when it is opened again it is new and empty.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence

from onelog.base.clock import Clock
from onelog.base.errors import Closed, Conflict, InvalidRequest, MessageTooLarge, OffsetOutOfRange
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import BatchBuilder, BatchInfo
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.storage.batch_segment import MemorySegment
from onelog.storage.engine import (
    NO_LEASE,
    AskSync,
    Buffer,
    Cold,
    Lease,
    LogSettings,
    PartitionKey,
    Rewrite,
    SegmentInfo,
    SyncDone,
    TornTail,
    check_ascending,
    seal_and_append,
)
from onelog.storage.memory.rewrite import MemoryRewrite
from onelog.storage.topic_pairs import derive_pairs

_RUNS_PER_RING = 8
_STATES_KEPT = 2
_SPAN_MAX = 1 << 32
"""Offsets of one segment: a topic entry has 32 bits."""


class MemoryLog:
    """One partition's batches in memory."""

    log_end = None
    tier = None

    def __init__(self, key: PartitionKey, settings: LogSettings, clock: Clock) -> None:
        self._key = key
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._start = 0
        self._end = 0
        self._size = 0
        self._kept = 0
        self._cuts = 0
        self._closed = False
        self._segments = [self._fresh_segment()]
        self._states: dict[str, list[tuple[Offset, bytes]]] = {}

    # ---- positions ----

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return Offset(self._start)

    @property
    def local_start_offset(self) -> Offset:
        """First offset whose batches are on this machine."""
        return self.start_offset

    @property
    def end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return Offset(self._end)

    @property
    def durable_offset(self) -> Offset:
        """The end: memory cannot promise more."""
        return Offset(self._end)

    @property
    def size_bytes(self) -> int:
        """Bytes of batches held."""
        return self._size

    @property
    def kept_high_watermark(self) -> Offset:
        """The high watermark that was kept last; 0: none was kept."""
        return Offset(self._kept)

    @property
    def torn(self) -> TornTail | None:
        """None: a new log has no tail to cut."""
        return None

    # ---- writing ----

    def append(
        self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None = None
    ) -> None:
        """Append whole batches; the oldest leave when the ring is full."""
        if not batches:
            return
        with self._lock:
            self._check_append(batches)
            pairs = self._pairs(data, batches, topics)
            self._roll_if_due(sum(info.size_bytes for info in batches), batches[-1].last_offset)
            segment = self._segments[-1]
            view = memoryview(data)
            for info in batches:
                segment.add(info, bytes(view[info.position : info.position + info.size_bytes]))
                self._size += info.size_bytes
            if pairs:
                segment.add_topics(pairs, batches[0].base_offset)
            self._end = segment.end_offset
            self._make_room()

    def append_built(self, builder: BatchBuilder, leader_epoch: int, index_topics: bool) -> bytes:
        """Seal the staged records as one batch at the end and append it. Returns the batch."""
        return seal_and_append(self, builder, leader_epoch, index_topics=index_topics)

    def _check_append(self, batches: Sequence[BatchInfo]) -> None:
        self._need_open()
        check_ascending(self._name(), self._end, batches)
        for info in batches:
            if info.size_bytes > self._settings.ring_bytes:
                raise MessageTooLarge(
                    f"{self._name()}: a batch of {info.size_bytes} bytes does not fit the ring of "
                    f"{self._settings.ring_bytes}: raise ring_bytes or send less at once"
                )

    def _pairs(self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None) -> bytes:
        if not self._settings.topic_index:
            return b""
        return derive_pairs(data, batches) if topics is None else topics

    def _roll_if_due(self, size_bytes: int, last_offset: int) -> None:
        segment = self._segments[-1]
        settings = self._settings
        most = min(settings.segment_bytes, settings.ring_bytes // _RUNS_PER_RING)
        old = self._clock.now_ms() - segment.created_ms >= settings.segment_age_ms
        wide = last_offset - segment.base_offset >= _SPAN_MAX
        if len(segment) and (old or wide or segment.size_bytes + size_bytes > most):
            self._segments.append(self._fresh_segment())

    def _make_room(self) -> None:
        while self._size > self._settings.ring_bytes:
            segment = self._segments[0]
            if len(segment):
                self._drop_first(segment)
            if not len(segment) and len(self._segments) > 1:
                del self._segments[0]
                self._start = max(self._start, self._segments[0].base_offset)

    def _drop_first(self, segment: MemorySegment) -> None:
        self._size -= segment.size_bytes
        self._start = max(self._start, segment.drop_first() + 1)
        self._size += segment.size_bytes

    # ---- reading ----

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset`, or the next."""
        with self._lock:
            self._need_open()
            if not self._start <= offset <= self._end:
                raise OffsetOutOfRange(
                    f"{self._name()}: offset {offset} is outside {self._start} to {self._end}"
                )
            for segment in self._segments[self._segment_of(offset) :]:
                found = segment.read(offset, max_bytes, upto)
                if found:
                    return memoryview(found[0] if len(found) == 1 else b"".join(found))
            return memoryview(b"")

    def _segment_of(self, offset: int) -> int:
        return max(
            0, bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1
        )

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""
        with self._lock:
            self._need_open()
            for segment in self._segments:
                base = segment.base_at_time(timestamp_ms)
                if base is not None:
                    return Offset(max(base, self._start))
            return None

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) under this hash; None without an index."""
        with self._lock:
            self._need_open()
            if not self._settings.topic_index:
                return None
            found: list[Offset] = []
            first = max(start, self._start)
            for segment in self._segments[self._segment_of(first) :]:
                if segment.base_offset >= upto or len(found) >= limit:
                    break
                if not segment.indexed:
                    return None  # the index was switched on after this segment
                rest = limit - len(found)
                found += map(Offset, segment.offsets_of_topic(topic_hash, first, upto, rest))
            return found

    # ---- upkeep ----

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """None: nothing lies in an object store."""
        return ()

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """Nothing to hold: nothing lies in an object store."""

    def aborted(self, start: Offset, upto: Offset) -> Sequence[AbortedSpan]:
        """None: nothing lies in an object store."""
        return ()

    def bring(self, cold: Cold) -> Lease:
        """Nothing is ever cold."""
        return NO_LEASE

    def sync(self) -> Offset:
        """Nothing to do. Returns the end."""
        self._need_open()
        return Offset(self._end)

    def begin_sync(self, ask: AskSync, done: SyncDone) -> bool:
        """False: there is no file."""
        return False

    def trim(self, start: Offset) -> None:
        """Move the log's start up; batches below it leave."""
        with self._lock:
            self._need_open()
            if start > self._end:
                raise OffsetOutOfRange(
                    f"{self._name()}: cannot trim to {start}, the log ends at {self._end}"
                )
            self._start = max(self._start, start)
            while len(self._segments) > 1 and self._segments[0].end_offset <= self._start:
                self._size -= self._segments.pop(0).size_bytes
            segment = self._segments[0]
            while len(segment) and segment.first_last_offset() < self._start:
                self._drop_first(segment)

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end`."""
        with self._lock:
            self._need_open()
            if end >= self._end:
                return
            self._cuts += 1
            while len(self._segments) > 1 and self._segments[-1].base_offset >= end:
                self._segments.pop()
            self._end = max(0, min(end, self._segments[-1].cut(end)))
            self._start = min(self._start, self._end)
            self._kept = min(self._kept, self._end)
            self._size = sum(segment.size_bytes for segment in self._segments)
            if self._segments[-1].base_offset > self._end:
                self._segments[-1] = self._fresh_segment()
            for name, states in self._states.items():
                self._states[name] = [kept for kept in states if kept[0] <= self._end]

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep it as long as the log itself."""
        with self._lock:
            self._need_open()
            self._kept = max(self._kept, min(offset, self._end))

    def roll(self) -> None:
        """Seal the active segment, unless it is empty."""
        with self._lock:
            self._need_open()
            self._roll()

    def segments(self) -> list[SegmentInfo]:
        """The segments in order; the last is the active one."""
        with self._lock:
            self._need_open()
            ends = [segment.base_offset for segment in self._segments[1:]] + [self._end]
            return [
                SegmentInfo(
                    Offset(segment.base_offset),
                    Offset(end),
                    segment.size_bytes,
                    TimestampMs(segment.max_timestamp_ms),
                    segment is not self._segments[-1],
                    TimestampMs(segment.created_ms),
                )
                for segment, end in zip(self._segments, ends, strict=True)
            ]

    def rewrite(self, start: Offset, end: Offset) -> Rewrite:
        """Begin to replace the sealed batches in [start, end)."""
        with self._lock:
            self._need_open()
            bases = [segment.base_offset for segment in self._segments]
            if start not in bases[:-1] or end not in bases or start >= end:
                raise InvalidRequest(
                    f"{self._name()}: {start} to {end} are not the bounds of sealed segments"
                )
            created_ms = self._segments[bases.index(start)].created_ms
            fresh = MemorySegment(start, created_ms, self._settings.topic_index)
            return MemoryRewrite(self, fresh, end)

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Keep derived state as of `offset`."""
        with self._lock:
            self._need_open()
            kept = [state for state in self._states.get(name, []) if state[0] != offset]
            kept.append((offset, bytes(blob)))
            self._states[name] = sorted(kept)[-_STATES_KEPT:]

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """The newest state of `name` whose offset is <= `end_offset`."""
        with self._lock:
            self._need_open()
            fitting = [state for state in self._states.get(name, []) if state[0] <= self._end]
            return fitting[-1] if fitting else None

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on; a smaller ring drops its oldest batches now."""
        with self._lock:
            self._need_open()
            if settings.topic_index != self._settings.topic_index:
                self._roll()  # a segment has topic entries of all its batches or of none
            self._settings = settings
            if not len(self._segments[-1]):
                self._segments[-1] = self._fresh_segment()
            self._make_room()

    def close(self) -> None:
        """Drop everything. Idempotent."""
        with self._lock:
            self._closed = True
            self._segments = [self._fresh_segment()]
            self._states.clear()

    # ---- inside ----

    def _fresh_segment(self) -> MemorySegment:
        return MemorySegment(self._end, self._clock.now_ms(), self._settings.topic_index)

    def _roll(self) -> None:
        if len(self._segments[-1]):
            self._segments.append(self._fresh_segment())

    def swap(self, start: int, end: int, fresh: MemorySegment, cuts: int) -> None:
        """Put a rewritten segment in place of the segments in [start, end)."""
        with self._lock:
            self._need_open()
            if cuts != self._cuts:
                raise Conflict(f"{self._name()} was truncated during a rewrite: begin it again")
            replaced = [segment for segment in self._segments if start <= segment.base_offset < end]
            if not replaced:
                return  # the ring dropped all of them meanwhile
            at = self._segments.index(replaced[0])
            fresh.end_offset = end
            self._segments[at : at + len(replaced)] = [fresh]
            while len(fresh) and fresh.first_last_offset() < self._start:
                fresh.drop_first()
            self._size = sum(segment.size_bytes for segment in self._segments)

    @property
    def cuts(self) -> int:
        """How often the log was truncated."""
        return self._cuts

    def _need_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._name()} was closed")

    def _name(self) -> str:
        return f"partition {self._key.stream_id}/{self._key.partition}"
