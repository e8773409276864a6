"""A partition as everybody above the log has it: a handle to append to, read from and wait at.

Rules:
- A handle answers in values, which do not change after they were given. It shows none of the parts
  that a partition is made of: watermarks, producers and epochs are the log's own.
- A read answers now or raises `Cold`. Then `when_here` calls back, `until_here` waits in a
  coroutine and `in_place` waits where it is called (ADR 17).
- An append answers `Appended`: where the records lie. They are durable when `when_visible` calls
  back for the last of them (I4).
- The handle of a partition that lies on this node is the partition itself, seen through this type:
  a call costs what it costs without it. Nobody above the log names the class (`.importlinter`).
All methods run on the loop's thread unless they say otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from onelog.base.errors import CorruptBatch, OnelogError, PartitionCorrupt
from onelog.base.ids import Epoch, Offset, PartitionId, TimestampMs
from onelog.kernel import BatchBuilder, BatchInfo
from onelog.log.producers import AbortedTxn
from onelog.log.promises import Appended, LiveFeed
from onelog.log.wakeup import Callback, Waiter
from onelog.record.batch import Marker
from onelog.storage.engine import Cold

__all__ = [
    "AbortedTxn",
    "Appended",
    "Cold",
    "Ends",
    "PartitionFacts",
    "PartitionHandle",
    "ProducerFacts",
]

T = TypeVar("T")


class Ends(NamedTuple):
    """Where a partition began and ended at one moment."""

    start: Offset
    """First offset that may be read."""
    stable: Offset
    """End of what is decided: no record of an open transaction lies below it."""
    high_watermark: Offset
    """The end that readers see."""


class PartitionFacts(NamedTuple):
    """What operators are shown of a partition."""

    ends: Ends
    end: Offset
    """The end of the log, visible or not."""
    durable: Offset
    size_bytes: int
    segments: int
    state: str
    """`running`, or why it is stopped."""


class ProducerFacts(NamedTuple):
    """What a partition knows of one idempotent or transactional producer."""

    producer_id: int
    epoch: int
    last_sequence: int
    """-1: none is remembered."""
    last_seen_ms: int
    txn_first_offset: int
    """-1: it has no transaction open here."""


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
        """How large a batch may be."""
        ...

    @property
    def stopped(self) -> OnelogError | None:
        """Why it refuses everything; None: it runs."""
        ...

    @property
    def refusal(self) -> OnelogError | None:
        """Why nothing is appended; None: it is."""
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
    def high_watermark(self) -> Offset:
        """The end that readers see."""
        ...

    @property
    def last_stable_offset(self) -> Offset:
        """End of what is decided."""
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

    def facts(self) -> PartitionFacts:
        """What operators are shown of it."""
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

    def read_now(self, offset: Offset, max_bytes: int, *, committed: bool = False) -> memoryview:
        """Whole batches from `offset` on that readers may see; empty when there are none yet.

        Raises Cold, OffsetOutOfRange, and the error of a stopped partition.
        """
        ...

    def topic_offsets_now(
        self, topic: bytes, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Offsets whose record probably has this topic; None when no index is kept; or Cold."""
        ...

    def read_stored(
        self, offset: Offset, max_bytes: int, upto: Offset, *, wait: bool
    ) -> memoryview:
        """In any thread: batches below `upto`, which the caller knows to be visible.

        Raises Cold, unless it may wait. Who gets PartitionStopped tells `stop`, on the loop.
        """
        ...

    def stored_topic_offsets(
        self, hashed_topic: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """In any thread, waiting for what is cold: as `topic_offsets_now`, by the topic's hash."""
        ...

    def offset_for_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """The first visible record with a timestamp >= this one; it waits for what is cold."""
        ...

    async def find_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """As `offset_for_time`, while the loop goes on."""
        ...

    def max_timestamp(self) -> tuple[Offset, TimestampMs] | None:
        """In a thread: the first visible record with the greatest timestamp; None: it is empty."""
        ...

    def aborted_between(self, start: int, end: int) -> list[AbortedTxn]:
        """Aborted transactions with records in [start, end)."""
        ...

    def when_here(self, cold: Cold, callback: Callback) -> Waiter:
        """Bring what a read found cold, and call back when it need not wait."""
        ...

    async def until_here(self, read: Callable[[], T]) -> T:
        """What `read` answers, waiting for what is cold while the loop goes on."""
        ...

    def in_place(self, read: Callable[[], T]) -> T:
        """What `read` answers, waiting for what is cold: in threads, and where that is rare."""
        ...

    def stop_damaged(self, offset: int, error: CorruptBatch) -> PartitionCorrupt:
        """Stop because stored bytes are not what was written; the error to raise."""
        ...

    def stop(self, error: OnelogError) -> None:
        """Refuse everything from now on, and tell everybody who waits."""
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
        """Hand what becomes visible from now on to `feed`, too; it may look at `fed_topics`."""
        ...

    def unfollow(self, feed: LiveFeed) -> None:
        """Hand nothing more to `feed`."""
        ...

    @property
    def fed_topics(self) -> bytes | None:
        """While a feed is called: topics of the data, as the index has them; None: look at it."""
        ...

    # -- writing

    def append_built(self, builder: BatchBuilder, *, index_topics: bool) -> Appended:
        """Seal what `builder` staged as one batch at the end of the log.

        Whatever happens, the builder is empty afterwards.
        """
        ...

    def append_batches(self, data: bytearray, infos: Sequence[BatchInfo]) -> Appended:
        """Append batches that a client built; their offsets are set in place."""
        ...

    def check_batch(self, info: BatchInfo) -> Appended | None:
        """Judge a batch that a client built: None to go on, or the append that it repeats."""
        ...

    def append_checked(self, data: bytearray) -> list[BatchInfo]:
        """Append batches that `check_batch` let pass, no two of one producer; as they now are."""
        ...

    async def trim(self, start: Offset) -> None:
        """Delete records below `start` (at most the high watermark), durably."""
        ...

    # -- producers and their transactions

    def last_sequence(self, producer_id: int) -> int | None:
        """The sequence number of a producer's newest record; None: it is not remembered."""
        ...

    def find_repeated(self, info: BatchInfo, producer_id: int) -> Appended | None:
        """The append that a batch repeats, if its producer, known by this id, sent it before."""
        ...

    @property
    def producer_count(self) -> int:
        """How many producers are remembered."""
        ...

    def producers_seen(self) -> list[ProducerFacts]:
        """Every producer that is remembered."""
        ...

    def forget_producer(self, producer_id: int) -> None:
        """A producer never comes back: forget it, unless it has a transaction open here."""
        ...

    def open_transactions(self) -> dict[int, int]:
        """Producer id → first offset of its open transaction."""
        ...

    def end_transaction(self, marker: Marker, producer_id: int, producer_epoch: int) -> Appended:
        """End a producer's transaction here with a control batch."""
        ...
