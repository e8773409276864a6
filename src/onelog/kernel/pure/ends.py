"""The ends of a partition, interpreted: what a tick needs to know to append and show a batch.

Rules: the short way appends a batch if nothing else has to come first: the partition accepts it as
it is, and it is visible as soon as it is written, or when a sync of this node's disk is over. In
the first case nobody may wait, and no earlier batch may wait for its feeds. The compiled kernel has
the short way. Here everything takes the long way, which specifies it: `Partition.append_built`,
`Partition.request_sync`, `Visibility.show` and `Visibility.advance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onelog.base.errors import OnelogError
    from onelog.base.ids import Epoch, Offset
    from onelog.kernel.pure.build import BatchBuilder
    from onelog.kernel.pure.file_end import LogEnd


class VisibleEnd:
    """The end that readers see, and those who are fed with it."""

    __slots__ = (
        "budget", "fed_topics", "feeding", "feeds", "gap_end", "gap_start", "high_watermark",
        "late", "producers", "stable_waiters", "topics_wanted", "unseen", "unseen_bytes",
        "waiters",
    )  # fmt: skip

    high_watermark: Offset
    gap_start: Offset
    gap_end: Offset
    """The offsets of the gap: to be fed next, and not held. Without a gap both are the same."""
    feeds: tuple[Any, ...]
    """Called with batches when they become visible, without reading the log back."""
    unseen: Any
    """The batches after the gap that no feed has had, with their ends."""
    unseen_bytes: int
    budget: Any
    """How many bytes all partitions together may hold for feeds."""
    late: dict[Any, Offset]
    """Feeds that began while a gap was being read, and where each began: batches behind the gap may
    lie below that, too."""
    waiters: Any
    """Those who wait for an answer to a write, and readers of uncommitted records."""
    stable_waiters: Any
    producers: Any
    fed_topics: bytes | None
    """While a feed is called: the topics of its data, in the index's form; None: read the data."""
    feeding: bool
    topics_wanted: bool
    """Whether a feed looks at `fed_topics`."""

    @property
    def pending_writes(self) -> int:
        """How many writes wait that are not waiters."""
        return 0

    def spill(self) -> None:
        """Let writes that wait be waiters like all others."""


class PartitionEnd:
    """The end of a partition that grows."""

    __slots__ = (
        "at_once", "by_sync", "durable", "end_offset", "has_begun", "is_noted", "jobs",
        "leader_epoch", "log_end", "place", "records_appended", "refusal", "shared", "stamps",
        "stopped", "syncing", "syncs", "unsnapshotted_bytes", "visible",
    )  # fmt: skip

    end_offset: Offset
    durable: Offset
    """Everything below it was synced."""
    records_appended: int
    unsnapshotted_bytes: int
    """Bytes that were appended since the derived state was snapshotted."""
    leader_epoch: Epoch
    refusal: OnelogError | None
    """The error with which appends are refused; None: they are accepted."""
    at_once: bool
    """Whether records are visible as soon as they are written."""
    by_sync: bool
    """Whether records are visible as soon as this node has synced them."""
    syncing: bool
    """Whether a sync is under way; there is never a second one."""
    syncs: int
    has_begun: bool
    """Whether `shared.begun` knows that this partition holds durable records."""
    stopped: OnelogError | None
    place: str
    """The name of the partition in logs and troubles."""
    jobs: Any
    """Counts the work of threads on the log."""
    shared: Any
    """Has the threads that sync, and who watches them."""
    is_noted: bool
    """Whether the history of epochs has the epoch that writes now."""
    stamps: bool
    """Whether records get the time at which they are appended."""
    visible: Any
    log_end: LogEnd | None
    """The end of its log; None: the log has no short way."""

    def append_quickly(self, builder: BatchBuilder, index_topics: bool) -> int:
        """Append the staged records; -1, with nothing done: take the long way."""
        del builder, index_topics
        return -1
