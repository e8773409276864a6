"""A partition as every floor above the log has it: a handle to append, read and wait.

Rules:
- A handle answers with values, which never change afterwards. It shows none of the parts that a
  partition is made of: watermarks, producers and epochs belong to the log.
- A read answers now or raises `Cold`. Then `when_here` calls back, `until_here` waits in a
  coroutine and `in_place` blocks (ADR 17).
- An append returns `Appended`: where the records lie. They are durable when `when_visible` calls
  back for the last of them (I4).
- The handle of a partition on this node is the partition itself, seen through this type, so a call
  costs nothing extra. No floor above the log names that class (`.importlinter`).
All methods run on the loop's thread unless they say otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from onelog.base.errors import CorruptBatch, OnelogError, PartitionCorrupt
from onelog.base.ids import Epoch, Offset, PartitionId, TimestampMs
from onelog.kernel import BatchBuilder, BatchInfo
from onelog.log.producers import AbortedTxn
from onelog.log.promises import Appended, LiveFeed
from onelog.log.wakeup import Callback, Waiter
from onelog.objects.rows import Row
from onelog.record.batch import NO_COORDINATOR, Marker
from onelog.storage.engine import Cold, SegmentInfo
from onelog.storage.tier import TierStatus

__all__ = [
    "AbortedTxn",
    "Appended",
    "Cold",
    "Ends",
    "PartitionFacts",
    "PartitionHandle",
    "ProducerFacts",
    "SegmentInfo",
    "TierLag",
    "TierStatus",
]

T = TypeVar("T")


class Ends(NamedTuple):
    """Where a partition began and ended at one moment."""

    start: Offset
    """First offset that may be read."""
    stable: Offset
    """The last stable offset: no record of an open transaction lies below it."""
    high_watermark: Offset
    """The end that readers see."""


class PartitionFacts(NamedTuple):
    """The numbers of a partition that operators see."""

    ends: Ends
    end: Offset
    """The end of the log, visible or not."""
    durable: Offset
    size_bytes: int
    segments: int
    state: str
    """`running`, or why it is stopped."""


class TierLag(NamedTuple):
    """Sealed bytes of a partition that are not in the object store yet."""

    bytes: int
    oldest_ms: int
    """When the first of them was written; 0: there are none."""


NO_LAG: Final = TierLag(0, 0)


class ProducerFacts(NamedTuple):
    """What a partition knows of one idempotent or transactional producer."""

    producer_id: int
    epoch: int
    last_sequence: int
    """-1: no sequence number is remembered."""
    last_seen_ms: int
    txn_first_offset: int
    """-1: it has no transaction open here."""
    coordinator_epoch: int = NO_COORDINATOR
    """The epoch of the coordinator that ended its last transaction here."""


class PartitionHandle(Protocol):
    """One partition of a stream."""

    @property
    def stream(self) -> str:
        """The stream's name."""
        ...

    @property
    def id(self) -> PartitionId:
        """Its number in the stream."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """Bytes of the largest batch that it accepts."""
        ...

    @property
    def stopped(self) -> OnelogError | None:
        """The error with which it refuses everything; None: it runs."""
        ...

    @property
    def refusal(self) -> OnelogError | None:
        """The error with which it refuses appends; None: it accepts them.

        NotLeader: another node leads, or nobody. Unavailable: too few replicas are in sync, and
        nothing was appended.
        """
        ...

    # -- numbers

    def ends(self) -> Ends:
        """Where it begins and ends now."""
        ...

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        ...

    @property
    def local_start_offset(self) -> Offset:
        """First offset whose batches are on this machine."""
        ...

    def tier_status(self) -> TierStatus | None:
        """How far its tier is; None: it has none."""
        ...

    def tier_lag(self) -> TierLag:
        """What could be in the object store, and is not."""
        ...

    @property
    def high_watermark(self) -> Offset:
        """The end that readers see."""
        ...

    @property
    def last_stable_offset(self) -> Offset:
        """The last stable offset: the end of what is decided."""
        ...

    @property
    def end_offset(self) -> Offset:
        """The end of the log, visible or not."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of batches that it holds."""
        ...

    @property
    def records_appended(self) -> int:
        """Records appended since the start of the process."""
        ...

    @property
    def syncs(self) -> int:
        """Group commits since the start of the process."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether its end is no lower than any leader before this one may have shown it
        (KIP-207)."""
        ...

    @property
    def first_told(self) -> Offset | None:
        """What its leader showed to readers when it first spoke to this copy; None: this node leads
        it, or has heard nothing."""
        ...

    def lost_since(self, epoch: int) -> bool:
        """Whether it may have begun again without records of `epoch` that readers saw: nobody else
        had them, or an operator accepted the loss."""
        ...

    @property
    def is_fresh(self) -> bool:
        """Whether no other node can have led it for longer than a registration lasts, if this one
        does: else readers have to ask again."""
        ...

    def facts(self) -> PartitionFacts:
        """The numbers that operators see."""
        ...

    def segments(self) -> list[SegmentInfo]:
        """Its segments in order; the last is the active one."""
        ...

    # -- epochs

    @property
    def leader_epoch(self) -> Epoch:
        """The epoch of the leader that writes now."""
        ...

    def epoch_at(self, offset: int) -> Epoch:
        """The epoch that wrote at `offset`, or would write there next."""
        ...

    def end_of_epoch(self, epoch: int, log_end: int) -> tuple[Epoch, Offset]:
        """The largest epoch <= `epoch` that wrote here, and where it ended; (-1, -1): none did."""
        ...

    # -- reading

    def read_now(self, offset: Offset, max_bytes: int, committed: bool = False) -> memoryview:
        """Whole batches from `offset` on that readers may see; empty when there are none yet.

        Raises Cold, OffsetOutOfRange, and the error of a stopped partition.
        """
        ...

    def topic_offsets_now(
        self, topic: bytes, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Offsets whose record probably has this topic; None: no index is kept. May raise Cold."""
        ...

    def read_stored(
        self, offset: Offset, max_bytes: int, upto: Offset, *, wait: bool
    ) -> memoryview:
        """In any thread: batches below `upto`, which the caller knows to be visible.

        Raises Cold, unless it may wait. A caller that gets PartitionStopped calls `stop`, on the
        loop.
        """
        ...

    def stored_aborts(self, start: Offset, upto: Offset, *, wait: bool) -> list[AbortedTxn]:
        """In any thread: aborted transactions in [start, upto) that only the object store knows.

        Raises Cold, unless it may wait.
        """
        ...

    def stored_topic_offsets(
        self, hashed_topic: int, start: Offset, upto: Offset, limit: int, *, wait: bool
    ) -> list[Offset] | None:
        """As `topic_offsets_now`, in any thread and by the topic's hash. Raises Cold, unless it may
        wait."""
        ...

    def time_offset_now(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """The first visible record with a timestamp >= this one, and its timestamp; or Cold."""
        ...

    async def find_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """As `time_offset_now`, waiting for what is cold while the loop goes on."""
        ...

    def max_timestamp(self) -> tuple[Offset, TimestampMs] | None:
        """In a thread: the first visible record with the greatest timestamp; None: it is empty."""
        ...

    def aborted_between(self, start: int, end: int) -> list[AbortedTxn]:
        """In any thread: aborted transactions with records in [start, end). Raises Cold where only
        the object store knows."""
        ...

    @property
    def aborted_from(self) -> int:
        """Below it, `aborted_between` asks the object store, and the caller asks for little."""
        ...

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """In any thread: what an object store holds of the offsets in [start, upto), in order."""
        ...

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """Somebody is going to read objects of `cold_rows`: none is deleted before this time.
        It blocks."""
        ...

    def when_here(self, cold: Cold, callback: Callback) -> Waiter:
        """Bring the bytes that a read found cold, then call back."""
        ...

    def failure_of(self, cold: Cold) -> OnelogError | None:
        """Why cold bytes did not come when they were asked for last; None: they may be coming."""
        ...

    async def bring(self, cold: Cold) -> None:
        """Wait until cold bytes are here. Raises at once why they did not come."""
        ...

    async def until_here(self, read: Callable[[], T]) -> T:
        """Return what `read` returns; wait for cold bytes while the loop goes on."""
        ...

    def in_place(self, read: Callable[[], T]) -> T:
        """Return what `read` returns; block while bytes are cold: for threads and rare calls."""
        ...

    def stop_damaged(self, offset: int, error: CorruptBatch) -> PartitionCorrupt:
        """Stop, because stored bytes are damaged. Returns the error to raise."""
        ...

    def stop(self, error: OnelogError) -> None:
        """Refuse everything from now on; everybody who waits gets the error."""
        ...

    # -- waiting

    def when_visible(self, offset: Offset, callback: Callback) -> Waiter | None:
        """Call back when the record at `offset` is visible; at once (None) when it is already."""
        ...

    def when_stable(self, offset: Offset, callback: Callback) -> Waiter | None:
        """As `when_visible`, for readers of committed records: below the last stable offset."""
        ...

    def wait_visible(self, offset: Offset) -> asyncio.Future[None]:
        """A future for `when_visible`."""
        ...

    def follow(self, feed: LiveFeed, *, wants_topics: bool = False) -> None:
        """From now on, also hand batches that become visible to `feed`. It may look at
        `fed_topics`."""
        ...

    def unfollow(self, feed: LiveFeed) -> None:
        """Hand nothing more to `feed`."""
        ...

    @property
    def fed_topics(self) -> bytes | None:
        """While a feed is called: topics of its data, in the index's form; None: read the data."""
        ...

    # -- writing

    def append_built(self, builder: BatchBuilder, index_topics: bool) -> Appended:
        """Seal what `builder` staged as one batch at the end of the log.

        Whatever happens, the builder is empty afterwards.
        """
        ...

    def check_batch(self, info: BatchInfo) -> Appended | None:
        """Check a batch that a client built: None to go on, or the append that it repeats."""
        ...

    def append_checked(self, data: bytearray | memoryview) -> list[BatchInfo]:
        """Append batches that `check_batch` let pass, no two of one producer. Returns them as
        stored. They belong to the partition from now on."""
        ...

    async def trim(self, start: Offset) -> None:
        """Delete records below `start` (at most the high watermark), durably."""
        ...

    # -- producers and their transactions

    def last_sequence(self, producer_id: int) -> int | None:
        """The sequence number of a producer's newest record; None: it is not remembered."""
        ...

    def find_repeated(self, info: BatchInfo, producer_id: int) -> Appended | None:
        """The append that a batch repeats, if the producer with this id has sent it before."""
        ...

    @property
    def producer_count(self) -> int:
        """How many producers are remembered."""
        ...

    def producers_seen(self) -> list[ProducerFacts]:
        """Every producer that is remembered."""
        ...

    def forget_producer(self, producer_id: int) -> None:
        """Forget a producer that never comes back, unless it has a transaction open here."""
        ...

    def open_transactions(self) -> dict[int, int]:
        """Producer id → first offset of its open transaction."""
        ...

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this producer has a transaction open here, with this epoch."""
        ...

    def end_transaction(
        self,
        marker: Marker,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = NO_COORDINATOR,
    ) -> Appended:
        """End a producer's transaction here with a control batch. Raises Fenced for the epoch of a
        coordinator that another one has followed."""
        ...
