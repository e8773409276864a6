"""Brings a partition to disk: syncs, and the checkpoint from which recovery starts.

Rules: one sync covers the active segment, the segments sealed since the last sync, and the
directory. The checkpoint is written when the list of segments changed, or after `CHECKPOINT_BYTES`;
without room for a new one the old one stays. A failed sync stops the partition. Usually the active
segment's file is all that is to be synced: `begin` leaves that to a thread of the kernel.
"""

from __future__ import annotations

import msgspec

from onelog.base import faults
from onelog.base.errors import StorageFull
from onelog.base.ids import Offset
from onelog.kernel import CHECKPOINT_BYTES
from onelog.storage.engine import AskSync, SyncDone
from onelog.storage.files import OpenFile, is_full, sync_directory
from onelog.storage.segment.checkpoint import Checkpoint
from onelog.storage.segment.files import sync_path
from onelog.storage.segment.flight import Flight, sync_failed
from onelog.storage.segment.held import PartitionState
from onelog.storage.segment.recovery import RecoveredLog


class PartitionSync:
    """Syncs one partition and keeps its checkpoint."""

    __slots__ = ("_box", "_held", "_is_placed", "saved")

    def __init__(self, held: PartitionState, found: RecoveredLog) -> None:
        self._held = held
        self._box = found.box
        self.saved: Checkpoint = found.checkpoint
        """The checkpoint on disk. Maintenance is held to change it."""
        self._is_placed = False
        """Whether the directory is known to be durable in those above it."""

    def sync(self) -> Offset:
        """Make everything appended before this call survive power loss."""
        held = self._held
        asked = held.end
        with held.maintenance:
            if held.durable < asked or held.stopped is not None or held.closed:
                self.run(save=False)
            return Offset(held.durable)

    def begin(self, ask: AskSync, done: SyncDone) -> bool:
        """Have the active segment's file synced, if that is all that `sync` would do now."""
        gate = self._held.maintenance
        if not gate.try_enter():
            return False  # a sync, trim or swap is under way
        try:
            with self._held.lock:
                file = self._only_file()
                if file is None:
                    return False
                flight = Flight(self._held, self._held.active, done)
            ticket = ask(file, flight.answered)
            if ticket is None:
                return False
            gate.fly(flight, ticket)
        finally:
            gate.leave()
        return True

    def _only_file(self) -> OpenFile | None:
        """The active segment's open file; None: more is to be done, or nothing. The lock is
        held."""
        held = self._held
        segment = held.active
        writer = segment.writer
        if (
            held.durable >= held.end
            or held.stopped is not None
            or held.closed
            or writer is None
            or not writer.dirty
            or held.unsynced
            or held.directory_dirty
            or held.unsaved_bytes >= CHECKPOINT_BYTES
            or segment.is_note_due
            or faults.armed
        ):
            return None
        return writer.file

    def run(self, *, save: bool) -> bool:
        """Sync, and save the checkpoint if asked or due. Returns whether it was saved. Maintenance
        is held."""
        held = self._held
        with held.lock:
            held.check_running()
            end, segment, sealed = held.end, held.active, list(held.unsynced)
            grown, held.directory_dirty = held.directory_dirty, False
            size = segment.size_bytes
            save = save or grown or bool(sealed) or self._held.unsaved_bytes >= CHECKPOINT_BYTES
            rows = [old.row() for old in held.segments[1]] if save else []
            unsaved = self._held.unsaved_bytes
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
            raise held.stop(sync_failed(held.directory, error)) from error
        with held.lock:
            held.durable = max(held.durable, end)
            held.unsynced = [old for old in held.unsynced if old not in sealed]
            if writer is not None and segment.size_bytes == size:
                writer.dirty = False
        for old in sealed:
            old.close_writer()
        if not save:
            return False
        saved = self.next(end_offset=end, sealed=tuple(rows[:-1]), tail=rows[-1])
        if not self.save(saved, required=False):
            return False
        self._held.unsaved_bytes -= unsaved
        return True

    def _sync_names(self) -> None:
        """Make the names of the segment files durable and, once, those of their directories."""
        if self._is_placed:
            sync_directory(self._held.directory)
        else:
            sync_path(self._held.directory)
            self._is_placed = True

    def seal_active(self) -> None:
        """Begin a new segment, unless the active one is empty. The next sync includes the old one.

        The lock is held.
        """
        held = self._held
        segment = held.active
        if segment.size_bytes == 0:
            return
        try:
            faults.hit("segment.roll")
        except OSError as error:
            held.failed("roll", error)
        segment.seal()
        held.unsynced.append(segment)
        held.publish([*held.segments[1], held.empty_segment(held.end)])

    # The checkpoint. Maintenance is held.

    def next(self, **changes: object) -> Checkpoint:
        """The checkpoint that follows the saved one; changes that it had begun are finished."""
        return msgspec.structs.replace(self.saved, **{"swap": (), "cut": False, **changes})

    def save(self, checkpoint: Checkpoint, *, required: bool = True) -> bool:
        """Write the checkpoint. Without room for it the old one stays."""
        try:
            self._box.save(checkpoint)
        except OSError as error:
            if is_full(error) and not required:
                self._held.unsaved_bytes = max(self._held.unsaved_bytes, CHECKPOINT_BYTES)
                return False
            self._held.failed("checkpoint", error)
        self.saved = checkpoint
        return True

    def sync_and_save(self) -> None:
        """Bring the recovery point to the log's end, or raise."""
        if not self.run(save=True):
            raise StorageFull(
                f"no room for the checkpoint in {self._held.directory}; free some space, then try "
                "again"
            )

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep durably how far all replicas that count are."""
        held = self._held
        with held.maintenance:
            with held.lock:
                held.check_running()
                known = min(offset, held.end)
            if known > self.saved.high_watermark:
                self.save(self.next(high_watermark=int(known)))

    def finish(self) -> bool:
        """Sync everything for a close. Returns whether the checkpoint describes all of the log.

        Maintenance is held.
        """
        with self._held.lock:
            active = self._held.active
            if active.writer is not None:
                active.shrink()
        return not self._changed() or self.run(save=True)

    def _changed(self) -> bool:
        """Whether the log differs from the checkpoint."""
        saved, active = self.saved, self._held.active
        return (
            saved.end_offset != self._held.end
            or saved.tail.base_offset != active.base_offset
            or saved.tail.size_bytes != active.size_bytes
            or saved.swap != ()
            or bool(self._held.unsynced)
        )
