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

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.clock import Clock
from onelog.base.errors import (
    Closed,
    CorruptBatch,
    InvalidRecords,
    InvalidRequest,
    MessageTooLarge,
    OffsetOutOfRange,
    OnelogError,
    PartitionCorrupt,
    PartitionStopped,
    StorageError,
)
from onelog.base.ids import Offset, PartitionId, TimestampMs
from onelog.kernel import (
    ATTR_CONTROL,
    BatchBuilder,
    BatchInfo,
    decode_batch,
    place_batches,
    scan_batches,
    topic_hash,
)
from onelog.log.producers import AbortedTxn
from onelog.log.promises import Appended, Durability, LiveFeed, Timestamps
from onelog.log.replay import encode_state, note_batch, replay_state, try_save
from onelog.log.syncer import Syncer
from onelog.log.wakeup import Callback, Waiter, Waiters, as_future
from onelog.record.batch import (
    NO_TIME,
    Marker,
    append_time_of,
    build_marker,
    inflated_records,
    stamp_batch,
)
from onelog.storage.engine import PartitionLog

__all__ = ["SNAPSHOT_BYTES", "Appended", "Durability", "LiveFeed", "Partition", "Timestamps"]

SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""Appended bytes after which the derived state is snapshotted anew."""


class Partition:
    """One partition of a stream."""

    __slots__ = (
        "_clock",
        "_stable_waiters",
        "_syncer",
        "_syncing",
        "_unseen",
        "_unsnapshotted_bytes",
        "_waiters",
        "durability",
        "end_offset",
        "epochs",
        "fed_topics",
        "feeds",
        "high_watermark",
        "id",
        "leader_epoch",
        "log",
        "message_bytes_max",
        "producers",
        "records_appended",
        "stopped",
        "stream",
        "syncs",
        "timestamps",
        "topics_wanted",
    )

    def __init__(
        self,
        stream: str,
        partition: PartitionId,
        log: PartitionLog,
        *,
        durability: Durability,
        message_bytes_max: int,
        syncer: Syncer,
        clock: Clock,
        timestamps: Timestamps = Timestamps.CREATE,
    ) -> None:
        self.stream = stream
        self.id = partition
        self.log = log
        self.durability = durability
        self.message_bytes_max = message_bytes_max
        self.timestamps = timestamps
        self.leader_epoch = 0
        self.stopped: OnelogError | None = None
        self.records_appended = 0
        self.syncs = 0
        self._syncer = syncer
        self._clock = clock
        self._syncing = False
        self._unsnapshotted_bytes = 0
        self._waiters = Waiters()
        self._stable_waiters = Waiters()
        self.feeds: tuple[LiveFeed, ...] = ()
        """Get each run of batches when it becomes visible, without reading the log back."""
        self._unseen: list[tuple[Offset, bytes | bytearray, bytes | None]] = []
        self.topics_wanted = False
        """Whether a feed looks at `fed_topics`."""
        self.fed_topics: bytes | None = None
        """Of what is being fed: its topics as the topic index has them; None: look at the data."""
        self.producers, self.epochs = replay_state(log, clock.now_ms())
        self.leader_epoch = self.epochs.latest
        self.end_offset = log.end_offset
        # What survived the start is as durable as it will get; it is synced before it is shown.
        if durability is Durability.FSYNC and log.durable_offset < self.end_offset:
            log.sync()
        self.high_watermark = self.end_offset

    # -- where it begins and ends

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return self.log.start_offset

    @property
    def last_stable_offset(self) -> Offset:
        """End of what is decided: no record of an open transaction lies below it."""
        first_open = self.producers.first_open_offset
        return self.high_watermark if first_open is None else min(first_open, self.high_watermark)

    def aborted_between(self, start: int, end: int) -> list[AbortedTxn]:
        """Aborted transactions with records in [start, end)."""
        return self.producers.aborted_between(start, end)

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
        except PartitionStopped as error:
            self.stop(error)
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
        except PartitionStopped as error:
            self.stop(error)
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
                self._unseen.append((end, data, topics))
            self.request_sync()
            return
        if self._unseen or self._waiters or self._stable_waiters:
            # Whom this wakes may append in turn: what is seen stays in the order of the log.
            self._unseen.append((end, data, topics))
            self._advance(end)
        else:
            self.high_watermark = end
            self.producers.settle(end)
            self.fed_topics = topics
            for feed in self.feeds:
                feed(data)
        if self._unsnapshotted_bytes >= SNAPSHOT_BYTES:
            self.request_sync()

    # -- durability

    def request_sync(self) -> None:
        """Begin to make everything appended so far durable, unless a sync runs already."""
        if self._syncing or self.stopped is not None:
            return
        self._syncing = True
        log, offset, state = self.log, self.end_offset, self._due_snapshot()

        def work() -> tuple[Offset, bool]:
            durable = log.sync()
            return durable, state is None or try_save(log, offset, state)

        self._syncer.start(work, self._synced)

    def _synced(self, result: tuple[Offset, bool] | None, error: BaseException | None) -> None:
        self._syncing = False
        self.syncs += 1
        if error is not None or result is None:
            failure = error if isinstance(error, OnelogError) else StorageError(str(error))
            self.stop(failure)
            return
        durable, saved = result
        if not saved:
            self._unsnapshotted_bytes = SNAPSHOT_BYTES
        if self.durability is Durability.FSYNC:
            self._advance(durable)
            if self.end_offset > durable:
                self.request_sync()

    def _due_snapshot(self) -> bytes | None:
        if self._unsnapshotted_bytes < SNAPSHOT_BYTES:
            return None
        self._unsnapshotted_bytes = 0
        return encode_state(self.producers, self.epochs)

    def _advance(self, end: Offset) -> None:
        if end > self.high_watermark:
            self.high_watermark = end
            self.producers.settle(end)
            self._waiters.advance(end)
            if self._stable_waiters:
                self._stable_waiters.advance(self.last_stable_offset)
            if self._unseen:
                self._feed_live(end)

    def _feed_live(self, end: Offset) -> None:
        seen = [row for row in self._unseen if row[0] <= end]
        del self._unseen[: len(seen)]
        for feed in self.feeds:
            for _end, data, self.fed_topics in seen:
                feed(data)

    def follow(self, feed: LiveFeed) -> None:
        """Hand what becomes visible from now on to `feed`, too."""
        self.feeds = (*self.feeds, feed)

    def unfollow(self, feed: LiveFeed) -> None:
        """Hand nothing more to `feed`."""
        self.feeds = tuple(known for known in self.feeds if known is not feed)

    # -- waiting

    def when_visible(self, offset: Offset, callback: Callback) -> Waiter | None:
        """Call back when the record at `offset` is visible; at once (None) when it is already."""
        if self.stopped is not None:
            callback(self.stopped)
            return None
        if offset < self.high_watermark:
            callback(None)
            return None
        return self._waiters.add(offset, callback)

    def when_stable(self, offset: Offset, callback: Callback) -> Waiter | None:
        """As `when_visible`, for readers of committed records: below the last stable offset."""
        if self.stopped is not None:
            callback(self.stopped)
            return None
        if offset < self.last_stable_offset:
            callback(None)
            return None
        return self._stable_waiters.add(offset, callback)

    def wait_visible(self, offset: Offset) -> asyncio.Future[None]:
        """A future for `when_visible`."""
        return as_future(lambda callback: self.when_visible(offset, callback))

    @property
    def waiting(self) -> int:
        """How many wait, for the metrics."""
        return len(self._waiters) + len(self._stable_waiters)

    # -- reading

    def read(self, offset: Offset, max_bytes: int, *, committed: bool = False) -> memoryview:
        """Whole batches from `offset` on that readers may see; empty when there are none yet."""
        upto = self.last_stable_offset if committed else self.high_watermark
        if offset >= upto:
            self._refuse_if_stopped()
            if offset > self.end_offset:
                raise OffsetOutOfRange(
                    f"offset {offset} lies after the end {self.end_offset}"
                    f" of {self.stream}/{self.id}"
                )
            return memoryview(b"")
        try:
            return self.log.read(offset, max_bytes, upto)
        except Closed:
            self._refuse_if_stopped()  # its stream was deleted
            raise
        except PartitionStopped as error:
            self.stop(error)
            raise

    def offsets_of_topic(
        self, topic: bytes, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Offsets whose record probably has this topic; None when no index is kept."""
        return self.log.offsets_of_topic(topic_hash(topic), start, upto, limit)

    def offset_for_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """The first visible record with a timestamp >= this one, and its timestamp."""
        offset = self.log.offset_for_time(timestamp_ms)
        while offset is not None and offset < self.high_watermark:
            data = self.read(offset, 1)
            if not data:
                return None
            info = scan_batches(data)[0]
            if info.max_timestamp_ms >= timestamp_ms:
                slices = decode_batch(data, 0, inflated_records(data, info), False)
                for index in range(len(slices)):
                    if slices.timestamp_ms(index) >= timestamp_ms:
                        return Offset(slices.offset(index)), TimestampMs(slices.timestamp_ms(index))
            offset = Offset(info.last_offset + 1)
        return None

    def max_timestamp(self) -> tuple[Offset, TimestampMs] | None:
        """The first visible record with the greatest timestamp; None of an empty partition."""
        latest = max((row.max_timestamp_ms for row in self.log.segments()), default=None)
        return None if latest is None else self.offset_for_time(latest)

    # -- life

    def stop(self, error: OnelogError) -> None:
        """Refuse everything from now on, and tell everybody who waits."""
        if self.stopped is None:
            self.stopped = error
            self._waiters.fail(error)
            self._stable_waiters.fail(error)

    def stop_damaged(self, offset: int, error: CorruptBatch) -> PartitionCorrupt:
        """Stop because stored bytes are not what was written; the error to raise."""
        failure = PartitionCorrupt(
            f"{self.stream}/{self.id} is damaged at or after offset {offset}: {error}."
            " Restore the partition from a backup or a replica, then restart"
        )
        self.stop(failure)
        return failure

    def _refuse_if_stopped(self) -> None:
        if self.stopped is not None:
            raise self.stopped

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
