"""The half of a kv partition that holds its state and grows it: open, append, roll, sync, close.

Rules:
- A segment is only a number that the keys of its batches carry. Retention drops a segment and
  compaction replaces one by a change of the meta and a few range deletions, in one write.
- A change is written first and applied to memory after: when a write fails, memory still agrees
  with the disk.
- The lock is never held during a sync.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rocksdict import WriteBatch

from onelog.base.clock import Clock
from onelog.base.errors import Closed, InvalidRequest
from onelog.base.ids import Offset
from onelog.kernel import BatchInfo
from onelog.storage.engine import Buffer, LogSettings, PartitionKey
from onelog.storage.kv import contents, keys
from onelog.storage.kv.database import Database, new_batch
from onelog.storage.kv.meta import Meta, Segment, decode, encode
from onelog.storage.topic_pairs import derive_pairs


class KvWriter:
    """State and growth of one partition."""

    __slots__ = (
        "_changed", "_clock", "_closed", "_cuts", "_db", "_durable", "_end", "_kept", "_key",
        "_next_segment", "_number", "_segments", "_settings", "_start", "lock",
    )  # fmt: skip

    def __init__(
        self, db: Database, key: PartitionKey, number: int, settings: LogSettings, clock: Clock
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
        self._start = self._end = self._kept = self._next_segment = 0
        self._segments: list[Segment] = []
        saved = db.get(keys.of_partition(number, keys.META))
        if saved is None:
            self._create()
        else:
            self._load(decode(saved, self.name))
            self._clean_up()
        # Opening the database wrote what it replayed from the WAL into tables, and synced them.
        self._durable = self._end

    def _create(self) -> None:
        # Written now: recovery finds batches only in segments that the meta names.
        self._segments = [self._new_segment(0)]
        change = new_batch()
        self._put_meta(change)
        self._db.write(change)

    def _load(self, meta: Meta) -> None:
        self._start = meta.start_offset
        self._end = meta.end_offset
        self._next_segment = meta.next_segment
        self._segments = meta.segments
        active = meta.segments[-1]
        for last, row in contents.rows(self._db, self._number, active.number, active.counted):
            active.count(last, row.size_bytes, row.max_timestamp_ms)
            self._end = max(self._end, last + 1)
        self._kept = min(meta.high_watermark, self._end)
        if self._kept < meta.high_watermark:  # what was lost must not count once the log has grown
            change = new_batch()
            self._put_meta(change)
            self._db.write(change, stall_s=60)

    def _clean_up(self) -> None:
        """Throw away what rewrites wrote that a crash ended."""
        prefix = keys.of_partition(self._number, keys.STAGED)
        change = new_batch()
        for key, _ in self._db.scan(prefix, keys.after(prefix)):
            contents.drop_segment(change, self._number, keys.offset_of(key))
            change.delete(key)
        if not change.is_empty():
            self._db.write(change, stall_s=60)

    # ---- growing ----

    def append(
        self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None = None
    ) -> None:
        """Append whole batches in one write."""
        if not batches:
            return
        with self.lock:
            self._check_running()
            self._check_order(batches)
            size = sum(info.size_bytes for info in batches)
            self._db.check_room(size)
            change = new_batch()
            fresh = self._new_segment(self._end) if self._is_due(size) else None
            active = fresh or self._active
            contents.put_batches(change, self._number, active.number, data, batches)
            if active.indexed:
                pairs = derive_pairs(data, batches) if topics is None else topics
                first = batches[0].base_offset
                contents.put_pairs(change, self._number, active.number, pairs, first)
            if fresh is not None:
                self._put_meta(change, segments=[*self._segments, fresh])
            self._db.write(change)
            if fresh is not None:
                self._adopt([*self._segments, fresh])
            for info in batches:
                active.count(info.last_offset, info.size_bytes, info.max_timestamp_ms)
            self._end = batches[-1].last_offset + 1
            self._changed = True

    def _check_order(self, batches: Sequence[BatchInfo]) -> None:
        expected = self._end
        for info in batches:
            if info.base_offset < expected:
                raise InvalidRequest(
                    f"{self.name}: a batch starts at offset {info.base_offset}, the log ends at "
                    f"{expected}: offsets only go up"
                )
            expected = info.last_offset + 1

    def _is_due(self, size_bytes: int) -> bool:
        active, settings = self._active, self._settings
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
            if self._active.size_bytes:
                change = new_batch()
                segments = [*self._segments, self._new_segment(self._end)]
                self._put_meta(change, segments=segments)
                self._db.write(change)
                self._adopt(segments)

    def sync(self) -> Offset:
        """Make everything appended before this call survive power loss."""
        with self.lock:
            self._check_running()
            end, cuts = self._end, self._cuts
        self._db.sync()
        with self.lock:
            if cuts == self._cuts:
                self._durable = max(self._durable, end)
            return Offset(self._durable)

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on; a segment is indexed as a whole or not."""
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
                self._put_meta(change)
                self._db.write(change, stall_s=60)
        self._db.sync()

    # ---- inside ----

    @property
    def name(self) -> str:
        """The partition, for messages."""
        return f"partition {self._key.stream_id}/{self._key.partition}"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    def _new_segment(self, base_offset: int) -> Segment:
        number = self._next_segment
        self._next_segment += 1
        indexed = self._settings.topic_index
        return Segment(number, base_offset, self._clock.now_ms(), indexed, counted=base_offset)

    def _put_meta(
        self,
        change: WriteBatch,
        *,
        segments: list[Segment] | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        meta = Meta(
            self._start if start is None else start,
            self._end if end is None else end,
            self._next_segment,
            self._segments if segments is None else segments,
            self._kept if end is None else min(self._kept, end),
        )
        change.put(keys.of_partition(self._number, keys.META), encode(meta))

    def _adopt(self, segments: list[Segment]) -> None:
        self._segments = segments

    def _check_running(self) -> None:
        if self._closed:
            raise Closed(f"{self.name} was closed")
        self._db.check_running()
