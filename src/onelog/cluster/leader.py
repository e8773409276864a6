"""The leader of a partition among its replicas: who gets which records, and how far all are.

Rules (the reference is Kafka's, with KIP-101, 207, 279, 320, 497, 841, 903 and 966):
- An end of a replica is its durable end if the stream is `fsync`, else its written one. The high
  watermark is the lowest end of all that may be in the ISR: of the committed ISR and of the one
  that a pending change would make. It moves only while the committed ISR has `min_insync` members.
- An end counts only from a feed of this epoch. Its opening proved that the copy is a part of this
  log.
- A replica enters the ISR when its end has reached the high watermark and this epoch's start: below
  that start there may be records which another leader answered and this one does not know to be
  answered.
- One change of the row is pending at a time. A change whose outcome is unknown stays pending, and
  is tried again as it was, until a newer revision of the row is seen: two attempts of one revision
  exclude each other. So the ISR that counts is never smaller than the one in the store.
- A row of another epoch, another leader or another process of this node deposes this leader.
- A replica in ISR or ELR that comes back with less than the high watermark has lost records. It
  leaves both. One that has the high watermark never does, however much was compacted.
This is the `Progress` of its partition (`log/progress.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from onelog.base.ids import Offset
from onelog.cluster.feeds import PIECE_BYTES, Bounds, FeedState
from onelog.cluster.frames import (
    AckFeed,
    CloseFeed,
    CloseReason,
    Diverge,
    FeedBatches,
    FeedLane,
    MarkFeed,
    OpenFeed,
)
from onelog.cluster.membership import Membership, RowOutcome
from onelog.cluster.outputs import LeaderOutput, ReadPiece, ReplicaLog, SendFrame
from onelog.cluster.rows import NodeFacts, PartitionChange, ReplicaSet
from onelog.log.promises import Durability
from onelog.storage.engine import Buffer, PartitionKey


class ReplicaLeader:
    """This node leads the partition, in one epoch."""

    def __init__(
        self,
        partition: PartitionKey,
        node: int,
        row: ReplicaSet,
        revision: int,
        log: ReplicaLog,
        nodes: Mapping[int, NodeFacts],
        lag_s: float,
        now: float,
    ) -> None:
        self.partition = partition
        self.node = node
        self.epoch = row.epoch
        self._log = log
        self.epoch_start = log.end
        """Where this epoch's records begin."""
        self.high_watermark = log.high_watermark
        self.members = Membership(partition, node, row, revision, lag_s, now)
        self.members.nodes = nodes
        self._feeds: dict[int, FeedState] = {}
        """By node: one of each."""
        self._opened: dict[int, int] = {}
        """Node → the number of the last feed that it asked for, also if that was refused."""
        self._ends: dict[int, tuple[int, int]] = {}
        """Node → written and durable end, as a feed of this epoch proved them."""
        self._out: list[LeaderOutput] = []
        self._now = now
        self.compact_bound = 0
        """Up to where its copies may compact what they have, as far as this leader knows."""
        self.is_over = False
        """Deposed: another leader, or nobody, has the partition."""

    # -- what is known

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark is at least what any leader before this one may have shown.

        Until then nobody gets to know the end, or it could go back (KIP-207).
        """
        return self.high_watermark >= self.epoch_start

    @property
    def takes_records(self) -> bool:
        """Whether a record that is appended now can be answered: else publishers are refused."""
        row = self.members.row
        return not self.is_over and len(row.isr) >= row.min_insync

    @property
    def is_alone(self) -> bool:
        """Whether no other node copies the partition, or is to."""
        return self.members.row.replicas == (self.node,) and not self._feeds

    @property
    def rivals(self) -> set[int]:
        """All others that may be in the ISR or ELR: whoever is elected next is one of them, unless
        an operator accepts a loss."""
        return (self.members.maximal() | self.members.row.elr.keys()) - {self.node}

    def feeds(self, node: int) -> bool:
        """Whether a replica copies in this epoch, as far as is known here."""
        feed = self._feeds.get(node)
        return feed is not None and not feed.observer

    def end_of_replica(self, node: int) -> int:
        """How far a replica counts; -1: nothing of it is known in this epoch."""
        written, durable = self._ends.get(node, (-1, -1))
        if node == self.node:
            written, durable = self._log.end, self._log.durable
        return durable if self.members.row.level is Durability.FSYNC else written

    def lag_of(self, node: int) -> int:
        """How many offsets a replica lacks."""
        return self._log.end - max(0, self.end_of_replica(node))

    # -- as the partition's Progress

    def moved(self, written: Offset, durable: Offset) -> Offset:
        """An end moved here. Returns the high watermark."""
        del written, durable  # the log has them
        self.progress()
        return Offset(self.high_watermark)

    def let_compact(self, upto: int) -> None:
        """The copies may compact what lies below, too."""
        self.compact_bound = max(self.compact_bound, min(upto, self.high_watermark))

    def progress(self) -> None:
        """Let the high watermark move as far as it may."""
        if self.is_over:
            return
        row = self.members.row
        if len(row.isr) < row.min_insync:
            return
        reached = min(map(self.end_of_replica, self.members.maximal()))
        self.high_watermark = max(self.high_watermark, reached)

    # -- frames

    def opened(self, node: int, node_epoch: int, frame: OpenFeed, now: float) -> None:
        """A node asks for a feed."""
        self._now = now
        if frame.leader_epoch != self.epoch or self.is_over:
            is_older = frame.leader_epoch < self.epoch
            reason = CloseReason.FENCED if is_older else CloseReason.NOT_LEADER
            self._close(node, frame.feed, reason)
            return
        if not self.members.knows(node, node_epoch, observer=frame.observer):
            self._close(node, frame.feed, CloseReason.NOT_LEADER)
            return
        self._feeds.pop(node, None)
        self._opened[node] = frame.feed
        log = self._log
        has_none = frame.last_epoch < 0
        is_behind = frame.end < self._first_for(node, frame)
        if not frame.observer and (is_behind or frame.end < self.high_watermark):
            self.members.lost(node)
        if is_behind and not frame.observer and self.members.counts_on(node):
            self._close(node, frame.feed, CloseReason.OVER)  # it copies anew when it has left
            return
        if is_behind or (has_none and frame.end > log.end):
            self._close(node, frame.feed, CloseReason.BEHIND, log.start)
            return
        epoch, end = log.end_of(frame.last_epoch)
        if not has_none and (epoch != frame.last_epoch or end < frame.end):
            # A log that knows only newer epochs shares nothing behind its start.
            parted = Diverge(frame.feed, self.epoch, epoch, end if epoch >= 0 else log.start)
            self._send(node, FeedLane.LIVE, parted)
            return
        lane = FeedLane.LIVE if frame.end == log.end else FeedLane.BULK
        feed = FeedState(frame.feed, node, node_epoch, frame.end, lane, observer=frame.observer)
        self._feeds[node] = feed
        if not frame.observer:
            self._take_ends(feed, frame.end, frame.durable)

    def _first_for(self, node: int, frame: OpenFeed) -> int:
        """What a copy must reach to go on from where it ends.

        A copy that has nothing yet has nothing that compaction deleted. Only what all members had
        is compacted, so a member that has reached the high watermark lacks no tombstone: what the
        log says of its compaction is where its last segment begins, and may lie beyond.
        """
        log = self._log
        has_all = self.members.counts_on(node) and frame.end >= self.high_watermark
        if frame.last_epoch < 0 or has_all:
            return log.start
        return max(log.start, log.gone_below)

    def acked(self, node: int, frame: AckFeed, now: float) -> None:
        """A replica says how far it is."""
        self._now = now
        feed = self._feeds.get(node)
        if feed is None or feed.feed != frame.feed or frame.leader_epoch != self.epoch:
            return
        if not frame.durable <= frame.written <= feed.position:
            self._end_feed(feed, CloseReason.OVER)  # it says what it cannot have
            return
        feed.acked(frame.written)
        if not feed.observer:
            self._take_ends(feed, frame.written, frame.durable)

    def _take_ends(self, feed: FeedState, written: int, durable: int) -> None:
        node = feed.node
        self._ends[node] = (written, durable)
        self.members.heard(node)
        reached = self.end_of_replica(node)
        self.members.reached(node, reached, self._log.end, self._now)
        self.progress()

    def closed(self, node: int, frame: CloseFeed, now: float) -> None:
        """A replica ends its feed."""
        self._now = now
        if self._opened.get(node) != frame.feed:
            return
        self._feeds.pop(node, None)
        if frame.reason is CloseReason.DAMAGED:
            self._ends.pop(node, None)
            self.members.lost(node)
            if not self.is_over and not self.members.counts_on(node):
                self._close(node, frame.feed, CloseReason.DAMAGED)

    def link_lost(self, node: int, now: float) -> None:
        """A link broke: pieces may be lost. If only one lane did, the copy hears of it."""
        self._now = now
        feed = self._feeds.get(node)
        if feed is not None:
            self._end_feed(feed, CloseReason.OVER)

    def _end_feed(self, feed: FeedState, reason: CloseReason) -> None:
        del self._feeds[feed.node]
        self._close(feed.node, feed.feed, reason, self._log.start)

    def _close(self, node: int, feed: int, reason: CloseReason, offset: int = 0) -> None:
        self._send(node, FeedLane.LIVE, CloseFeed(feed, self.epoch, reason, offset))

    def _send(self, node: int, lane: FeedLane, frame: CloseFeed | Diverge | MarkFeed) -> None:
        self._out.append(SendFrame(node, lane, frame))

    # -- rows and nodes

    def row_seen(self, row: ReplicaSet, revision: int, now: float) -> None:
        """The store has this row, by a watch or by a read."""
        self._now = now
        if self.is_over or not self.members.adopt(row, revision, now):
            return
        if (row.epoch, row.leader) != (self.epoch, self.node):
            self.depose()
            return
        for feed in list(self._feeds.values()):
            if not self.members.knows(feed.node, feed.node_epoch, observer=feed.observer):
                self._end_feed(feed, CloseReason.OVER)
        self.progress()

    def nodes_seen(self, nodes: Mapping[int, NodeFacts], now: float) -> None:
        """The store has these nodes."""
        self._now = now
        self.members.nodes = nodes

    def row_read(self, row: ReplicaSet, revision: int, now: float) -> None:
        """The row as `ReadRow` found it."""
        self.row_seen(row, revision, now)
        self.members.read(revision)

    def row_written(
        self, change: PartitionChange, outcome: RowOutcome, revision: int, now: float
    ) -> None:
        """The outcome of a change; with DONE, the revision that it made."""
        self._now = now
        self.members.written(change, outcome, revision, now)
        self.progress()

    def depose(self) -> None:
        """Lead no more."""
        self.is_over = True
        for feed in list(self._feeds.values()):
            self._end_feed(feed, CloseReason.OVER)

    # -- what is to be done

    def is_catching_up(self, node: int, feed: int) -> bool:
        """Whether a feed sends what was written long ago."""
        state = self._feeds.get(node)
        return state is not None and state.feed == feed and state.lane is FeedLane.BULK

    def piece(self, node: int, feed: int, data: Buffer, end: int) -> SendFrame | None:
        """Batches were read for a feed: they end at `end`. None: nobody wants them any more."""
        state = self._feeds.get(node)
        if state is None or state.feed != feed or self.is_over:
            return None
        state.is_reading = False
        if end <= state.position:
            return None
        lane, after, bounds = state.lane, state.position, self._bounds()
        state.sent(end, len(data), is_last=end >= self._upto(state))
        state.told = bounds
        return SendFrame(node, lane, FeedBatches(feed, self.epoch, after, *bounds, data))

    def _bounds(self) -> Bounds:
        return self.high_watermark, self._log.start, self.compact_bound

    def _upto(self, feed: FeedState) -> int:
        return self.high_watermark if feed.observer else self._log.end

    def flush(self, now: float) -> list[LeaderOutput]:
        """What is to be done now; called once per pass, and when `due` has come."""
        self._now = now
        if not self.is_over:
            self._feed()
            self._out += self.members.flush(self.end_of_replica, self._ready(), self._log.end, now)
        out, self._out = self._out, []
        return out

    def _ready(self) -> dict[int, int]:
        """Replicas outside the ISR that may enter it, and their node epochs."""
        isr, floor = self.members.row.isr, max(self.high_watermark, self.epoch_start)
        return {
            feed.node: feed.node_epoch
            for feed in self._feeds.values()
            if feed.node not in isr
            and not feed.observer
            and self.end_of_replica(feed.node) >= floor
        }

    def _feed(self) -> None:
        bounds = self._bounds()
        for feed in list(self._feeds.values()):
            upto = self._upto(feed)
            if feed.position < self._log.start:
                self._end_feed(feed, CloseReason.BEHIND)
            elif feed.wants(upto):
                feed.is_reading = True
                self._out.append(ReadPiece(feed.node, feed.feed, feed.position, upto, PIECE_BYTES))
            elif feed.told != bounds and not feed.is_reading:
                feed.told = bounds
                self._send(feed.node, feed.lane, MarkFeed(feed.feed, self.epoch, *bounds))

    @property
    def due(self) -> float:
        """When `flush` should be called again, if nothing happens before."""
        return self.members.due
