"""The interface of every storage engine: partitions of record batches, durable on demand.

Words: a *batch* is one Kafka RecordBatch v2 whose base offset and leader epoch are already set by
the partition that writes it. Engines never look into records; they see batches through the
`BatchInfo` rows that the kernel's scan makes.

Rules that every engine keeps (tests/contract/test_engine.py holds each of them to this):
- `append` is all or nothing: after an error the log ends where it ended before.
- Offsets never move. Compaction leaves gaps; `read(offset)` answers from the first batch whose
  last offset is >= `offset`.
- `read`, `offset_for_time` and `offsets_of_topic` raise `Cold` where they would have to wait for
  bytes that are not in memory. `bring(cold)` blocks until they are; while its lease is held, the
  same read succeeds, or gets further and is cold for other bytes. A thread that may wait calls
  `in_place`.
- `append` and `read` never wait for the disk to sync. `bring`, `sync`, `trim`, `truncate`,
  `save_state`, `keep_high_watermark`, `rewrite(...).commit`, `close` and `delete` may block:
  callers run them in a thread. Every method may be called from any thread; engines lock for
  themselves and never hold a lock while they sync.
- `durable_offset` only grows (except by `truncate`) and never passes `end_offset`.
- A failed sync stops the partition (`PartitionStopped`) until it is opened again: after a failed
  fsync the page cache can no longer be trusted.
- Damage before the recovery point raises `PartitionCorrupt`; a torn tail is cut, and
  `torn` says so. The rest of the tail counts as durable only after it was written and synced again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.base.ids import Offset, PartitionId, TimestampMs
from onelog.kernel import BatchBuilder, BatchInfo, LogEnd, scan_batches
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.storage.tier import Place, Tier, TierSettings

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class PartitionKey(NamedTuple):
    """Which partition: the stream's id (a safe, never reused directory name) and its number."""

    stream_id: str
    partition: PartitionId


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a partition stores; all of it may change while the partition is open."""

    segment_bytes: int = 256 * 1024 * 1024
    segment_age_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    topic_index: bool = True
    """Keep a topic index (streams that hold many topics)."""
    ring_bytes: int = 64 * 1024 * 1024
    """memory engine: bytes kept; the oldest batches go first."""
    tier: TierSettings | None = None
    """How sealed segments move to the object store; None: they stay."""


class SegmentInfo(NamedTuple):
    """A part of a partition that is kept or dropped as a whole."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    max_timestamp_ms: TimestampMs
    sealed: bool
    created_ms: TimestampMs
    place: Place = "local"


class TornTail(NamedTuple):
    """The part that opening a partition cut off its end: appends that a crash interrupted."""

    size_bytes: int
    segments: int
    """Whole segments behind the first bad batch."""
    end_offset: Offset
    """Where the log ends since then: the removed part began here."""


class Cold(Exception):
    """A read would have to wait: `bring` the bytes, and read again. No peer ever sees this
    error."""

    def __init__(self, key: Hashable, size_bytes: int, *, remote: bool = False) -> None:
        super().__init__(key, size_bytes)
        self.key = key
        """The same for all readers that wait for the same bytes of a partition."""
        self.size_bytes = size_bytes
        self.remote = remote
        """Whether the bytes lie in an object store: couriers of their own bring them."""
        self.end_offset: int | None = None
        """Nobody needs the bytes when the log begins here or later; None: not known."""

    def fetch(self, log: Brings) -> Lease:
        """Wait until the read need not: `bring` of the log that it was a read of."""
        return log.bring(self)


class Lease:
    """Bytes that were brought and stay in memory until `release`; this one is for no bytes."""

    __slots__ = ()

    def release(self) -> None:
        """The bytes are no longer needed. Idempotent."""

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


NO_LEASE: Final = Lease()
"""The lease of an engine whose bytes are never cold."""


class HasDescriptor(Protocol):
    """An open file."""

    @property
    def fd(self) -> int:
        """Its descriptor."""
        ...


class SyncTicket(Protocol):
    """A sync of one file that was asked for."""

    @property
    def error(self) -> int:
        """The error number of the sync; 0: it succeeded, or it is not over."""
        ...

    def wait(self) -> None:
        """Block until the sync is over. Any thread may wait."""
        ...


AskSync = Callable[[HasDescriptor, Callable[[SyncTicket], None]], SyncTicket | None]
"""Asks to sync a file, which stays open until then. The callback gets the ticket on the loop when
the sync is over. None: not now, and the callback is not called."""
SyncDone = Callable[[Offset | None, BaseException | None], None]
"""Gets the new durable offset, or the error."""


class Rewrite(Protocol):
    """A replacement for the sealed batches in [start, end), written beside them, then swapped in.

    The log keeps serving the old batches until `commit`; `abort` leaves no trace. A crash at any
    moment leaves either the old or the new batches, never a mixture.
    """

    def append(self, data: Buffer, batches: Sequence[BatchInfo]) -> None:
        """Add batches, offsets ascending, all inside [start, end)."""
        ...

    def commit(self) -> None:
        """Make the replacement durable and visible."""
        ...

    def abort(self) -> None:
        """Throw the replacement away."""
        ...


class PartitionLog(Protocol):
    """One partition's bytes."""

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        ...

    @property
    def local_start_offset(self) -> Offset:
        """First offset whose batches are on this machine; below it they are in the store."""
        ...

    @property
    def end_offset(self) -> Offset:
        """Offset that the next record gets."""
        ...

    @property
    def durable_offset(self) -> Offset:
        """Every record below it survives power loss (memory engine: the end)."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of batches held."""
        ...

    @property
    def kept_high_watermark(self) -> Offset:
        """The high watermark that was kept last, at most `end_offset`; 0: none was kept."""
        ...

    @property
    def torn(self) -> TornTail | None:
        """The tail that opening the partition cut; None: nothing."""
        ...

    @property
    def log_end(self) -> LogEnd | None:
        """Where a tick may append without this object; None: nowhere."""
        ...

    @property
    def tier(self) -> Tier | None:
        """What moves sealed segments to the object store; None: nothing does."""
        ...

    def append(
        self,
        data: Buffer,
        batches: Sequence[BatchInfo],
        topics: bytes | None = None,
    ) -> None:
        """Append whole batches that start at or after `end_offset`, in order.

        `topics` holds u32 pairs (topic hash, offset - first batch's base offset), little endian,
        as the kernel's builder makes them; None means: derive them from the records if the
        settings ask for a topic index. Raises StorageFull when there is no room.
        """
        ...

    def append_built(self, builder: BatchBuilder, leader_epoch: int, index_topics: bool) -> bytes:
        """Seal the staged records as one batch at `end_offset` and append it. Returns the batch.

        With `index_topics` the builder knows the records' topics; otherwise they are derived as in
        `append`. The builder is empty afterwards, also after an error.
        """
        ...

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset` (or the next), as one view.

        Never a batch that reaches `upto` or beyond; at least one batch when there is one, also if
        it is larger than `max_bytes`; empty at the end. May stop early (a segment's end): the
        caller reads on. The view stays valid, even when its batches leave the log. Raises
        OffsetOutOfRange, and Cold.
        """
        ...

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""
        ...

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) whose record's topic has this hash; None: no index.

        May name offsets of other topics (a hash collision, a compacted record): the caller checks.
        """
        ...

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """The rows with offsets in [start, upto) that lie in the object store, in order."""
        ...

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """Delete no object that `cold_rows` named before this time, also if its rows go meanwhile:
        somebody plans to read it. Does not block."""
        ...

    def aborted(self, start: Offset, upto: Offset) -> Sequence[AbortedSpan]:
        """Aborted transactions with records in [start, upto), of pieces in the object store.

        Their owner forgets what lies below `local_start_offset`. Raises Cold.
        """
        ...

    def bring(self, cold: Cold) -> Lease:
        """Block until the read that raised `cold` need not wait. Raises PartitionStopped when the
        bytes cannot be read; a read that finds more cold bytes then raises it, too. Raises
        StorageError when they may be readable later. The next read reports any other change of the
        log."""
        ...

    def sync(self) -> Offset:
        """Make everything appended before this call survive power loss. Returns the new durable
        offset."""
        ...

    def begin_sync(self, ask: AskSync, done: SyncDone) -> bool:
        """Begin what `sync` does, if one file is all that is to be synced, and block for nothing.

        True: `done` is called on the loop, with the new durable offset or the error. False: nothing
        began, and `sync` is to be called. Called on the loop.
        """
        ...

    def trim(self, start: Offset) -> None:
        """Move the log's start up to `start`, durably, and drop segments that lie below it."""
        ...

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end` (a batch is cut as a whole), durably.

        It copies nothing, however large a segment is. An append meanwhile raises Conflict.
        """
        ...

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep durably that every record below `offset` is on all replicas that count.

        It only grows, except by `truncate`. An offset beyond the end is reduced to the end.
        """
        ...

    def roll(self) -> None:
        """Seal the active segment, so that retention and compaction may touch it."""
        ...

    def segments(self) -> list[SegmentInfo]:
        """Segments in order; the last is the active one. An engine without segments invents
        them. Each offset lies in one of them, whatever places hold it."""
        ...

    def rewrite(self, start: Offset, end: Offset) -> Rewrite:
        """Begin to replace the sealed batches in [start, end); both are segment boundaries."""
        ...

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Keep a partition's derived state as of `offset`, durably; older ones of `name` may go."""
        ...

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """The newest intact state of `name` whose offset is <= `end_offset`."""
        ...

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on."""
        ...

    def close(self) -> None:
        """Sync, write the clean state, close every file. Idempotent."""
        ...


class Engine(Protocol):
    """Stores the partitions of many streams."""

    volatile: bool
    """Whether everything is lost when the process ends, so that offsets begin at 0 again."""

    def open(self, key: PartitionKey, settings: LogSettings) -> PartitionLog:
        """Open or create a partition, recovering it when the last shutdown was not clean."""
        ...

    def delete(self, key: PartitionKey) -> None:
        """Delete a closed partition and everything kept for it. No error if it does not exist."""
        ...

    def set_aside(self, key: PartitionKey) -> None:
        """Take a closed partition away because it is damaged. An engine whose partitions have files
        of their own keeps them, bounded and where nothing opens them again. No error if it does
        not exist."""
        ...

    def partitions(self) -> list[PartitionKey]:
        """Every partition that exists on disk."""
        ...

    def check_room(self) -> None:
        """Raise StorageFull when the disk has no room for an append. May block."""
        ...

    def freeze(self, cuts: Mapping[PartitionKey, Offset], into: Path) -> dict[str, int]:
        """Let the files of open partitions appear in `into` as they are now, by hard links.

        An engine of the same kind can be opened on a copy of them. Each partition then ends at its
        cut (a batch boundary that is not beyond its end), or behind it: the opener truncates.
        Returns the files, named below `into`, and how many bytes of each count: the log goes on
        in the rest. Nothing may leave the partitions meanwhile. May block; a volatile engine has
        no files.
        """
        ...

    def close(self) -> None:
        """Close every open partition cleanly, then mark the shutdown as clean."""
        ...


class Brings(Protocol):
    """A log, or a part of one, whose bytes may be cold."""

    def bring(self, cold: Cold) -> Lease:
        """See `PartitionLog`."""
        ...


def in_place(log: Brings, read: Callable[[], T]) -> T:
    """Return what `read` returns, and block while bytes are cold: not for the loop."""
    try:
        return read()
    except Cold as error:
        cold = error.with_traceback(None)  # its frames would hold it
    with ExitStack() as leases:
        while True:
            leases.enter_context(cold.fetch(log))
            try:
                return read()
            except Cold as error:
                cold = error.with_traceback(None)


def seal_and_append(
    log: PartitionLog, builder: BatchBuilder, leader_epoch: int, *, index_topics: bool
) -> bytes:
    """`append_built` in terms of `append`."""
    topics = builder.topics() if index_topics else None
    batch = builder.seal(log.end_offset, leader_epoch)
    log.append(batch, scan_batches(batch, 0, False), topics)
    return batch


def check_ascending(name: str, end: int, batches: Sequence[BatchInfo]) -> None:
    """Refuse batches that do not lie behind the end of a log, one after the other."""
    for info in batches:
        if info.base_offset < end:
            raise InvalidRequest(
                f"{name}: a batch starts at offset {info.base_offset}, the log ends at {end}:"
                " offsets only go up"
            )
        end = info.last_offset + 1


def lies_in_store(engine: Engine) -> bool:
    """Whether all of an engine's bytes are in an object store: a backup has none of its files."""
    return getattr(engine, "lies_in_store", False)
