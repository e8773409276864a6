"""A partition: one writer, dense offsets, an end that readers may see, and who waits for it.

Rules:
- The high watermark is the end that readers see and that answers wait for. It is the end of what
  holds the stream's durability level: at once for `memory` and `os`, after the group's fdatasync
  for `fsync` (I4). So nobody ever reads a record that a crash could take back.
- At most one sync runs; it serves every append made before it began (group commit).
- Producer and epoch state is derived from the batches and snapshotted, never the truth itself.
- A failed sync or found damage stops the partition: every waiter and every later call gets the
  error (I9).
All methods run on the loop's thread unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.errors import (
    InvalidRecords,
    InvalidRequest,
    MessageTooLarge,
    OnelogError,
    PartitionStopped,
    StorageError,
    StorageFull,
)
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import ATTR_CONTROL, BatchBuilder, BatchInfo, place_batches, scan_batches
from onelog.log.lookup import Lookup
from onelog.log.promises import Appended, Durability, LiveFeed, Timestamps
from onelog.log.replay import encode_state, note_batch, replay_state, try_save
from onelog.log.shared import Shared
from onelog.record.batch import NO_TIME, Marker, append_time_of, build_marker, stamp_batch
from onelog.storage.engine import PartitionLog

__all__ = ["SNAPSHOT_BYTES", "Appended", "Durability", "LiveFeed", "Partition", "Timestamps"]

SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""Appended bytes after which the derived state is snapshotted anew."""


class Partition(Lookup):
    """One partition of a stream."""

    __slots__ = (
        "_clock", "_has_begun", "_shared", "_syncer", "_syncing", "_unsnapshotted_bytes",
        "durability", "epochs", "leader_epoch", "message_bytes_max", "records_appended",
        "syncs", "timestamps",
    )  # fmt: skip

    def __init__(
        self,
        stream: str,
        partition: PartitionId,
        log: PartitionLog,
        *,
        durability: Durability,
        message_bytes_max: int,
        shared: Shared,
        timestamps: Timestamps = Timestamps.CREATE,
    ) -> None:
        clock = shared.clock
        producers, self.epochs = replay_state(log, clock.now_ms())
        # What survived the start is as durable as it will get; it is synced before it is shown.
        if durability is Durability.FSYNC and log.durable_offset < log.end_offset:
            log.sync()
        super().__init__(stream, partition, log, producers, shared.troubles, shared.unseen)
        self.durability = durability
        self.message_bytes_max = message_bytes_max
        self.timestamps = timestamps
        self.leader_epoch = self.epochs.latest
        self.records_appended = 0
        self.syncs = 0
        self._shared = shared
        self._syncer = shared.syncer
        self._clock = clock
        self._syncing = False
        self._has_begun = log.durable_offset > 0
        """Whether it was told that this partition holds durable records."""
        self._unsnapshotted_bytes = 0

    # -- writing

    def append_built(self, builder: BatchBuilder, *, index_topics: bool) -> Appended:
        """Seal what `builder` staged as one batch at the end of the log.

        Whatever happens, the builder is empty afterwards.
        """
        if self.stopped is not None or self.timestamps is Timestamps.APPEND:
            return self._append_stamped(builder, index_topics=index_topics)
        base, count, epoch = self.end_offset, builder.count, self.leader_epoch
        topics = builder.topics() if index_topics and self.topics_wanted else None
        try:
            data = self.log.append_built(builder, epoch, index_topics=index_topics)
        except StorageError as error:
            self._refused(error)
            raise
        end = Offset(base + count)
        self.epochs.note(epoch, base)
        self._appended(end, data, topics)
        return Appended(base, end)

    def _append_stamped(self, builder: BatchBuilder, *, index_topics: bool) -> Appended:
        topics = builder.topics() if index_topics else None
        batch = bytearray(builder.seal(self.end_offset, self.leader_epoch))
        self._refuse_if_stopped()
        info = stamp_batch(batch, scan_batches(batch, 0, False)[0], self._clock.now_ms())
        return self._write(batch, [info], topics)

    def append_batches(self, data: bytearray, infos: Sequence[BatchInfo]) -> Appended:
        """Append batches that a client built; their offsets are set in place.

        The caller has validated CRC and records. Idempotent producers send one batch at a time.
        """
        for info in infos:
            if info.producer_id >= 0 and len(infos) > 1:
                raise InvalidRequest("an idempotent producer sends one batch per partition")
            repeated = self.check_batch(info)
            if repeated is not None:
                return repeated
        placed = self.append_checked(data)
        first, end = placed[0], Offset(placed[-1].last_offset + 1)
        return Appended(Offset(first.base_offset), end, append_time_ms=append_time_of(first))

    def check_batch(self, info: BatchInfo) -> Appended | None:
        """Judge a batch that a client built: None to go on, or the append that it repeats."""
        self._refuse_if_stopped()
        if info.size_bytes > self.message_bytes_max:
            raise MessageTooLarge(
                f"a batch of {info.size_bytes} bytes is larger than the"
                f" {self.message_bytes_max} that stream {self.stream} takes (message.max_bytes)"
            )
        if info.attributes & ATTR_CONTROL:
            raise InvalidRecords("a client may not write control batches")
        if info.producer_id < 0:
            return None
        repeated = self.producers.check(info)
        if repeated is None:
            return None
        base, end = Offset(repeated.base_offset), Offset(repeated.last_offset + 1)
        return Appended(base, end, duplicate=True, append_time_ms=self._stored_time(base))

    def _stored_time(self, offset: Offset) -> int:
        """The append time of a batch that may have left already."""
        if offset < self.start_offset:
            return NO_TIME
        data = self.log.read(offset, 1, self.end_offset)
        return append_time_of(scan_batches(data, 0, False)[0]) if data else NO_TIME

    def append_checked(self, data: bytearray) -> list[BatchInfo]:
        """Append batches that `check_batch` let pass, no two of one producer; as they now are.

        Their offsets are set in place.
        """
        self._refuse_if_stopped()
        placed = place_batches(data, self.end_offset, self.leader_epoch)
        if self.timestamps is Timestamps.APPEND:
            now_ms = self._clock.now_ms()
            placed = [stamp_batch(data, info, now_ms) for info in placed]
        self._write(data, placed, None)
        return placed

    def append_marker(
        self, marker: Marker, producer_id: int, producer_epoch: int, coordinator_epoch: int = 0
    ) -> Appended:
        """End a producer's transaction here with a control batch."""
        self._refuse_if_stopped()
        self.producers.check_marker(producer_id, producer_epoch)
        data = bytearray(
            build_marker(
                marker, producer_id, producer_epoch, self._clock.now_ms(), coordinator_epoch
            )
        )
        return self._write(data, place_batches(data, self.end_offset, self.leader_epoch), None)

    def _write(
        self, data: bytes | bytearray, infos: Sequence[BatchInfo], topics: bytes | None
    ) -> Appended:
        base = Offset(infos[0].base_offset)
        assert base == self.end_offset, "a partition has one writer"
        try:
            self.log.append(data, infos, topics)
        except StorageError as error:
            self._refused(error)
            raise
        end = Offset(infos[-1].last_offset + 1)
        for info in infos:
            if info.producer_id >= 0:
                note_batch(self.producers, data, info, self._clock.now_ms())
        self.epochs.note(infos[0].leader_epoch, base)
        self._appended(end, data)
        return Appended(base, end)

    def _appended(self, end: Offset, data: bytes | bytearray, topics: bytes | None = None) -> None:
        """The log ends at `end` now, behind `data`: let it be seen when it may be."""
        self.records_appended += end - self.end_offset
        self.end_offset = end
        self._unsnapshotted_bytes += len(data)
        if self.durability is Durability.FSYNC:
            if self.feeds:
                self._hold(end, data, topics)
            self.request_sync()
            return
        self._show(end, data, topics)
        if self._unsnapshotted_bytes >= SNAPSHOT_BYTES:
            self.request_sync()

    def _refused(self, error: StorageError) -> None:
        """The log took nothing: it stopped, or there is no room."""
        if isinstance(error, PartitionStopped):
            self.stop(error)
        elif isinstance(error, StorageFull):
            self._shared.room.refused(error)

    # -- durability

    def promise(self, durability: Durability) -> None:
        """Answer at another level from now on; who waits is answered as soon as it holds."""
        self.durability = durability
        if durability is not Durability.FSYNC and self.stopped is None:
            self._advance(self.end_offset)

    def request_sync(self) -> None:
        """Begin to make everything appended so far durable, unless a sync runs already."""
        if self._syncing or self.stopped is not None:
            return
        self._syncing = True
        log, offset, state = self.log, self.end_offset, self._due_snapshot()

        def work() -> tuple[Offset, bool]:
            durable = log.sync()
            return durable, state is None or try_save(log, offset, state)

        self._shared.syncs.begin(self.place)
        self._syncer.start(work, self._synced)

    def _synced(self, result: tuple[Offset, bool] | None, error: BaseException | None) -> None:
        self._shared.syncs.end(self.place)
        self._syncing = False
        self.syncs += 1
        if error is not None or result is None:
            failure = error if isinstance(error, OnelogError) else StorageError(str(error))
            self.stop(failure)
            return
        durable, saved = result
        if not saved:
            self._unsnapshotted_bytes = SNAPSHOT_BYTES
        if not self._has_begun:
            self._has_begun = True
            self._shared.begun(self)
        self._advance(durable)
        if self.durability is Durability.FSYNC and self.end_offset > durable:
            self.request_sync()

    def _due_snapshot(self) -> bytes | None:
        if self._unsnapshotted_bytes < SNAPSHOT_BYTES:
            return None
        self._unsnapshotted_bytes = 0
        return encode_state(self.producers, self.epochs)

    # -- life

    async def flush(self) -> None:
        """Sync now, whatever the durability level; returns when it is done."""
        await self._run(self.log.sync)

    async def _run(self, work: Callable[[], object]) -> None:
        """Run storage work in a thread; when it finds the log stopped, so is the partition."""
        try:
            await self._syncer.run(work)
        except PartitionStopped as error:
            self.stop(error)
            raise

    async def trim(self, start: Offset) -> None:
        """Delete records below `start` (at most the high watermark), durably."""
        start = min(start, self.high_watermark)
        log, offset, state = self.log, self.end_offset, encode_state(self.producers, self.epochs)

        def work() -> None:
            # What is trimmed can no longer be replayed. A state beyond the durable end would be
            # lost in a crash, so that end moves first. A full disk must not keep trim from helping.
            log.sync()
            try_save(log, offset, state)
            log.trim(start)

        await self._run(work)
        self.producers.forget_before(self.log.start_offset)

    def close_deleted(self) -> None:
        """In a thread: let go of the files of a stopped partition, which will be deleted."""
        self.log.close()

    async def close(self) -> None:
        """Snapshot and close cleanly; waiters are told that it will not come."""
        if self.stopped is not None:
            await self._syncer.run(self.log.close)  # its files are let go all the same
            return
        state, offset = encode_state(self.producers, self.epochs), self.end_offset

        def work() -> None:
            try:
                if offset:  # nothing is to be known of what was never written to
                    try_save(self.log, offset, state)
            finally:
                self.log.close()

        try:
            await self._syncer.run(work)
        finally:
            self.stop(PartitionStopped(f"{self.stream}/{self.id} is closed"))
