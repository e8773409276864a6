"""A partition of the segment engine: it appends, and puts the other parts together.

The state that all parts see is in `held.py`. Batches are read in `reading.py`, brought to disk in
`durability.py`, cut off at both ends in `ends.py` and replaced in `rewrite.py`.

Rules: an append is one write at the log's end, then plain bookkeeping. A roll does not sync: the
next sync includes the sealed segments and the directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from onelog.base.errors import Conflict, CorruptBatch, InvalidRequest
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import REL_MAX, BatchBuilder, BatchInfo
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.storage.engine import (
    AskSync,
    Buffer,
    Cold,
    Lease,
    LogSettings,
    SegmentInfo,
    SyncDone,
    TornTail,
    seal_and_append,
)
from onelog.storage.segment import state
from onelog.storage.segment.durability import PartitionSync
from onelog.storage.segment.ends import LogEnds
from onelog.storage.segment.freezing import freeze_partition
from onelog.storage.segment.held import PartitionState
from onelog.storage.segment.reading import LogReader
from onelog.storage.segment.recovery import LogRecovery
from onelog.storage.segment.rewrite import SegmentRewrite, begin_prepend, begin_rewrite
from onelog.storage.segment.segment import EngineShared, Segment
from onelog.storage.tables import SealedFile


class SegmentLog:
    """One partition's log."""

    __slots__ = ("_durability", "_held", "_reader", "clean", "log_end", "read", "recovery")

    tier = None

    def __init__(
        self, directory: str, shared: EngineShared, settings: LogSettings, *, trusted: bool
    ) -> None:
        held = self.log_end = self._held = PartitionState(directory, shared, settings)
        found = LogRecovery(directory, shared, held.lock, settings).run(trusted)
        held.start = Offset(found.checkpoint.start_offset)
        held.end = held.durable = found.end_offset
        held.publish(found.segments)
        self.recovery = found.stats
        self.clean = False
        """After `close`: whether the checkpoint describes the log completely."""
        self._durability = PartitionSync(held, found)
        self._reader = LogReader(held)
        self.read = self._reader.read  # bound here: a read per batch saves a second call

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._held.directory

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return self._held.start

    @property
    def local_start_offset(self) -> Offset:
        """First offset whose batches are on this machine."""
        return self.start_offset

    @property
    def end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return Offset(self._held.end)

    @property
    def durable_offset(self) -> Offset:
        """Every record below it survives power loss."""
        return Offset(self._held.durable)

    @property
    def size_bytes(self) -> int:
        """Bytes of batches held."""
        with self._held.lock:
            return self._held.sealed_bytes + self._held.active.size_bytes

    @property
    def kept_high_watermark(self) -> Offset:
        """The high watermark that was kept last; 0: none was kept."""
        return Offset(self._durability.saved.high_watermark)

    @property
    def torn(self) -> TornTail | None:
        """The tail that recovery cut; None: nothing."""
        return self.recovery.torn

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._held.closed

    # Appending.

    def append(
        self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None = None
    ) -> None:
        """Append whole batches that start at or after the end, in order."""
        if not batches:
            return
        size = len(data)
        first, last = batches[0].base_offset, batches[-1].last_offset
        held = self._held
        with held.lock:
            if held.stopped is not None or held.closed or held.frozen:
                held.check_running()
                raise Conflict(f"partition {held.directory} is being truncated; try again")
            if first < held.end:
                raise InvalidRequest(f"base offset {first} is below the log's end {held.end}")
            segment = self._writable(first, last, size)
            if segment.indexes.live is None:
                self._prepare(segment)
            entries = segment.topic_entries(data, batches, topics)
            fresh = not segment.exists
            try:
                segment.write(data, size)
            except OSError as error:
                held.failed("append", error)
            finally:
                if fresh:
                    held.directory_dirty |= segment.exists
            if segment.size_bytes == 0:
                segment.created_ms = held.shared.clock.now_ms()
            segment.note(batches, size, entries)
            held.unsaved_bytes += size
            held.end = last + 1

    def append_built(self, builder: BatchBuilder, leader_epoch: int, index_topics: bool) -> bytes:
        """Seal the staged records as one batch at the end and append it. Returns the batch."""
        data = self.log_end.append_built(builder, leader_epoch, index_topics)
        if data is not None:  # the usual case: it fits the active segment
            return data
        return seal_and_append(self, builder, leader_epoch, index_topics=index_topics)

    def _prepare(self, segment: Segment) -> None:
        try:
            segment.prepare()
        except CorruptBatch as error:
            raise self._held.corrupt(error) from error
        except OSError as error:
            self._held.full_or_error("append", error)

    def _writable(self, first: int, last: int, size: int) -> Segment:
        """The active segment, after a roll if these batches no longer belong into it."""
        held = self._held
        segment = held.active
        if segment.size_bytes:
            now_ms = held.shared.clock.now_ms()
            # If the clock went back, age counts from now.
            segment.created_ms = min(segment.created_ms, now_ms)
            if (
                segment.size_bytes + size > held.settings.segment_bytes
                or now_ms - segment.created_ms >= held.settings.segment_age_ms
                or last - segment.base_offset > REL_MAX
            ):
                self._durability.seal_active()
                segment = held.active
        if last - segment.base_offset > REL_MAX:  # a gap wider than a segment can be
            if last - first > REL_MAX:
                raise InvalidRequest(f"offsets {first} to {last} do not fit one segment")
            segment = held.empty_segment(first)
            held.publish([*held.segments[1][:-1], segment])
        return segment

    def roll(self) -> None:
        """Seal the active segment, so that retention and compaction may touch it."""
        with self._held.lock:
            self._held.check_running()
            self._durability.seal_active()

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on."""
        held = self._held
        with held.lock:
            held.check_running()
            if settings.topic_index != held.settings.topic_index:
                # A segment has a topic index for all of its batches or for none.
                self._durability.seal_active()
            held.settings = settings
            for segment in held.segments[1]:
                segment.settings = settings

    # Reading.

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""
        return self._reader.offset_for_time(timestamp_ms)

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) whose record's topic has this hash."""
        return self._reader.offsets_of_topic(topic_hash, start, upto, limit)

    def segments(self) -> list[SegmentInfo]:
        """Segments in order; the last is the active one."""
        return self._reader.segments()

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """None: nothing lies in an object store."""
        return ()

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """Nothing to hold: nothing lies in an object store."""

    def aborted(self, start: Offset, upto: Offset) -> Sequence[AbortedSpan]:
        """None: nothing lies in an object store."""
        return ()

    def bring(self, cold: Cold) -> Lease:
        """Read cold bytes from the disk."""
        return self._reader.bring(cold)

    # The rest.

    def sync(self) -> Offset:
        """Make everything appended before this call survive power loss."""
        return self._durability.sync()

    def begin_sync(self, ask: AskSync, done: SyncDone) -> bool:
        """Begin what `sync` does, if the active segment's file is all that is to be synced."""
        return self._durability.begin(ask, done)

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep durably how far all replicas that count are."""
        self._durability.keep_high_watermark(offset)

    def trim(self, start: Offset) -> None:
        """Move the log's start up to `start`, durably, and drop segments that lie below it."""
        LogEnds(self._held, self._durability).trim(start)

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end`, durably."""
        LogEnds(self._held, self._durability).truncate(end)

    def rewrite(self, start: Offset, end: Offset) -> SegmentRewrite:
        """Begin to replace the sealed batches in [start, end); both are segment boundaries."""
        return begin_rewrite(self._held, self._durability, start, end)

    def prepend(self, start: Offset, log_start: Offset, created_ms: TimestampMs) -> SegmentRewrite:
        """Begin to put batches from `start` on in front of the first segment; the log then begins
        at `log_start`."""
        return begin_prepend(self._held, self._durability, start, log_start, created_ms)

    def sealed_topics(self, base: Offset) -> bytes | None:
        """The chunks of the topic index of the sealed segment that begins at `base`; None: it has
        none, or they cannot be used. Waits for the disk."""
        return self._reader.sealed_topics(base)

    def sealed_file(self, info: SegmentInfo) -> AbstractContextManager[SealedFile]:
        """The file of a sealed segment; one that leaves meanwhile is missing."""
        path = self._reader.sealed_log(info.base_offset)
        return nullcontext(SealedFile(path, info.size_bytes))

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Keep a partition's derived state as of `offset`, durably."""
        held = self._held
        with held.maintenance:
            held.check_running()
            try:
                state.save_state(held.directory, name, offset, blob)
            except OSError as error:
                held.full_or_error("save_state", error)

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """The newest intact state of `name` whose offset is <= `end_offset`."""
        found = state.load_state(self._held.directory, name, self._held.end)
        return None if found is None else (Offset(found[0]), found[1])

    def freeze(self, cut: Offset, into: Path) -> dict[str, int]:
        """Link the files into a folder, so that a copy of them ends at `cut`. Returns file names
        and how many bytes of each count."""
        return freeze_partition(self._held, self._durability, cut, into)

    def close(self) -> None:
        """Sync, write the clean state, close every file. Idempotent."""
        held = self._held
        with held.maintenance:
            if held.closed:
                return
            try:
                if held.stopped is None:
                    self.clean = self._durability.finish()
            except OSError as error:
                held.full_or_error("close", error)
            finally:
                held.closed = True
                with held.lock:
                    for segment in held.segments[1]:
                        segment.let_go()
