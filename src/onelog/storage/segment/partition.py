"""A partition of the segment engine: reading, lookups, and the changes of the log's two ends.
Rules: a reader works on the list of segments of the moment when it began; if one of them is dropped
or replaced meanwhile, it begins again. Views are slices of read-only maps and outlive every change.
Every change of the log writes the checkpoint first and deletes files after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NoReturn, TypeVar

from onelog.base import faults
from onelog.base.errors import (
    Conflict,
    CorruptBatch,
    InvalidRequest,
    OffsetOutOfRange,
    PartitionCorrupt,
    PartitionStopped,
    StorageError,
)
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import BatchBuilder, fit_batches
from onelog.storage.engine import LogSettings, SegmentInfo, TornTail, seal_and_append
from onelog.storage.segment import state, truncation
from onelog.storage.segment.checkpoint import Row
from onelog.storage.segment.files import sync_directory
from onelog.storage.segment.recovery import stem_of
from onelog.storage.segment.rewrite import SegmentRewrite
from onelog.storage.segment.segment import Segment, SegmentGone, Shared
from onelog.storage.segment.writer import LogWriter

_EMPTY = memoryview(b"")
_T = TypeVar("_T")


class SegmentLog(LogWriter):
    """One partition's log."""

    __slots__ = ()

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._directory

    @property
    def shared(self) -> Shared:
        """The objects that all partitions of the engine share."""
        return self._shared

    @property
    def settings(self) -> LogSettings:
        """How it stores now."""
        return self._settings

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

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
            return self._sealed_bytes + self._active.size_bytes

    @property
    def kept_high_watermark(self) -> Offset:
        """What was kept last; 0: nothing was."""
        return Offset(self._saved.high_watermark)

    @property
    def torn(self) -> TornTail | None:
        """The tail that recovery cut; None: nothing."""
        return self.recovery.torn

    # Writing.

    def append_built(
        self, builder: BatchBuilder, leader_epoch: int, *, index_topics: bool
    ) -> bytes:
        """Seal what is staged as one batch at the end and append it; the batch."""
        quick = self._append_quickly(builder, leader_epoch, index_topics)
        if quick is not None:
            return quick
        return seal_and_append(self, builder, leader_epoch, index_topics=index_topics)

    # Reading.

    def _look(self, look: Callable[[list[int], list[Segment]], _T]) -> _T:
        """Run a lookup on the segments of this moment, again if one went away meanwhile."""
        while True:
            if self._closed or isinstance(self._stopped, PartitionCorrupt):
                self._check_running()
            try:
                return look(*self._segments)
            except SegmentGone:
                continue
            except CorruptBatch as error:
                raise self._corrupt(self._directory, error) from error
            except OSError as error:
                raise StorageError(f"reading {self._directory} failed: {error}") from error

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset` (or the next), as one view."""

        def look(bases: list[int], segments: list[Segment]) -> memoryview:
            for number in range(max(0, bisect_right(bases, offset) - 1), len(segments)):
                segment = segments[number]
                limit = segment.size_bytes
                position = segment.locate(offset, limit) if limit else -1
                if position >= 0:
                    buffer = segment.buffer(limit)
                    stop = fit_batches(buffer, position, limit, max_bytes, below)
                    segment.passed(buffer, position)
                    return memoryview(buffer)[position:stop]
            return _EMPTY

        end = self._end  # before the segments are looked at: they hold at least this
        if not self._start <= offset <= end:
            raise OffsetOutOfRange(
                f"offset {offset} of {self._directory}: the log holds {self._start} to {end}"
            )
        below = min(upto, end)
        if offset >= below:
            return _EMPTY
        return self._look(look)

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""

        def look(_: list[int], segments: list[Segment]) -> Offset | None:
            for segment in segments:
                found = segment.offset_for_time(timestamp_ms, self._start, segment.size_bytes)
                if found is not None:
                    return Offset(found)
            return None

        return self._look(look)

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) whose record's topic has this hash."""

        def look(bases: list[int], segments: list[Segment]) -> list[Offset]:
            found: list[int] = []
            for number in range(max(0, bisect_right(bases, first) - 1), len(segments)):
                if bases[number] >= below or len(found) >= limit:
                    break
                rows = segments[number].offsets_of_topic(topic_hash, first, limit - len(found))
                if number + 1 < len(bases):  # entries of what a truncation cut off stay
                    del rows[bisect_left(rows, bases[number + 1]) :]
                found += rows
            return [Offset(offset) for offset in found[: bisect_left(found, below)]]

        if not self._settings.topic_index:
            return None
        first, below = max(start, self._start), min(upto, self._end)
        return self._look(look)

    def segments(self) -> list[SegmentInfo]:
        """Segments in order; the last is the active one."""
        with self.lock:
            bases, segments = self._segments
            ends = [*bases[1:], self._end]
            return [
                SegmentInfo(
                    Offset(segment.base_offset),
                    Offset(end),
                    segment.size_bytes,
                    TimestampMs(segment.max_timestamp_ms),
                    segment.sealed,
                    TimestampMs(segment.created_ms),
                )
                for segment, end in zip(segments, ends, strict=True)
            ]

    # The log's ends.

    def trim(self, start: Offset) -> None:
        """Move the log's start up to `start`, durably, and drop segments that lie below it."""
        with self.maintenance:
            with self.lock:
                self._check_running()
                if start > self._end:
                    raise OffsetOutOfRange(f"cannot trim to {start}: the log ends at {self._end}")
                if start <= self._start:
                    return
                if start == self._end:
                    self._roll()
                bases, segments = self._segments
                keep = max(0, bisect_right(bases, start) - 1)
                gone = segments[:keep]
            if start > self._saved.end_offset or bases[keep] > self._saved.tail.base_offset:
                self._sync_and_save()
            rows = tuple(row for row in self._saved.sealed if row.base_offset >= bases[keep])
            self._save(self._next(start_offset=start, sealed=rows))
            with self.lock:
                self._start = start
                self._drop(gone)
                self._publish([held for held in self._segments[1] if not held.dead])
            self._remove(gone)

    def _drop(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.dead = True

    def _remove(self, gone: list[Segment]) -> None:
        """Delete files that the checkpoint no longer names; what fails goes at the next open."""
        try:
            self._bury(gone)
        except OSError as error:
            raise StorageError(
                f"deleting old segments in {self._directory} failed: {error}"
            ) from error

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end`, durably."""
        with self.maintenance:
            with self.lock:
                self._check_running()
                if end >= self._end:
                    return
                if end < 0:
                    raise InvalidRequest(f"cannot truncate to {end}")
                self.frozen = True
            try:
                self._sync_and_save()
                self._truncate(end)
            except CorruptBatch as error:
                raise self._corrupt(self._directory, error) from error
            finally:
                self.frozen = False

    def _truncate(self, end: int) -> None:
        segments = self._segments[1]
        cut = truncation.find_cut(segments, end)
        start, new_end = self._start, max(cut.end_offset, min(self._start, end))
        if new_end <= start:  # nothing that may be read is left
            cut, start = truncation.Cut([], None, 0, new_end), new_end
        active = self._empty_segment(new_end)
        kept = list(cut.kept)
        rows = [segment.row() for segment in kept]
        if cut.split is not None:
            rows.append(truncation.shortened(cut.split, cut.size_bytes))
            kept.append(self._sealed_segment(rows[-1]))
        gone = [segment for segment in segments if segment not in cut.kept]
        intent = self._next(
            start_offset=start,
            end_offset=new_end,
            sealed=tuple(rows),
            tail=active.row(),
            cut=True,
            high_watermark=min(self._saved.high_watermark, new_end),
        )
        self._save(intent)
        with self.lock:
            self._drop(gone)
            self._start, self._end, self._durable = start, new_end, new_end
            self._unsynced = []
            for segment in kept:
                if not segment.sealed:
                    segment.seal()
            self._publish([*kept, active])
        try:
            self._finish_cut(gone, cut.split, active)
        except (OSError, StorageError) as error:
            self._give_up("truncate", error)

    def _sealed_segment(self, row: Row) -> Segment:
        stem = stem_of(self._directory, row.base_offset)
        return Segment(stem, row, self._shared, self.lock, self._settings, sealed=True)

    def _finish_cut(self, gone: list[Segment], split: Segment | None, active: Segment) -> None:
        """Bring the files to what the checkpoint says. Nothing is appended before that."""
        faults.hit("segment.truncate")
        if split is not None:
            split.let_go()  # its file is that of the shorter one now
        self._bury(segment for segment in gone if segment is not split)
        if split is not None:
            active.create()  # were both checkpoints lost, its name says where the log was cut
        state.drop_states(self._directory, self._end)
        sync_directory(self._directory)
        self._save(self._next())

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep how far all replicas that count are, durably."""
        with self.maintenance:
            with self.lock:
                self._check_running()
                offset = min(offset, self.end_offset)
            if offset > self._saved.high_watermark:
                self._save(self._next(high_watermark=int(offset)))

    def _give_up(self, what: str, error: Exception) -> NoReturn:
        """A change was decided but not finished: only recovery can finish it."""
        reason = (
            f"{what} in {self._directory} did not finish ({error}); the partition is stopped: "
            "restart the broker, which finishes it"
        )
        with self.lock:
            raise self._stop(PartitionStopped(reason)) from error

    # Rewriting.

    def rewrite(self, start: Offset, end: Offset) -> SegmentRewrite:
        """Begin to replace the sealed batches in [start, end); both are segment boundaries."""
        with self.maintenance:
            with self.lock:
                self._check_running()
                bases, segments = self._segments
                first, after = bisect_left(bases, start), bisect_left(bases, end)
                if not first < after < len(bases) or bases[first] != start or bases[after] != end:
                    raise InvalidRequest(
                        f"[{start}, {end}) of {self._directory} is not a run of sealed segments"
                    )
            if self._saved.swap:  # a crash must not take the new files for those of the last swap
                self._save(self._next())
            return SegmentRewrite(self, segments[first:after], start, end)

    def swap(self, old: list[Segment], new: list[Segment]) -> None:
        """Put `new` in the place of `old`; for SegmentRewrite. Maintenance is held."""
        self._check_running()
        if any(segment.dead for segment in old):
            raise Conflict(f"segments of {self._directory} were dropped during the rewrite")
        if old[-1].base_offset >= self._saved.tail.base_offset:
            self._sync_and_save()
        gone = {segment.base_offset for segment in old}
        rows = [row for row in self._saved.sealed if row.base_offset not in gone]
        rows += [segment.row() for segment in new]
        rows.sort(key=lambda row: row.base_offset)
        bases = tuple(segment.base_offset for segment in new)
        try:
            faults.hit("segment.swap")
        except OSError as error:
            self._full_or_error("rewrite", error)
        self._save(self._next(sealed=tuple(rows), swap=bases))
        try:
            with self.lock:
                self._drop(old)
                for segment in new:
                    segment.move(stem_of(self._directory, segment.base_offset))
                    segment.dead = False
                held = [*(s for s in self._segments[1] if not s.dead), *new]
                self._publish(sorted(held, key=lambda segment: segment.base_offset))
            for segment in old:
                segment.let_go()
            self._bury(segment for segment in old if segment.base_offset not in bases)
            sync_directory(self._directory)
        except OSError as error:
            self._give_up("rewrite", error)
        self._save(self._next(), required=False)

    def storage_failed(self, what: str, error: OSError) -> NoReturn:
        """Raise what a failed write of new segments means: the log itself is as it was."""
        self._full_or_error(what, error)

    # The rest.

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Keep a partition's derived state as of `offset`, durably."""
        with self.maintenance:
            self._check_running()
            try:
                state.save_state(self._directory, name, offset, blob)
            except OSError as error:
                self._full_or_error("save_state", error)

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """The newest intact state of `name` whose offset is <= `end_offset`."""
        found = state.load_state(self._directory, name, self._end)
        return None if found is None else (Offset(found[0]), found[1])

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on."""
        with self.lock:
            self._check_running()
            if settings.topic_index != self._settings.topic_index:
                self._roll()  # a segment has a topic index for all of it or for nothing
            self._settings = settings
            for segment in self._segments[1]:
                segment.settings = settings

    def close(self) -> None:
        """Sync, write the clean state, let go of every file. Idempotent."""
        with self.maintenance:
            if self._closed:
                return
            try:
                if self._stopped is None:
                    with self.lock:
                        active = self._active
                        if active.writer is not None:
                            active.shrink()
                    self.clean = not self._changed() or self._sync(save=True)
            except OSError as error:
                self._full_or_error("close", error)
            finally:
                self._closed = True
                with self.lock:
                    for segment in self._segments[1]:
                        segment.let_go()

    def _changed(self) -> bool:
        """Whether the checkpoint does not say all."""
        saved, active = self._saved, self._active
        return (
            saved.end_offset != self._end
            or saved.tail.base_offset != active.base_offset
            or saved.tail.size_bytes != active.size_bytes
            or saved.swap != ()
            or bool(self._unsynced)
        )
