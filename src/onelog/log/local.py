"""What a partition on this node answers from its parts: the reading half of its handle.

Rules: nothing here has state of its own. Numbers and waits come from `visible`. Reads come from
`lookup` and, where bytes are cold, from `arrivals`. Facts about writers come from `producers` and
`epochs`; a cut replaces both objects. A read that does not raise `Cold` blocks where it is called.
`Partition` does the writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from onelog.base.errors import CorruptBatch, OnelogError, PartitionCorrupt
from onelog.base.ids import Epoch, Offset, TimestampMs
from onelog.kernel import BatchInfo, PartitionEnd
from onelog.log.arrivals import Arrivals
from onelog.log.epochs import EpochHistory
from onelog.log.handle import NO_LAG, Ends, PartitionFacts, ProducerFacts, TierLag
from onelog.log.lookup import Lookup
from onelog.log.producers import AbortedTxn, Producers
from onelog.log.promises import Appended, LiveFeed
from onelog.log.visibility import Visibility
from onelog.log.wakeup import Callback, Waiter
from onelog.objects.rows import Row
from onelog.storage.engine import Cold, PartitionLog, SegmentInfo, in_place
from onelog.storage.tier import TierStatus

T = TypeVar("T")

_new = tuple.__new__


class LocalReads(PartitionEnd):
    """A partition as its readers see it."""

    __slots__ = (
        "arrivals", "epochs", "log", "lookup", "producers", "read_now", "topic_offsets_now",
        "when_stable", "when_visible",
    )  # fmt: skip

    log: PartitionLog
    producers: Producers
    epochs: EpochHistory
    visible: Visibility

    def __init__(self, visible: Visibility, lookup: Lookup, arrivals: Arrivals) -> None:
        self.visible = visible
        self.lookup = lookup
        self.arrivals = arrivals
        # Bound once: reads and waits are frequent, and this saves a second call.
        self.read_now = lookup.read
        self.topic_offsets_now = lookup.offsets_of_topic
        self.when_visible = visible.when_visible
        self.when_stable = visible.when_stable

    # -- numbers

    def ends(self) -> Ends:
        """Where it begins and ends now."""
        visible = self.visible
        mark = visible.high_watermark
        # Every fetch asks: a tuple that is made so costs half of what a call of `Ends` costs.
        return _new(Ends, (self.log.start_offset, visible.last_stable_offset, mark))

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return self.log.start_offset

    @property
    def local_start_offset(self) -> Offset:
        """First offset whose batches are on this machine."""
        return self.log.local_start_offset

    def tier_status(self) -> TierStatus | None:
        """How far its tier is; None: it has none."""
        tier = self.log.tier
        return None if tier is None else tier.status()

    def tier_lag(self) -> TierLag:
        """What could be in the object store, and is not."""
        tier = self.log.tier
        if tier is None:
            return NO_LAG
        rows = tier.waiting(self.last_stable_offset)
        return TierLag(sum(row.size_bytes for row in rows), rows[0].created_ms) if rows else NO_LAG

    @property
    def high_watermark(self) -> Offset:
        """The end that readers see."""
        return self.visible.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """End of what is decided: no record of an open transaction lies below it."""
        return self.visible.last_stable_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of batches that it holds."""
        return self.log.size_bytes

    def facts(self) -> PartitionFacts:
        """The numbers that operators see."""
        log, stopped = self.log, self.visible.stopped
        return PartitionFacts(
            ends=self.ends(),
            end=self.end_offset,
            durable=log.durable_offset,
            size_bytes=log.size_bytes,
            segments=len(log.segments()),
            state="running" if stopped is None else f"stopped: {stopped}",
        )

    def segments(self) -> list[SegmentInfo]:
        """Its segments in order; the last is the active one."""
        return self.log.segments()

    def epoch_at(self, offset: int) -> Epoch:
        """The epoch that wrote at `offset`, or would write there next."""
        return self.epochs.at(offset)

    def end_of_epoch(self, epoch: int, log_end: int) -> tuple[Epoch, Offset]:
        """The largest epoch <= `epoch` that wrote here, and where it ended; (-1, -1): none did."""
        return self.epochs.end_of(epoch, log_end)

    # -- reading

    def read(self, offset: Offset, max_bytes: int, *, committed: bool = False) -> memoryview:
        """Whole batches from `offset` on that readers may see; empty when there are none yet."""
        return self.in_place(partial(self.lookup.read, offset, max_bytes, committed=committed))

    def offsets_of_topic(
        self, topic: bytes, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Offsets whose record probably has this topic; None: no index is kept."""
        return self.in_place(partial(self.lookup.offsets_of_topic, topic, start, upto, limit))

    def read_stored(
        self, offset: Offset, max_bytes: int, upto: Offset, *, wait: bool
    ) -> memoryview:
        """In any thread: batches below `upto`, which the caller knows to be visible."""
        log = self.log
        if not wait:
            return log.read(offset, max_bytes, upto)
        return in_place(log, partial(log.read, offset, max_bytes, upto))

    def stored_aborts(self, start: Offset, upto: Offset, *, wait: bool) -> list[AbortedTxn]:
        """In any thread: aborted transactions in [start, upto) that only the object store knows."""
        log = self.log
        read = partial(log.aborted, start, upto)
        found = in_place(log, read) if wait else read()
        return [AbortedTxn(*msgspec.structs.astuple(span)) for span in found]

    def stored_topic_offsets(
        self, hashed_topic: int, start: Offset, upto: Offset, limit: int, *, wait: bool
    ) -> list[Offset] | None:
        """In any thread: offsets whose record's topic has this hash; None: no index is kept."""
        log = self.log
        if not wait:
            return log.offsets_of_topic(hashed_topic, start, upto, limit)
        return in_place(log, partial(log.offsets_of_topic, hashed_topic, start, upto, limit))

    def time_offset_now(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """The first visible record with a timestamp >= this one, and its timestamp; or Cold."""
        return self.lookup.offset_for_time(timestamp_ms)

    async def find_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """As `time_offset_now`, waiting for what is cold while the loop goes on."""
        return await self.until_here(partial(self.lookup.offset_for_time, timestamp_ms))

    def max_timestamp(self) -> tuple[Offset, TimestampMs] | None:
        """The first visible record with the greatest timestamp; None: the partition is empty."""
        return self.in_place(self.lookup.max_timestamp)

    def aborted_between(self, start: int, end: int) -> list[AbortedTxn]:
        """In any thread: aborted transactions with records in [start, end). Raises Cold where only
        the object store knows."""
        producers = self.producers
        found = producers.aborted_between(start, end)
        if start < producers.aborted_from:
            known = {(txn.producer_id, txn.first_offset) for txn in found}
            upto = Offset(min(end, producers.aborted_from))
            away = self.log.aborted(Offset(start), upto)
            rows = [AbortedTxn(*msgspec.structs.astuple(span)) for span in away]
            return [row for row in rows if (row.producer_id, row.first_offset) not in known] + found
        return found

    @property
    def aborted_from(self) -> int:
        """Below it, `aborted_between` asks the object store, and the caller asks for little."""
        return self.producers.aborted_from

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """In any thread: what an object store holds of the offsets in [start, upto), in order."""
        return self.log.cold_rows(start, upto)

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """Somebody is going to read objects of `cold_rows`: none is deleted before this time."""
        self.log.hold_cold(until_ms)

    def when_here(self, cold: Cold, callback: Callback) -> Waiter:
        """Bring the bytes that a read found cold, then call back."""
        return self.arrivals.when_here(cold, callback)

    def failure_of(self, cold: Cold) -> OnelogError | None:
        """Why cold bytes did not come when they were asked for last; None: they may be coming."""
        return self.arrivals.failure_of(cold)

    async def bring(self, cold: Cold) -> None:
        """Wait until cold bytes are here. Raises at once why they did not come."""
        await self.arrivals.bring(cold)

    async def until_here(self, read: Callable[[], T]) -> T:
        """Return what `read` returns; wait for cold bytes while the loop goes on."""
        return await self.arrivals.until_here(read)

    def in_place(self, read: Callable[[], T]) -> T:
        """Return what `read` returns; block while bytes are cold: for threads and rare calls."""
        return self.arrivals.in_place(read)

    def stop_damaged(self, offset: int, error: CorruptBatch) -> PartitionCorrupt:
        """Stop, because stored bytes are damaged. Returns the error to raise."""
        return self.lookup.stop_damaged(offset, error)

    # -- waiting

    def wait_visible(self, offset: Offset) -> asyncio.Future[None]:
        """A future for `when_visible`."""
        return self.visible.wait_visible(offset)

    def follow(self, feed: LiveFeed, *, wants_topics: bool = False) -> None:
        """From now on, also hand batches that become visible to `feed`. It may look at
        `fed_topics`."""
        if wants_topics:
            self.visible.topics_wanted = True
        self.visible.follow(feed, self.end_offset)

    def unfollow(self, feed: LiveFeed) -> None:
        """Hand nothing more to `feed`."""
        self.visible.unfollow(feed)

    @property
    def fed_topics(self) -> bytes | None:
        """While a feed is called: topics of its data, in the index's form; None: read the data."""
        return self.visible.fed_topics

    # -- producers

    def last_sequence(self, producer_id: int) -> int | None:
        """The sequence number of a producer's newest record; None: it is not remembered."""
        entry = self.producers.entry(producer_id)
        return entry.batches[-1].last_sequence if entry is not None and entry.batches else None

    def find_repeated(self, info: BatchInfo, producer_id: int) -> Appended | None:
        """The append that a batch repeats, if the producer with this id has sent it before."""
        known = self.producers.find_repeated(info, producer_id)
        if known is None:
            return None
        return Appended(Offset(known.base_offset), Offset(known.last_offset + 1), duplicate=True)

    @property
    def producer_count(self) -> int:
        """How many producers are remembered."""
        return len(self.producers)

    def producers_seen(self) -> list[ProducerFacts]:
        """Every producer that is remembered."""
        return [
            ProducerFacts(
                producer_id=entry.producer_id,
                epoch=entry.epoch,
                last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
                last_seen_ms=entry.last_seen_ms,
                txn_first_offset=entry.txn_first_offset,
                coordinator_epoch=entry.coordinator_epoch,
            )
            for entry in self.producers.entries()
        ]

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this producer has a transaction open here, with this epoch."""
        entry = self.producers.entry(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == producer_epoch

    def forget_producer(self, producer_id: int) -> None:
        """Forget a producer that never comes back, unless it has a transaction open here."""
        self.producers.forget(producer_id)

    def open_transactions(self) -> dict[int, int]:
        """Producer id → first offset of its open transaction."""
        return self.producers.open_transactions()
