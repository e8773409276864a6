"""A partition of the kv engine.

Rules:
- A segment is only a number in the keys of its batches. Retention drops a segment and compaction
  replaces one by a change of the meta and a few range deletions, in one write.
- A change is written first and then applied to memory (`layout.py`): when a write fails, memory
  still agrees with the disk.
- The lock is never held during a sync.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from onelog.base.clock import Clock
from onelog.base.errors import (
    Closed,
    InvalidRequest,
    OffsetOutOfRange,
    OnelogError,
)
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import BatchBuilder, BatchInfo
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.storage.engine import (
    NO_LEASE,
    AskSync,
    Buffer,
    Cold,
    Lease,
    LogSettings,
    PartitionKey,
    SegmentInfo,
    SyncDone,
    TornTail,
    check_ascending,
    seal_and_append,
)
from onelog.storage.kv import contents, keys, states
from onelog.storage.kv.database import MAINTENANCE_STALL_S, KvDatabase, new_batch
from onelog.storage.kv.layout import Layout
from onelog.storage.kv.meta import KvSegment, describe
from onelog.storage.kv.rewrite import KvRewrite
from onelog.storage.topic_pairs import derive_pairs

_EMPTY = memoryview(b"")


class KvLog:
    """One partition's log."""

    __slots__ = (
        "_changed", "_clock", "_closed", "_cuts", "_db", "_durable", "_key", "_layout", "_number",
        "_settings", "lock",
    )  # fmt: skip

    log_end = None
    tier = None

    def __init__(
        self, db: KvDatabase, key: PartitionKey, number: int, settings: LogSettings, clock: Clock
    ) -> None:
        self._db = db
        self._key = key
        self._number = number
        self._settings = settings
        self._clock = clock
        self.lock = threading.RLock()
        self._closed = False
        self._cuts = 0
        self._changed = False
        self._layout = Layout(self.name, number, clock)
        self._layout.open(db, indexed=settings.topic_index)
        self._clean_up()
        # When the database was opened, it wrote the replayed WAL into tables, and synced them.
        self._durable = self._layout.end

    def _clean_up(self) -> None:
        """Delete the keys of rewrites that a crash interrupted."""
        prefix = keys.of_partition(self._number, keys.STAGED)
        change = new_batch()
        for key, _ in self._db.scan(prefix, keys.after(prefix)):
            contents.drop_segment(change, self._number, keys.offset_of(key))
            change.delete(key)
        if not change.is_empty():
            self._db.write(change, stall_s=MAINTENANCE_STALL_S)

    @property
    def name(self) -> str:
        """The partition, for messages."""
        return f"partition {self._key.stream_id}/{self._key.partition}"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return Offset(self._layout.start)

    @property
    def local_start_offset(self) -> Offset:
        """First offset whose batches are on this machine."""
        return self.start_offset

    @property
    def end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return Offset(self._layout.end)

    @property
    def durable_offset(self) -> Offset:
        """Every record below it survives power loss."""
        return Offset(self._durable)

    @property
    def size_bytes(self) -> int:
        """Bytes of batches held."""
        with self.lock:
            return sum(segment.size_bytes for segment in self._layout.segments)

    @property
    def kept_high_watermark(self) -> Offset:
        """The high watermark that was kept last; 0: none was kept."""
        return Offset(self._layout.kept)

    @property
    def torn(self) -> TornTail | None:
        """None: RocksDB drops interrupted writes without a report."""
        return None

    # ---- growing ----

    def append(
        self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None = None
    ) -> None:
        """Append whole batches in one write."""
        if not batches:
            return
        with self.lock:
            self._check_running()
            check_ascending(self.name, self._layout.end, batches)
            size = sum(info.size_bytes for info in batches)
            self._db.check_room(size)
            change = new_batch()
            fresh = self._new_segment(self._layout.end) if self._is_due(size) else None
            active = fresh or self._layout.active
            contents.put_batches(change, self._number, active.number, data, batches)
            if active.indexed:
                pairs = derive_pairs(data, batches) if topics is None else topics
                first = batches[0].base_offset
                contents.put_pairs(change, self._number, active.number, pairs, first)
            if fresh is not None:
                self._layout.put(change, segments=[*self._layout.segments, fresh])
            self._db.write(change)
            if fresh is not None:
                self._layout.segments = [*self._layout.segments, fresh]
            for info in batches:
                active.count(info.last_offset, info.size_bytes, info.max_timestamp_ms)
            self._layout.end = batches[-1].last_offset + 1
            self._changed = True

    def append_built(self, builder: BatchBuilder, leader_epoch: int, index_topics: bool) -> bytes:
        """Seal the staged records as one batch at the end and append it. Returns the batch."""
        return seal_and_append(self, builder, leader_epoch, index_topics=index_topics)

    def _is_due(self, size_bytes: int) -> bool:
        active, settings = self._layout.active, self._settings
        if not active.size_bytes:
            return active.indexed != settings.topic_index
        age_ms = self._clock.now_ms() - active.created_ms
        return (
            active.size_bytes + size_bytes > settings.segment_bytes
            or age_ms >= settings.segment_age_ms
            or active.indexed != settings.topic_index
        )

    def roll(self) -> None:
        """Seal the active segment, unless it is empty."""
        with self.lock:
            self._check_running()
            if self._layout.active.size_bytes:
                change = new_batch()
                segments = [*self._layout.segments, self._new_segment(self._layout.end)]
                self._layout.put(change, segments=segments)
                self._db.write(change)
                self._layout.segments = segments

    def sync(self) -> Offset:
        """Make everything appended before this call survive power loss."""
        with self.lock:
            self._check_running()
            end, cuts = self._layout.end, self._cuts
        self._db.sync()
        with self.lock:
            if cuts == self._cuts:
                self._durable = max(self._durable, end)
            return Offset(self._durable)

    def begin_sync(self, ask: AskSync, done: SyncDone) -> bool:
        """False: the database syncs for all of its partitions at once."""
        return False

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on. A segment is indexed as a whole or not at all."""
        with self.lock:
            self._check_running()
            self._settings = settings

    def close(self) -> None:
        """Save the counts, sync. Idempotent."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            if self._changed:
                change = new_batch()
                self._layout.put(change)
                self._db.write(change, stall_s=MAINTENANCE_STALL_S)
        self._db.sync()

    # ---- reading ----

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset` (or the next), as one view."""
        with self.lock:
            self._check_open()
            start, end = self._layout.start, self._layout.end
            if not start <= offset <= end:
                raise OffsetOutOfRange(f"{self.name}: offset {offset} is outside {start} to {end}")
            below = min(upto, end)
            if offset >= below:
                return _EMPTY
            for segment in self._layout.from_offset(offset):
                if not segment.size_bytes:
                    continue
                found = contents.read_batches(
                    self._db, self._number, segment.number, offset, max_bytes, below
                )
                if found:
                    return memoryview(found[0] if len(found) == 1 else b"".join(found))
            return _EMPTY

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""
        with self.lock:
            self._check_open()
            for segment in self._layout.segments:
                if segment.max_timestamp_ms < timestamp_ms or not segment.size_bytes:
                    continue
                rows = contents.rows(self._db, self._number, segment.number, self._layout.start)
                for _, row in rows:
                    if row.max_timestamp_ms >= timestamp_ms:
                        return Offset(max(row.base_offset, self._layout.start))
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
            first, below = max(start, self._layout.start), min(upto, self._layout.end)
            for segment in self._layout.from_offset(first):
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
            return describe(self._layout.segments, self._layout.end)

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """None: nothing lies in an object store."""
        return ()

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """Nothing to hold: nothing lies in an object store."""

    def aborted(self, start: Offset, upto: Offset) -> Sequence[AbortedSpan]:
        """None: nothing lies in an object store."""
        return ()

    def bring(self, cold: Cold) -> Lease:
        """Nothing is ever cold: RocksDB reads at once."""
        return NO_LEASE

    # ---- the log's ends ----

    def trim(self, start: Offset) -> None:
        """Move the log's start up to `start`, durably, and drop segments that lie below it."""
        with self.lock:
            self._check_running()
            if start > self._layout.end:
                raise OffsetOutOfRange(
                    f"{self.name}: cannot trim to {start}, the log ends at {self._layout.end}"
                )
            if start <= self._layout.start:
                return
            kept = self._layout.from_offset(start)
            if start == self._layout.end and kept[-1].size_bytes:
                kept = [self._new_segment(self._layout.end)]
            gone = [segment for segment in self._layout.segments if segment not in kept]
            change = new_batch()
            for segment in gone:
                contents.drop_segment(change, self._number, segment.number)
            self._layout.put(change, segments=kept, start=start)
            self._db.write(change, stall_s=MAINTENANCE_STALL_S)
            self._layout.start = start
            self._layout.segments = kept
        self._db.sync()
        contents.give_back(self._db, self._number, gone)

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end`, durably."""
        with self.lock:
            self._check_running()
            if end >= self._layout.end:
                return
            if end < 0:
                raise InvalidRequest(f"{self.name}: cannot truncate to {end}")
            gone = self._cut(end)
        self._db.sync()
        contents.give_back(self._db, self._number, gone)

    def _cut(self, end: int) -> list[KvSegment]:
        kept = [segment for segment in self._layout.segments if segment.base_offset < end]
        change = new_batch()
        if kept:
            end, kept[-1] = contents.shorten(self._db, self._number, kept[-1], end)
            contents.cut_segment(self._db, change, self._number, kept[-1].number, end)
        if end <= self._layout.start or not kept:
            kept = [self._new_segment(end)]  # no readable record is left
        start = min(self._layout.start, end)
        numbers = {segment.number for segment in kept}
        gone = [segment for segment in self._layout.segments if segment.number not in numbers]
        for segment in gone:
            contents.drop_segment(change, self._number, segment.number)
        states.drop_after(self._db, change, self._number, end)
        self._layout.put(change, segments=kept, start=start, end=end)
        self._db.write(change, stall_s=MAINTENANCE_STALL_S)
        self._layout.segments = kept
        self._cuts += 1
        self._layout.start, self._layout.end = start, end
        self._durable = min(self._durable, end)
        self._layout.kept = min(self._layout.kept, end)
        return gone

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep durably how far all replicas that count are."""
        with self.lock:
            self._check_running()
            offset = min(offset, self.end_offset)
            if offset <= self._layout.kept:
                return
            kept, self._layout.kept = self._layout.kept, int(offset)
            change = new_batch()
            self._layout.put(change)
            try:
                self._db.write(change, stall_s=MAINTENANCE_STALL_S)
            except OnelogError:
                self._layout.kept = kept
                raise
        self._db.sync()

    # ---- rewriting ----

    def rewrite(self, start: Offset, end: Offset) -> KvRewrite:
        """Begin to replace the sealed batches in [start, end); both are segment boundaries."""
        with self.lock:
            self._check_running()
            old = self._layout.sealed(start, end)
            fresh = self._new_segment(start)
            fresh.created_ms = old[0].created_ms
            change = new_batch()
            staged = keys.of_segment(self._number, keys.STAGED, fresh.number)
            change.put(staged, b"")
            self._layout.put(change)
            self._db.write(change, stall_s=MAINTENANCE_STALL_S)
            return KvRewrite(self, self._db, self._number, old, fresh, end)

    def swap(self, old: list[KvSegment], fresh: KvSegment) -> None:
        """Put a rewritten segment in place of others; for KvRewrite."""
        with self.lock:
            self._check_running()
            segments = self._layout.replaced(old, fresh)
            change = new_batch()
            for segment in old:
                contents.drop_segment(change, self._number, segment.number)
            change.delete(keys.of_segment(self._number, keys.STAGED, fresh.number))
            self._layout.put(change, segments=segments)
            self._db.write(change, stall_s=MAINTENANCE_STALL_S)
            self._layout.segments = segments
        self._db.sync()
        contents.give_back(self._db, self._number, old)

    # ---- derived state ----

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Keep a partition's derived state as of `offset`, durably."""
        with self.lock:
            self._check_running()
            states.save(self._db, self._number, name, offset, blob)
        self._db.sync()

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """The newest intact state of `name` whose offset is <= `end_offset`."""
        with self.lock:
            self._check_open()
            return states.load(self._db, self._number, name, self._layout.end)

    # ---- inside ----

    def _new_segment(self, base_offset: int) -> KvSegment:
        return self._layout.new_segment(base_offset, indexed=self._settings.topic_index)

    def _check_running(self) -> None:
        self._check_open()
        self._db.check_running()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.name} was closed")
