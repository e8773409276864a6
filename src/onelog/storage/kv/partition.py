"""A partition of the kv engine: reading, lookups, and the changes of the log's two ends."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from onelog.base.errors import (
    Closed,
    Conflict,
    InvalidRequest,
    OffsetOutOfRange,
    OnelogError,
)
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import BatchBuilder
from onelog.storage.engine import SegmentInfo, TornTail, seal_and_append
from onelog.storage.kv import contents, keys
from onelog.storage.kv.database import new_batch
from onelog.storage.kv.meta import Segment
from onelog.storage.kv.rewrite import KvRewrite
from onelog.storage.kv.writer import KvWriter

_STATES_KEPT = 2
_COMPACT_BYTES_MIN = 16 * 1024 * 1024
"""Dropping this much asks RocksDB to give the space back now; less goes with its own compaction."""

_WAIT_S = 60.0
_EMPTY = memoryview(b"")


class KvLog(KvWriter):
    """One partition's log."""

    __slots__ = ()

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return Offset(self._start)

    @property
    def end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return Offset(self._end)

    @property
    def durable_offset(self) -> Offset:
        """Every record below it survives power loss."""
        return Offset(self._durable)

    @property
    def size_bytes(self) -> int:
        """Bytes of batches held."""
        with self.lock:
            return sum(segment.size_bytes for segment in self._segments)

    @property
    def kept_high_watermark(self) -> Offset:
        """What was kept last; 0: nothing was."""
        return Offset(self._kept)

    @property
    def torn(self) -> TornTail | None:
        """RocksDB drops what a crash interrupted, unseen."""
        return None

    # ---- writing ----

    def append_built(
        self, builder: BatchBuilder, leader_epoch: int, *, index_topics: bool
    ) -> bytes:
        """Seal what is staged as one batch at the end and append it; the batch."""
        return seal_and_append(self, builder, leader_epoch, index_topics=index_topics)

    # ---- reading ----

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset` (or the next), as one view."""
        with self.lock:
            self._check_open()
            if not self._start <= offset <= self._end:
                raise OffsetOutOfRange(
                    f"{self.name}: offset {offset} is outside {self._start} to {self._end}"
                )
            below = min(upto, self._end)
            if offset >= below:
                return _EMPTY
            for segment in self._segments[self._index_of(offset) :]:
                if not segment.size_bytes:
                    continue
                found = contents.read_batches(
                    self._db, self._number, segment.number, offset, max_bytes, below
                )
                if found:
                    return memoryview(found[0] if len(found) == 1 else b"".join(found))
            return _EMPTY

    def _index_of(self, offset: int) -> int:
        after = bisect_right(self._segments, offset, key=_base_offset)
        return max(0, after - 1)

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""
        with self.lock:
            self._check_open()
            for segment in self._segments:
                if segment.max_timestamp_ms < timestamp_ms or not segment.size_bytes:
                    continue
                rows = contents.rows(self._db, self._number, segment.number, self._start)
                for _, row in rows:
                    if row.max_timestamp_ms >= timestamp_ms:
                        return Offset(max(row.base_offset, self._start))
            return None

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) whose record's topic has this hash; None: no index."""
        with self.lock:
            self._check_open()
            if not self._settings.topic_index:
                return None
            found: list[Offset] = []
            first, below = max(start, self._start), min(upto, self._end)
            for segment in self._segments[self._index_of(first) :]:
                if segment.base_offset >= below or len(found) >= limit:
                    break
                if not segment.indexed and segment.size_bytes:
                    return None  # the index was switched on after this segment
                for offset in contents.offsets_of_topic(
                    self._db, self._number, segment.number, topic_hash, first, below
                ):
                    if len(found) >= limit:
                        break
                    found.append(Offset(offset))
            return found

    def segments(self) -> list[SegmentInfo]:
        """Segments in order; the last is the active one."""
        with self.lock:
            self._check_open()
            ends = [*(segment.base_offset for segment in self._segments[1:]), self._end]
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

    # ---- the log's ends ----

    def trim(self, start: Offset) -> None:
        """Move the log's start up to `start`, durably, and drop segments that lie below it."""
        with self.lock:
            self._check_running()
            if start > self._end:
                raise OffsetOutOfRange(
                    f"{self.name}: cannot trim to {start}, the log ends at {self._end}"
                )
            if start <= self._start:
                return
            kept = self._segments[self._index_of(start) :]
            if start == self._end and kept[-1].size_bytes:
                kept = [self._new_segment(self._end)]
            gone = [segment for segment in self._segments if segment not in kept]
            change = new_batch()
            for segment in gone:
                contents.drop_segment(change, self._number, segment.number)
            self._put_meta(change, segments=kept, start=start)
            self._db.write(change, stall_s=_WAIT_S)
            self._start = start
            self._adopt(kept)
        self._db.sync()
        self._give_back(gone)

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end`, durably."""
        with self.lock:
            self._check_running()
            if end >= self._end:
                return
            if end < 0:
                raise InvalidRequest(f"{self.name}: cannot truncate to {end}")
            gone = self._cut(end)
        self._db.sync()
        self._give_back(gone)

    def _cut(self, end: int) -> list[Segment]:
        kept = [segment for segment in self._segments if segment.base_offset < end]
        change = new_batch()
        if kept:
            end, kept[-1] = self._shortened(kept[-1], end)
            contents.cut_segment(self._db, change, self._number, kept[-1].number, end)
        if end <= self._start or not kept:
            kept = [self._new_segment(end)]  # nothing that may be read is left
        start = min(self._start, end)
        numbers = {segment.number for segment in kept}
        gone = [segment for segment in self._segments if segment.number not in numbers]
        for segment in gone:
            contents.drop_segment(change, self._number, segment.number)
        prefix = keys.of_partition(self._number, keys.STATE)
        for key, _ in self._db.scan(prefix, keys.after(prefix)):
            if keys.offset_of(key) > end:
                change.delete(key)
        self._put_meta(change, segments=kept, start=start, end=end)
        self._db.write(change, stall_s=_WAIT_S)
        self._adopt(kept)
        self._cuts += 1
        self._start, self._end = start, end
        self._durable = min(self._durable, end)
        self._kept = min(self._kept, end)
        return gone

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep how far all replicas that count are, durably."""
        with self.lock:
            self._check_running()
            offset = min(offset, self.end_offset)
            if offset <= self._kept:
                return
            kept, self._kept = self._kept, int(offset)
            change = new_batch()
            self._put_meta(change)
            try:
                self._db.write(change, stall_s=_WAIT_S)
            except OnelogError:
                self._kept = kept
                raise
        self._db.sync()

    def _shortened(self, segment: Segment, end: int) -> tuple[int, Segment]:
        """Where the log ends when batches that reach `end` are gone, and the segment then."""
        short = Segment(
            segment.number,
            segment.base_offset,
            segment.created_ms,
            segment.indexed,
            counted=segment.base_offset,
        )
        for last, row in contents.rows(self._db, self._number, segment.number, 0):
            if last >= end:
                end = min(end, row.base_offset)
                break
            short.count(last, row.size_bytes, row.max_timestamp_ms)
        return end, short

    def _give_back(self, gone: list[Segment]) -> None:
        if sum(segment.size_bytes for segment in gone) < _COMPACT_BYTES_MIN:
            return
        numbers = [segment.number for segment in gone]
        for kind in keys.OF_SEGMENT:
            first = keys.of_segment(self._number, kind, min(numbers))
            last = keys.of_segment(self._number, kind, max(numbers))
            self._db.compact(first, keys.after(last))

    # ---- rewriting ----

    def rewrite(self, start: Offset, end: Offset) -> KvRewrite:
        """Begin to replace the sealed batches in [start, end); both are segment boundaries."""
        with self.lock:
            self._check_running()
            bases = [segment.base_offset for segment in self._segments]
            first, after = bisect_left(bases, start), bisect_left(bases, end)
            if not first < after < len(bases) or bases[first] != start or bases[after] != end:
                raise InvalidRequest(
                    f"[{start}, {end}) of {self.name} is not a run of sealed segments"
                )
            old = self._segments[first:after]
            fresh = self._new_segment(start)
            fresh.created_ms = old[0].created_ms
            change = new_batch()
            staged = keys.of_segment(self._number, keys.STAGED, fresh.number)
            change.put(staged, b"")
            self._put_meta(change)
            self._db.write(change, stall_s=_WAIT_S)
            return KvRewrite(self, self._db, self._number, old, fresh, end)

    def swap(self, old: list[Segment], fresh: Segment) -> None:
        """Put a rewritten segment in the place of others; for KvRewrite."""
        with self.lock:
            self._check_running()
            at = next((n for n, held in enumerate(self._segments) if held is old[0]), -1)
            span = self._segments[at : at + len(old)] if at >= 0 else []
            if len(span) != len(old) or any(a is not b for a, b in zip(span, old, strict=True)):
                raise Conflict(f"segments of {self.name} were dropped during the rewrite")
            if old[-1] is self._active:
                raise Conflict(f"{self.name} was truncated during the rewrite: begin it again")
            segments = [*self._segments[:at], fresh, *self._segments[at + len(old) :]]
            change = new_batch()
            for segment in old:
                contents.drop_segment(change, self._number, segment.number)
            change.delete(keys.of_segment(self._number, keys.STAGED, fresh.number))
            self._put_meta(change, segments=segments)
            self._db.write(change, stall_s=_WAIT_S)
            self._adopt(segments)
        self._db.sync()
        self._give_back(old)

    # ---- derived state ----

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Keep a partition's derived state as of `offset`, durably."""
        with self.lock:
            self._check_running()
            prefix = self._state_prefix(name)
            held = [keys.offset_of(key) for key, _ in self._db.scan(prefix, keys.after(prefix))]
            kept = sorted({*held, offset})[-_STATES_KEPT:]
            change = new_batch()
            for old in held:
                if old not in kept and old != offset:
                    change.delete(keys.at_offset(prefix, old))
            change.put(keys.at_offset(prefix, offset), bytes(blob))
            self._db.write(change, stall_s=_WAIT_S)
        self._db.sync()

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """The newest intact state of `name` whose offset is <= `end_offset`."""
        with self.lock:
            self._check_open()
            prefix = self._state_prefix(name)
            best: tuple[Offset, bytes] | None = None
            for key, blob in self._db.scan(prefix, keys.at_offset(prefix, self._end + 1)):
                best = (Offset(keys.offset_of(key)), blob)
            return best

    def _state_prefix(self, name: str) -> bytes:
        if "\0" in name:
            raise InvalidRequest(f"{name!r} cannot name a state")
        return keys.of_partition(self._number, keys.STATE) + name.encode() + b"\0"

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.name} was closed")


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
