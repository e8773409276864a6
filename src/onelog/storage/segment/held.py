"""The state of a partition that all of its parts share: segments, ends, and whether it runs.

Locks, in the order they are taken: `maintenance` (one sync, trim, truncate or swap at a time; held
while the disk syncs; see `flight.py`), then `lock` (guards this state; never held while the disk
syncs).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import NoReturn

from onelog.base import faults
from onelog.base.errors import (
    Closed,
    PartitionCorrupt,
    PartitionStopped,
    StorageError,
    StorageFull,
)
from onelog.base.ids import Offset
from onelog.kernel import LogEnd, bus_faults
from onelog.storage.engine import LogSettings
from onelog.storage.files import is_full
from onelog.storage.segment.checkpoint import SegmentRow
from onelog.storage.segment.flight import MaintenanceGate, sync_failed
from onelog.storage.segment.recovery import stem_of
from onelog.storage.segment.segment import EngineShared, Segment


class PartitionState(LogEnd):
    """The state of one partition that all of its parts see."""

    __slots__ = (
        "bus_faults", "directory", "sealed_bytes", "segments", "settings", "shared", "start",
        "unreadable",
    )  # fmt: skip

    active: Segment
    """The segment that grows."""
    maintenance: MaintenanceGate
    unsynced: list[Segment]

    def __init__(self, directory: str, shared: EngineShared, settings: LogSettings) -> None:
        self.directory = directory
        self.shared = shared
        self.settings = settings
        self.lock = threading.RLock()
        self.maintenance = MaintenanceGate()
        self.start = Offset(0)
        self.end = self.durable = self.unsaved_bytes = 0
        self.unsynced = []
        self.directory_dirty = False
        self.clock = shared.clock
        self.segments: tuple[list[int], list[Segment]] = ([], [])
        """Base offsets and segments, for readers without a lock: always replaced as a whole."""
        self.sealed_bytes = 0
        self.stopped = None
        self.unreadable: PartitionStopped | None = None
        """The error because of which nothing is read from the disk; bytes in memory are still
        read."""
        self.bus_faults = bus_faults()
        """The faults of mapped pages that were looked at (`kernel/_native/bus.pyx`)."""
        self.closed = False
        self.frozen = False

    # Segments. The lock is held.

    def publish(self, segments: list[Segment]) -> None:
        """Replace the list of segments that readers see, at once."""
        self.sealed_bytes = sum(segment.size_bytes for segment in segments[:-1])
        self.active = segments[-1]
        self.segments = ([segment.base_offset for segment in segments], segments)

    def empty_segment(self, base_offset: int) -> Segment:
        """A new segment, without a file yet."""
        return self._segment(SegmentRow(base_offset, 0), sealed=False)

    def sealed_segment(self, row: SegmentRow) -> Segment:
        """A segment whose file exists."""
        return self._segment(row, sealed=True)

    def _segment(self, row: SegmentRow, *, sealed: bool) -> Segment:
        stem = stem_of(self.directory, row.base_offset)
        return Segment(stem, row, self.shared, self.lock, self.settings, sealed=sealed)

    # Errors.

    def check_running(self) -> None:
        """Raise if the partition is stopped or closed."""
        if self.stopped is not None:
            raise type(self.stopped)(str(self.stopped))
        if self.closed:
            raise Closed(f"partition {self.directory} is closed")

    def stop(self, error: PartitionStopped) -> PartitionStopped:
        """Refuse work from now on; the first error stays. Returns that error, to be raised.

        It is another object than the one that stays: an error that is raised again and again would
        collect causes, in the end itself.
        """
        if self.stopped is None:
            self.stopped = error
        return type(self.stopped)(str(self.stopped))

    def sync_failed(self, error: int) -> None:
        """Stop, because a sync failed with this error number."""
        self.stop(sync_failed(self.directory, OSError(error, os.strerror(error))))

    def failed(self, what: str, error: OSError) -> NoReturn:
        """Turn a system error into ours: a full disk may pass, any other error stops the
        partition."""
        if is_full(error):
            raise StorageFull(
                f"{what} in {self.directory}: no room on the disk; free some space or shorten "
                "the retention, then try again"
            ) from error
        reason = (
            f"{what} in {self.directory} failed ({error}); the partition is stopped: check the "
            "disk, then restart the broker"
        )
        raise self.stop(PartitionStopped(reason)) from error

    def full_or_error(self, what: str, error: OSError) -> NoReturn:
        """Turn a system error into ours where the log itself was not touched."""
        if is_full(error):
            self.failed(what, error)
        raise StorageError(f"{what} in {self.directory} failed: {error}") from error

    def give_up(self, what: str, error: Exception) -> NoReturn:
        """A change was decided but not finished: only recovery can finish it."""
        reason = (
            f"{what} in {self.directory} did not finish ({error}); the partition is stopped: "
            "restart the broker, which finishes it"
        )
        with self.lock:
            raise self.stop(PartitionStopped(reason)) from error

    def corrupt(self, error: Exception) -> PartitionStopped:
        """A read found damage: stop, and say where."""
        reason = (
            f"{self.directory}: {error}; the partition is stopped: restore the file from a replica"
            " or a backup, or give the stream up (onelog stream start-over)"
        )
        with self.lock:
            return self.stop(PartitionCorrupt(reason))


def drop(segments: Iterable[Segment]) -> None:
    """Mark segments as gone for readers. The lock is held."""
    for segment in segments:
        segment.dead = True


def bury(segments: Iterable[Segment]) -> None:
    """Delete the files of segments that readers no longer see."""
    for segment in segments:
        faults.hit("segment.unlink")
        segment.unlink()
