"""The writing half of a partition: append, roll, sync and checkpoint.

Locks, in the order they are taken: `maintenance` (one sync, trim, truncate or swap at a time; held
while the disk syncs), then `lock` (the partition's state; never held while the disk syncs).
Rules: an append is one write at the log's end, then plain bookkeeping. A roll does not sync: the
next sync takes the sealed segments and the directory with it. A failed sync stops the partition.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

import msgspec

from onelog.base import faults
from onelog.base.errors import (
    Closed,
    Conflict,
    CorruptBatch,
    InvalidRequest,
    PartitionCorrupt,
    PartitionStopped,
    StorageError,
    StorageFull,
)
from onelog.base.ids import Offset
from onelog.kernel import BatchBuilder, BatchInfo
from onelog.storage.engine import Buffer, LogSettings
from onelog.storage.segment.checkpoint import Checkpoint, Row
from onelog.storage.segment.files import is_full, sync_directory, sync_path
from onelog.storage.segment.index import REL_MAX
from onelog.storage.segment.recovery import Recovery, stem_of
from onelog.storage.segment.segment import Segment, Shared

CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
"""After so many newly durable bytes the recovery point moves."""


class LogWriter:
    """One partition's log as its writer sees it."""

    __slots__ = (
        "_box", "_closed", "_directory", "_directory_dirty", "_durable", "_end", "_is_placed",
        "_saved", "_sealed_bytes", "_segments", "_settings", "_shared", "_start", "_stopped",
        "_unsaved_bytes", "_unsynced", "clean", "frozen", "lock", "maintenance", "recovery",
    )  # fmt: skip

    def __init__(
        self, directory: str, shared: Shared, settings: LogSettings, *, trusted: bool
    ) -> None:
        self._directory = directory
        self._shared = shared
        self._settings = settings
        self.lock = threading.RLock()
        self.maintenance = threading.RLock()
        found = Recovery(directory, shared, self.lock, settings).run(trusted)
        self._box = found.box
        self._saved: Checkpoint = found.checkpoint
        self.recovery = found.stats
        self._start = found.checkpoint.start_offset
        self._end = self._durable = found.end_offset
        self._segments: tuple[list[int], list[Segment]] = ([], [])
        self._sealed_bytes = 0
        self._publish(found.segments)
        self._unsynced: list[Segment] = []
        self._unsaved_bytes = 0
        self._directory_dirty = False
        self._is_placed = False
        """Whether the directory is known to be durable in those above it."""
        self._stopped: PartitionStopped | None = None
        self._closed = False
        self.frozen = False
        """A truncation is at work: nothing may be appended."""
        self.clean = False
        """After `close`: whether the checkpoint says all there is to know."""

    # State. The lock is held.

    @property
    def _active(self) -> Segment:
        return self._segments[1][-1]

    def _publish(self, segments: list[Segment]) -> None:
        """Show readers another list of segments, at once."""
        self._sealed_bytes = sum(segment.size_bytes for segment in segments[:-1])
        self._segments = ([segment.base_offset for segment in segments], segments)

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise type(self._stopped)(str(self._stopped))
        if self._closed:
            raise Closed(f"partition {self._directory} is closed")

    def _stop(self, error: PartitionStopped) -> PartitionStopped:
        """Refuse work from now on; the first reason stays."""
        if self._stopped is None:
            self._stopped = error
        return self._stopped

    def _failed(self, what: str, error: OSError) -> NoReturn:
        """Turn a system error into ours: a full disk passes, everything else stops."""
        if is_full(error):
            raise StorageFull(
                f"{what} in {self._directory}: no room on the disk; free some space or shorten "
                "the retention, then try again"
            ) from error
        reason = (
            f"{what} in {self._directory} failed ({error}); the partition is stopped: check the "
            "disk, then restart the broker"
        )
        raise self._stop(PartitionStopped(reason)) from error

    def _full_or_error(self, what: str, error: OSError) -> NoReturn:
        """Turn a system error into ours where the log itself was not touched."""
        if is_full(error):
            self._failed(what, error)
        raise StorageError(f"{what} in {self._directory} failed: {error}") from error

    # Appending.

    def append(
        self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None = None
    ) -> None:
        """Append whole batches that start at or after the end, in order."""
        if not batches:
            return
        size = len(data)
        first, last = batches[0].base_offset, batches[-1].last_offset
        with self.lock:
            if self._stopped is not None or self._closed or self.frozen:
                self._check_running()
                raise Conflict(f"partition {self._directory} is being truncated; try again")
            if first < self._end:
                raise InvalidRequest(f"base offset {first} is below the log's end {self._end}")
            segment = self._writable(first, last, size)
            if segment.indexes.live is None:
                self._prepare(segment)
            entries = segment.topic_entries(data, batches, topics)
            fresh = not segment.exists
            try:
                segment.write(data, size)
            except OSError as error:
                self._failed("append", error)
            finally:
                self._directory_dirty |= fresh and segment.exists
            if segment.size_bytes == 0:
                segment.created_ms = self._shared.clock.now_ms()
            segment.note(batches, size, entries)
            self._unsaved_bytes += size
            self._end = last + 1

    def _append_quickly(
        self, builder: BatchBuilder, leader_epoch: int, index_topics: bool
    ) -> bytes | None:
        """The usual append: what is staged fits the active segment as it is. None: it does not."""
        with self.lock:
            if self._stopped is not None or self._closed or self.frozen:
                return None
            count, now_ms = builder.count, self._shared.clock.now_ms()
            try:
                data = self._segments[1][-1].append_built(
                    builder, self._end, leader_epoch, index_topics, now_ms
                )
            except OSError as error:
                self._failed("append", error)
            if data is not None:
                self._unsaved_bytes += len(data)
                self._end += count
            return data

    def _prepare(self, segment: Segment) -> None:
        try:
            segment.prepare()
        except CorruptBatch as error:
            raise self._corrupt(self._directory, error) from error
        except OSError as error:
            self._full_or_error("append", error)

    def _writable(self, first: int, last: int, size: int) -> Segment:
        """The active segment, after a roll if these batches do not belong into it any more."""
        segment = self._active
        if segment.size_bytes:
            now_ms = self._shared.clock.now_ms()
            # If the clock went back, age counts from now.
            segment.created_ms = min(segment.created_ms, now_ms)
            if (
                segment.size_bytes + size > self._settings.segment_bytes
                or now_ms - segment.created_ms >= self._settings.segment_age_ms
                or last - segment.base_offset > REL_MAX
            ):
                self._roll()
                segment = self._active
        if last - segment.base_offset > REL_MAX:  # a gap wider than a segment can be
            if last - first > REL_MAX:
                raise InvalidRequest(f"offsets {first} to {last} do not fit one segment")
            segment = self._empty_segment(first)
            self._publish([*self._segments[1][:-1], segment])
        return segment

    def _empty_segment(self, base_offset: int) -> Segment:
        stem = stem_of(self._directory, base_offset)
        row = Row(base_offset, 0)
        return Segment(stem, row, self._shared, self.lock, self._settings)

    def _roll(self) -> None:
        segment = self._active
        if segment.size_bytes == 0:
            return
        try:
            faults.hit("segment.roll")
        except OSError as error:
            self._failed("roll", error)
        segment.seal()
        self._unsynced.append(segment)
        self._publish([*self._segments[1], self._empty_segment(self._end)])

    def roll(self) -> None:
        """Seal the active segment, so that retention and compaction may touch it."""
        with self.lock:
            self._check_running()
            self._roll()

    # Syncing.

    def sync(self) -> Offset:
        """Make everything appended before this call survive power loss."""
        asked = self._end
        with self.maintenance:
            if self._durable < asked or self._stopped is not None or self._closed:
                self._sync(save=False)
            return Offset(self._durable)

    def _sync(self, *, save: bool) -> bool:
        """Sync; the checkpoint too if asked or due. Whether it was saved. Maintenance is held."""
        with self.lock:
            self._check_running()
            end, segment, sealed = self._end, self._active, list(self._unsynced)
            grown, self._directory_dirty = self._directory_dirty, False
            size = segment.size_bytes
            save = save or grown or bool(sealed) or self._unsaved_bytes >= CHECKPOINT_BYTES
            rows = [old.row() for old in self._segments[1]] if save else []
            unsaved = self._unsaved_bytes
            writer = segment.writer
            file = writer.open() if writer is not None and writer.dirty and size else None
        try:
            faults.hit("segment.fsync")
            for old in sealed:
                old.sync()
            if file is not None:
                file.sync()
                segment.note_synced(size)
            if save and size:
                segment.indexes.sync()
            if grown:
                self._sync_names()
        except OSError as error:
            reason = (
                f"fsync in {self._directory} failed ({error}): what was written since the last "
                "one may be lost; the partition is stopped: check the disk, then restart the broker"
            )
            raise self._stop(PartitionStopped(reason)) from error
        with self.lock:
            self._durable = max(self._durable, end)
            self._unsynced = [old for old in self._unsynced if old not in sealed]
            if writer is not None and segment.size_bytes == size:
                writer.dirty = False
        for old in sealed:
            old.close_writer()
        if not save:
            return False
        saved = self._next(end_offset=end, sealed=tuple(rows[:-1]), tail=rows[-1])
        if not self._save(saved, required=False):
            return False
        self._unsaved_bytes -= unsaved
        return True

    def _sync_names(self) -> None:
        """Make the segment files' names durable, and once the directories' they are in."""
        if self._is_placed:
            sync_directory(self._directory)
        else:
            sync_path(self._directory)
            self._is_placed = True

    def _next(self, **changes: object) -> Checkpoint:
        """The checkpoint that follows the saved one; what was under way then is finished."""
        return msgspec.structs.replace(self._saved, **{"swap": (), "cut": False, **changes})

    def _save(self, checkpoint: Checkpoint, *, required: bool = True) -> bool:
        """Write the checkpoint; without room for it the old one stays. Maintenance is held."""
        try:
            self._box.save(checkpoint)
        except OSError as error:
            if is_full(error) and not required:
                self._unsaved_bytes = max(self._unsaved_bytes, CHECKPOINT_BYTES)
                return False
            self._failed("checkpoint", error)
        self._saved = checkpoint
        return True

    def _sync_and_save(self) -> None:
        """Bring the recovery point to the log's end, or raise."""
        if not self._sync(save=True):
            raise StorageFull(
                f"no room for the checkpoint in {self._directory}; free some space, then try again"
            )

    def _bury(self, segments: Iterable[Segment]) -> None:
        """Delete the files of segments that readers do not see any more."""
        for segment in segments:
            faults.hit("segment.unlink")
            segment.unlink()

    def _corrupt(self, where: str, error: Exception) -> PartitionStopped:
        """Damage was read: stop, and say where."""
        reason = (
            f"{where}: {error}; the partition is stopped: restore the file from a replica or a "
            "backup, or give the stream up (onelog stream start-over)"
        )
        with self.lock:
            return self._stop(PartitionCorrupt(reason))
