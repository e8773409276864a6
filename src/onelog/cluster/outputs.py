"""What the machines of replication ask of their rim, and what they ask of the log beside them.

A machine does no I/O: its rim calls it with frames, rows and the time, takes its outputs from
`flush` once per pass of the loop, and carries them out in their order.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from onelog.cluster.frames import FeedBatches, FeedFrame, FeedLane
from onelog.cluster.rows import PartitionChange


class ReplicaLog(Protocol):
    """The log of this replica, as a machine looks at it."""

    @property
    def start(self) -> int:
        """The first offset that may be read."""
        ...

    @property
    def end(self) -> int:
        """Where the log ends: it is written up to here."""
        ...

    @property
    def durable(self) -> int:
        """The disk has everything below."""
        ...

    @property
    def high_watermark(self) -> int:
        """Everything below is on all replicas that count, as far as this replica knows."""
        ...

    @property
    def gone_below(self) -> int:
        """Tombstones below it may have been dropped: a copy that ends before it would keep what
        they deleted."""
        ...

    def last_epoch(self) -> int:
        """The epoch of the last record; -1: there is none."""
        ...

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The newest epoch of the log that is not newer than `epoch`, and where it ends in the log.

        (-1, -1): every epoch of the log is newer.
        """
        ...


class SendFrame(msgspec.Struct, frozen=True):
    """Send a frame to a node. A frame that cannot be sent is lost with its link."""

    node: int
    lane: FeedLane
    frame: FeedFrame


class ReadPiece(msgspec.Struct, frozen=True):
    """Read batches for a feed, then call `ReplicaLeader.piece` with them."""

    node: int
    feed: int
    offset: int
    upto: int
    """No batch that reaches beyond it."""
    bytes_max: int


class WriteRow(msgspec.Struct, frozen=True):
    """Write the row, and answer with its outcome."""

    change: PartitionChange


class ReadRow(msgspec.Struct, frozen=True):
    """Read the row as it is now (never from a cache), and hand it in."""


class AppendCopy(msgspec.Struct, frozen=True):
    """If `ReplicaFollower.accepts` the frame: append its batches, take the high watermark, then the
    start and the bound of compaction."""

    frame: FeedBatches


class TakeMark(msgspec.Struct, frozen=True):
    """Take the leader's high watermark, start and bound of compaction.

    The high watermark never falls nor passes the log's end. The log is trimmed to `start`, and
    never beyond its high watermark.
    """

    high_watermark: int
    start: int
    compact_bound: int


class CutLog(msgspec.Struct, frozen=True):
    """Cut off what lies at and behind `end`, durably, then call `ReplicaFollower.cut`."""

    end: int


class CopyAnew(msgspec.Struct, frozen=True):
    """Drop everything, begin an empty log at `start`, then call `ReplicaFollower.cut`."""

    start: int


class StopReplica(msgspec.Struct, frozen=True):
    """The log contradicts its leader's: stop the partition as damaged (I9)."""

    why: str


class Lead(msgspec.Struct, frozen=True):
    """Let the log take appends in this epoch, then call `ClusterReplica.lead`."""

    epoch: int


class Follow(msgspec.Struct, frozen=True):
    """Take no more appends: this epoch has its leader elsewhere. Answers become unknown."""

    epoch: int


LeaderOutput = SendFrame | ReadPiece | WriteRow | ReadRow
FollowerOutput = SendFrame | AppendCopy | TakeMark | CutLog | CopyAnew | StopReplica | ReadRow
ReplicaOutput = LeaderOutput | FollowerOutput | Lead | Follow
