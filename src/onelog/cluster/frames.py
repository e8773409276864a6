"""What replicas of a partition say to each other: plain values, which the link turns into bytes.

Message for message this is Kafka's fetch protocol, pushed: `OpenFeed` is Fetch with an offset and
an epoch, `Diverge` is DivergingEpoch, `AckFeed` is the offset of the next Fetch.

Rules:
- A *feed* is one copy of one partition from its leader to one node, in one leader epoch. The node
  that copies opens it and numbers it. No node uses a number twice while its process lives, so a
  late frame of an old feed is known by its number.
- The link says who sent a frame: the node and its node epoch, as they were in HELLO.
- `OpenFeed`, `AckFeed` go to the leader; `Diverge`, `FeedBatches`, `MarkFeed` come from it;
  `CloseFeed` goes both ways.
- `leader_epoch` is the epoch that the sender speaks for. The other end refuses an older one.
- The frames of one feed keep their order on one lane. The leader changes the lane of a feed only
  when everything that it sent has been acknowledged.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from onelog.storage.engine import Buffer, PartitionKey


class FeedLane(IntEnum):
    """Which of the two connections of a pair of nodes a frame takes."""

    LIVE = 0
    BULK = 1
    """Catching up: so much that acknowledgements and new records must not stand behind it."""


class CloseReason(IntEnum):
    """Why a feed ends."""

    NOT_LEADER = 0
    """The node does not lead the partition, as far as it knows."""
    FENCED = 1
    """The epoch is over: `leader_epoch` says which one is known here."""
    BEHIND = 2
    """The leader no longer has what the copy needs next: copy anew from `offset`."""
    GAP = 3
    """A piece does not follow what the copy has: open the feed again."""
    DAMAGED = 4
    """The copy cannot be trusted: the replica leaves the in-sync set and copies anew."""
    OVER = 5
    """The sender has no use for it any more: a role or a partition ended."""


class OpenFeed(msgspec.Struct, frozen=True, gc=False):
    """Copy this partition to me from `end` on, if my log is a part of yours."""

    feed: int
    partition: PartitionKey
    leader_epoch: int
    end: int
    """Where the copy ends."""
    durable: int
    """The disk of the copy has everything below it."""
    last_epoch: int
    """The epoch of the last record of the copy; -1: it has none."""
    observer: bool = False
    """Send only what lies below the high watermark; its acknowledgements are credit only."""


class Diverge(msgspec.Struct, frozen=True, gc=False):
    """The copy is not a part of my log: cut it, and open again.

    `epoch` is the newest epoch of my log that is not newer than the copy's last one, and `end` is
    where it ends in my log.
    """

    feed: int
    leader_epoch: int
    epoch: int
    end: int


class CloseFeed(msgspec.Struct, frozen=True, gc=False):
    """The feed ends."""

    feed: int
    leader_epoch: int
    reason: CloseReason
    offset: int = 0
    """BEHIND: where the leader's log starts."""
    by_copy: bool = False
    """Whether the node that opened the feed says it. Two nodes may lead one partition each and use
    the same number: then only this tells the two feeds apart."""


class FeedBatches(msgspec.Struct, frozen=True, gc=False):
    """Batches as they are stored. They follow what was sent before: the copy ends at `after`."""

    feed: int
    leader_epoch: int
    after: int
    high_watermark: int
    start: int
    compact_bound: int
    data: Buffer


class MarkFeed(msgspec.Struct, frozen=True, gc=False):
    """What `FeedBatches` says beside the batches, when there are none to send."""

    feed: int
    leader_epoch: int
    high_watermark: int
    start: int
    compact_bound: int


class AckFeed(msgspec.Struct, frozen=True, gc=False):
    """The copy is written up to `written`, and its disk has everything below `durable`."""

    feed: int
    leader_epoch: int
    written: int
    durable: int


FeedFrame = OpenFeed | Diverge | CloseFeed | FeedBatches | MarkFeed | AckFeed
