"""A partition: one writer, dense offsets, an end that readers may see, and those who wait for it.

Rules:
- The high watermark is the end that readers see and that answers wait for. Everything below it has
  the stream's durability level: at once for `memory` and `os`, after the group's fdatasync for
  `fsync` (I4). So nobody ever reads a record that a crash could take back. With replicas, a
  `Progress` says how far all of them are; a partition without replicas asks nobody.
- Only a leader accepts appends; any other replica refuses them with the error in `refusal`.
- At most one sync runs; it serves every append made before it began (group commit).
- Producer and epoch state is derived from the batches and snapshotted. The batches are the truth.
- A failed sync or damage stops the partition: every waiter and every later call gets the error
  (I9).
- It has parts, each with its own state and file: `visible` (what readers may see, who waits for it
  and who is fed with it), `lookup` (reading), `replica` (its role, copies, truncation) and `jobs`
  (work of threads on the log). Appending and syncing are here; the answers from its parts are in
  `log/local.py`. Above the log it is a `PartitionHandle`.
All methods run on the loop's thread unless they say otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import cast

from onelog.base.errors import (
    Closed,
    InvalidRecords,
    MessageTooLarge,
    OnelogError,
    PartitionStopped,
    StorageError,
    StorageFull,
    Timeout,
    again,
)
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import (
    ATTR_CONTROL,
    SNAPSHOT_BYTES,
    BatchBuilder,
    BatchInfo,
    place_batches,
    scan_batches,
)
from onelog.log.arrivals import Arrivals
from onelog.log.epochs import EpochHistory
from onelog.log.jobs import Jobs
from onelog.log.local import LocalReads
from onelog.log.lookup import Lookup
from onelog.log.producers import Producers
from onelog.log.progress import Progress, Role, Told
from onelog.log.promises import Appended, Durability, LiveFeed, Timestamps
from onelog.log.replay import encode_state, note_batch, replay_state, try_save
from onelog.log.replica import Replica
from onelog.log.shared import Shared
from onelog.log.visibility import Visibility
from onelog.record.batch import (
    NO_COORDINATOR,
    NO_TIME,
    Marker,
    append_time_of,
    build_marker,
    stamp_batch,
)
from onelog.storage.engine import Cold, PartitionLog, SyncDone

__all__ = ["SNAPSHOT_BYTES", "Appended", "Durability", "LiveFeed", "Partition", "Timestamps"]


class Partition(LocalReads):
    """One partition of a stream."""

    __slots__ = (
        "_durability", "id", "message_bytes_max", "progress", "replica", "stream", "troubles",
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
        replicated: bool = False,
    ) -> None:
        """Open it as a leader without replicas or, if `replicated`, as a follower until
        `become`."""
        self.stream = stream
        self.id = partition
        self.place = f"{stream}/{partition}"
        self.log = log
        self.log_end = log.log_end
        self.shared = shared
        self.troubles = shared.troubles
        # Nobody knows yet how far the other replicas are: at least as far as the kept mark says.
        known = max(log.start_offset, log.kept_high_watermark) if replicated else log.end_offset
        self.producers, self.epochs = replay_state(log, shared.clock.now_ms(), known)
        # Records that survived the start may not be on the disk: they are synced before they are
        # shown.
        if durability is Durability.FSYNC and log.durable_offset < log.end_offset:
            log.sync()
        self.end_offset = log.end_offset
        self.durable = log.durable_offset
        stop = self.stop  # one bound method for all parts: there may be ten thousand partitions
        arrivals = Arrivals(self.place, log, shared.couriers, shared.troubles, stop)
        visible = Visibility(
            self.place, log, self.producers, shared.troubles, shared.unseen, known, arrivals
        )
        super().__init__(visible, Lookup(self.place, log, visible, stop), arrivals)
        self.jobs = Jobs(self.place, stop)
        self.stopped = None
        self.refusal = None
        self._durability = durability
        self.progress: Progress | None = None
        """Knows how far the other replicas are; None: there are none."""
        self.watch(None)
        self.message_bytes_max = message_bytes_max
        self.stamps = timestamps is Timestamps.APPEND
        self.leader_epoch = self.epochs.latest
        self.is_noted = bool(self.epochs.rows())
        self.records_appended = 0
        self.syncs = 0
        self.syncing = False
        self.has_begun = log.durable_offset > 0
        self.unsnapshotted_bytes = 0
        self.replica = Replica(self)
        if replicated:
            self.replica.become(Role.FOLLOWER, self.leader_epoch)

    # -- writing

    def append_built(self, builder: BatchBuilder, index_topics: bool) -> Appended:
        """Seal what `builder` staged as one batch at the end of the log.

        Whatever happens, the builder is empty afterwards.
        """
        if self.refusal is not None or self.stamps:
            return self._append_stamped(builder, index_topics=index_topics)
        base, count, epoch = self.end_offset, builder.count, self.leader_epoch
        topics = builder.topics() if index_topics and self.visible.topics_wanted else None
        try:
            data = self.log.append_built(builder, epoch, index_topics)
        except StorageError as error:
            self.append_failed(error)
            raise
        end = Offset(base + count)
        if not self.is_noted:
            self.note_epoch(base)
        self.records_appended += count
        self._appended(end, data, topics)
        return Appended(base, end)

    def _append_stamped(self, builder: BatchBuilder, *, index_topics: bool) -> Appended:
        topics = builder.topics() if index_topics else None
        batch = bytearray(builder.seal(self.end_offset, self.leader_epoch))
        self._refuse()
        info = stamp_batch(batch, scan_batches(batch, 0, False)[0], self.shared.clock.now_ms())
        return self._write(batch, [info], topics)

    def check_batch(self, info: BatchInfo) -> Appended | None:
        """Check a batch that a client built: None to go on, or the append that it repeats."""
        self._refuse()
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
        """The append time of a batch that retention may have removed."""
        if offset < self.start_offset:
            return NO_TIME
        try:
            data = self.log.read(offset, 1, self.end_offset)
        except Cold:
            return NO_TIME  # the answer can do without it, and does not wait for the disk
        return append_time_of(scan_batches(data, 0, False)[0]) if data else NO_TIME

    def append_checked(self, data: bytearray | memoryview) -> list[BatchInfo]:
        """Append batches that `check_batch` let pass, no two of one producer. Returns them as
        stored.

        Their offsets are written into `data`, which belongs to the partition from now on.
        """
        self._refuse()
        if self.visible.feeds and isinstance(data, memoryview):
            data = bytearray(data)  # feeds may keep it, and would keep all that is behind the view
        placed = place_batches(data, self.end_offset, self.leader_epoch)
        if self.stamps:
            now_ms = self.shared.clock.now_ms()
            placed = [stamp_batch(data, info, now_ms) for info in placed]
        self._write(cast("bytearray", data), placed, None)  # no feed sees a view
        return placed

    def append_marker(
        self,
        marker: Marker,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = NO_COORDINATOR,
    ) -> Appended:
        """End a producer's transaction here with a control batch."""
        self._refuse()
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        now_ms, said = self.shared.clock.now_ms(), max(coordinator_epoch, 0)
        data = bytearray(build_marker(marker, producer_id, producer_epoch, now_ms, said))
        return self._write(data, place_batches(data, self.end_offset, self.leader_epoch), None)

    def end_transaction(
        self,
        marker: Marker,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = NO_COORDINATOR,
    ) -> Appended:
        """As `append_marker`, with the epoch that is known here if that one is higher.

        A client may have claimed a higher epoch for its producer id. That must not keep the
        transaction open.
        """
        known = self.producers.entry(producer_id)
        epoch = producer_epoch if known is None else max(producer_epoch, known.epoch)
        return self.append_marker(marker, producer_id, epoch, coordinator_epoch)

    def _write(
        self, data: bytes | bytearray, infos: Sequence[BatchInfo], topics: bytes | None
    ) -> Appended:
        base = Offset(infos[0].base_offset)
        assert base == self.end_offset, "a partition has one writer"
        self._log_append(data, infos, topics)
        end = Offset(infos[-1].last_offset + 1)
        if not self.is_noted:
            self.note_epoch(base)
        self.records_appended += end - base
        self._appended(end, data)
        return Appended(base, end)

    def append_as_is(self, data: bytes | bytearray, infos: Sequence[BatchInfo]) -> None:
        """Append batches that have their offsets and epochs already; for `replica`, which checked
        them."""
        self._log_append(data, infos, None)
        for info in infos:
            self.epochs.note(info.leader_epoch, info.base_offset)
            self.records_appended += info.count
        self._appended(Offset(infos[-1].last_offset + 1), data)

    def _log_append(
        self, data: bytes | bytearray, infos: Sequence[BatchInfo], topics: bytes | None
    ) -> None:
        try:
            self.log.append(data, infos, topics)
        except StorageError as error:
            self.append_failed(error)
            raise
        for info in infos:
            if info.producer_id >= 0:
                note_batch(self.producers, data, info, self.shared.clock.now_ms())

    def note_epoch(self, start: Offset) -> None:
        """Note that the leader's epoch begins at `start`, unless it began before."""
        self.epochs.note(self.leader_epoch, start)
        self.is_noted = True

    def _appended(self, end: Offset, data: bytes | bytearray, topics: bytes | None = None) -> None:
        """The log now ends at `end`, with `data` as its last batches: show them when they may be
        seen."""
        self.end_offset = end
        self.unsnapshotted_bytes += len(data)
        visible = self.visible
        if self.at_once:
            visible.show(end, data, topics)
            if self.unsnapshotted_bytes >= SNAPSHOT_BYTES:
                self.request_sync()
            return
        if visible.feeds:
            visible.hold(end, data, topics)
        if self.progress is not None:
            self.moved()
        if self._durability is Durability.FSYNC or self.unsnapshotted_bytes >= SNAPSHOT_BYTES:
            self.request_sync()

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise again(self.refusal)

    def append_failed(self, error: StorageError) -> None:
        """The log accepted nothing: it stopped, or the disk is full."""
        if isinstance(error, PartitionStopped):
            self.stop(error)
        elif isinstance(error, StorageFull):
            self.shared.room.refused(error)

    # -- durability

    @property
    def durability(self) -> Durability:
        """What an answer promises (I4)."""
        return self._durability

    def promise(self, durability: Durability) -> None:
        """Answer at another level from now on. Waiters are called as soon as that level holds."""
        self._durability = durability
        self.watch(self.progress)
        if self.stopped is None:
            self.moved()

    @property
    def is_settled(self) -> bool:
        """Whether its end is no lower than any leader before this one may have shown it."""
        return self.progress is None or self.progress.is_settled

    @property
    def first_told(self) -> Offset | None:
        """What its leader showed first to this copy; None: it leads, or has heard nothing."""
        return self.progress.first if isinstance(self.progress, Told) else None

    def lost_since(self, epoch: int) -> bool:
        """Whether it may have begun again without records of `epoch` that readers saw."""
        return self.replica.lost_in > epoch

    @property
    def is_fresh(self) -> bool:
        """Whether this leader may still show it: see `Progress`."""
        return self.progress is None or self.progress.is_fresh

    def watch(self, progress: Progress | None) -> None:
        """From now on, ask `progress` how far all replicas are; None: there are no others."""
        self.progress = progress
        is_synced = self._durability is Durability.FSYNC
        self.at_once = progress is None and not is_synced
        self.by_sync = progress is None and is_synced

    def moved(self) -> None:
        """An end moved, here or on another replica: show the records that may be seen now."""
        if self.progress is not None:
            self.replica.moved(self.progress, self.durable)
        elif self._durability is Durability.FSYNC:
            self.visible.advance(self.durable)
        else:
            self.visible.advance(self.end_offset)

    def request_sync(self) -> None:
        """Begin to make everything appended so far durable, unless a sync is running."""
        if self.syncing or self.jobs.held is not None or self.stopped is not None:
            return
        self.syncing = True
        self.shared.syncs.begin(self.place)
        log, offset, state = self.log, self.end_offset, self._due_snapshot()
        begin = partial(log.begin_sync, self.shared.syncer.ask)
        done: SyncDone = self._file_synced
        if state is not None:
            done = partial(self._file_synced_for, offset, state)
        if self.jobs.try_start(begin, done):
            return

        def work() -> tuple[Offset, bool]:
            durable = log.sync()
            return durable, state is None or try_save(log, offset, state)

        self.jobs.start(self.shared.syncer, work, self._synced)

    def _file_synced(self, durable: Offset | None, error: BaseException | None) -> None:
        self._synced(None if durable is None else (durable, True), error)

    def _file_synced_for(
        self, offset: Offset, state: bytes, durable: Offset | None, error: BaseException | None
    ) -> None:
        """A sync is over, and a state as of `offset` is to be saved: in a thread that nobody's sync
        waits for."""
        self._file_synced(durable, error)
        if self.stopped is not None:
            return
        if self.jobs.held is not None:  # the log is about to be cut: the next sync saves one
            self.unsnapshotted_bytes = SNAPSHOT_BYTES
            return
        save = partial(try_save, self.log, offset, state)
        self.jobs.start(self.shared.syncer.chores, save, self._saved)

    def _saved(self, saved: bool | None, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, Closed):
            self.stop(error if isinstance(error, OnelogError) else StorageError(str(error)))
        if not saved:
            self.unsnapshotted_bytes = SNAPSHOT_BYTES

    def _synced(self, result: tuple[Offset, bool] | None, error: BaseException | None) -> None:
        self.shared.syncs.end(self.place)
        self.syncing = False
        self.syncs += 1
        if error is not None or result is None:
            failure = error if isinstance(error, OnelogError) else StorageError(str(error))
            self.stop(failure)
            return
        durable, saved = result
        if not saved:
            self.unsnapshotted_bytes = SNAPSHOT_BYTES
        self.made_durable(durable)

    def made_durable(self, durable: Offset) -> None:
        """A sync is over, and everything below `durable` is on the disk."""
        if not self.has_begun:
            self.has_begun = True
            self.shared.begun(self)
        self.durable = durable
        self.moved()
        if self._durability is Durability.FSYNC and self.end_offset > durable:
            self.request_sync()

    def _due_snapshot(self) -> bytes | None:
        if self.unsnapshotted_bytes < SNAPSHOT_BYTES:
            return None
        self.unsnapshotted_bytes = 0
        return encode_state(self.producers, self.epochs)

    # -- life

    def stop(self, error: OnelogError) -> None:
        """Refuse everything from now on; everybody who waits gets the error."""
        if self.stopped is None:
            self.stopped = self.refusal = error
            self.visible.stop(error)
            self.replica.on_stop()

    def adopt_cut(self, producers: Producers, epochs: EpochHistory) -> None:
        """The log was cut: take the state that its batches give now. For `replica`."""
        was, end = self.end_offset, self.log.end_offset
        self.producers = self.visible.producers = producers
        self.epochs = epochs
        self.end_offset, self.durable = end, min(self.durable, end)
        gone = Timeout(f"{self.place} was cut at {end}: the record is not here any more")
        self.visible.cut(end)
        self.visible.fail_writers(end, was, gone)

    async def flush(self) -> None:
        """Sync now, at any durability level. Returns when it is done."""
        await self.jobs.run(self.shared.syncer, self.log.sync)

    async def trim(self, start: Offset) -> None:
        """Delete records below `start` (at most the high watermark), durably."""
        start = min(start, self.high_watermark)
        log, offset, state = self.log, self.end_offset, encode_state(self.producers, self.epochs)
        hold = self.shared.hold

        def work() -> None:
            # Trimmed batches can no longer be replayed. A state beyond the durable end would be
            # lost in a crash, so that end moves first. A full disk must not prevent a trim, because
            # a trim frees space.
            log.sync()
            try_save(log, offset, state)
            with hold.leaving():
                log.trim(start)

        await self.jobs.run(self.shared.syncer.chores, work)
        self.producers.forget_before(self.log.start_offset)
        self.arrivals.trimmed(self.log.start_offset)

    def close_deleted(self) -> None:
        """In a thread: close the files of a stopped partition, which will be deleted."""
        self.log.close()

    async def close(self) -> None:
        """Snapshot and close cleanly. Waiters get an error."""
        if self.jobs.held is not None:
            await asyncio.wait([self.jobs.held])
        if self.stopped is not None:
            await self.shared.syncer.chores.run(self.log.close)  # its files are closed all the same
            return
        state, offset = encode_state(self.producers, self.epochs), self.end_offset
        known = None if self.progress is None else self.visible.high_watermark

        def work() -> None:
            try:
                if offset:  # nothing is saved for a partition that was never written to
                    try_save(self.log, offset, state)
                if known is not None:
                    with contextlib.suppress(StorageFull):  # the mark kept before still counts
                        self.log.keep_high_watermark(known)
            finally:
                self.log.close()

        try:
            await self.shared.syncer.chores.run(work)
        finally:
            self.stop(PartitionStopped(f"{self.stream}/{self.id} is closed"))
