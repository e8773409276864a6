"""A replica that copies its leader, as a follower or as an observer.

Rules:
- From the moment that a row of a newer epoch is seen, every frame of an older one is refused.
- A copy is opened with its end and the epoch of its last record. `Diverge` cuts it: to the leader's
  end of the named epoch or to this log's, whichever is lower; then it is opened again, until both
  logs agree (KIP-279). Never by the high watermark, and never below it: that would be damage,
  unless the row says that the partition began again with a loss.
- A piece follows exactly what the copy has. A piece that is lost on a link looks like a gap that
  compaction left, so the frame names the end that it follows.
- The written end is acknowledged when the log has it and the durable end when the disk has it, once
  per pass.
- A replica that is damaged, or too far behind, first leaves ISR and ELR, then copies anew: else it
  could be elected without its records. Its row says too little, for a change that adds it may be
  under way: the leader says when.
- A node that the row does not list opens nothing: it is about to drop what it has.
- A copy that sees another leader, or none, closes its feed at once, before it does anything in a
  newer epoch: an open feed proves that its copy knows no other leader (`tenure.py`).
- An observer holds only what lies below the leader's high watermark. It is never cut. It
  acknowledges for the sake of its credit, and never counts.
- A replica that gave way because its disk is full asks for an observer's feed until there is room,
  unless its row counts on it: it hears what is trimmed, and does not enter the ISR.
"""

from __future__ import annotations

from typing import Final

from onelog.cluster.frames import (
    AckFeed,
    CloseFeed,
    CloseReason,
    Diverge,
    FeedBatches,
    FeedFrame,
    FeedLane,
    MarkFeed,
    OpenFeed,
)
from onelog.cluster.outputs import (
    AppendCopy,
    CopyAnew,
    CutLog,
    FollowerOutput,
    ReadRow,
    ReplicaLog,
    SendFrame,
    StopReplica,
    TakeMark,
)
from onelog.cluster.rows import NOBODY, ReplicaSet
from onelog.storage.engine import PartitionKey

REOPEN_S: Final = 0.3
"""Wait before a feed that its leader closed is opened again."""
NEVER: Final = float("inf")


class FeedNumbers:
    """Numbers for the feeds of one process: none comes twice."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """A new one."""
        self._last += 1
        return self._last


class ReplicaFollower:
    """This node copies the partition, over all epochs in which it does not lead."""

    def __init__(
        self,
        partition: PartitionKey,
        node: int,
        log: ReplicaLog,
        numbers: FeedNumbers,
        *,
        observer: bool = False,
        is_damaged: bool = False,
    ) -> None:
        self.partition = partition
        self.node = node
        self.observer = observer
        self.is_damaged = is_damaged
        """What the log holds cannot be trusted: it is dropped when nobody counts on it."""
        self.leader = NOBODY
        self.epoch = 0
        self._row: ReplicaSet | None = None
        self._log = log
        self._numbers = numbers
        self.lacks_room = False
        """It led, and gave way because its disk is full."""
        self._feed: int | None = None
        """The feed that is open or being opened."""
        self._feed_observes = observer
        """What it was opened as."""
        self._links: set[int] = set()
        self.is_cutting = False
        self._opens_at = NEVER
        self._acked = (-1, -1)
        self._out: list[FollowerOutput] = []

    # -- who leads

    def row_seen(self, row: ReplicaSet, now: float) -> None:
        """The store has this row; the caller hands in rows in their order."""
        self._row = row
        is_listed = self.observer or self.node in row.replicas
        leader = row.leader if row.leader != self.node and is_listed else NOBODY
        if row.epoch < self.epoch or (row.epoch, leader) == (self.epoch, self.leader):
            return
        if self._feed is not None:
            self._send(CloseFeed(self._feed, row.epoch, CloseReason.FENCED, by_copy=True))
        self.epoch, self.leader = row.epoch, leader
        self._reopen(now)

    def linked(self, node: int, now: float) -> None:
        """There is a link to a node. Its frames come after this call."""
        self._links.add(node)
        if node == self.leader:
            self._reopen(now)

    def link_lost(self, node: int) -> None:
        """The link to a node broke."""
        self._links.discard(node)
        if node == self.leader:
            self._feed, self._opens_at = None, NEVER

    def damaged(self, now: float) -> None:
        """The log turned out to be damaged."""
        if self._feed is not None:
            self._say_close(self._feed, CloseReason.DAMAGED)
        self.is_damaged = True
        self._reopen(now)

    # -- opening

    def _reopen(self, at: float) -> None:
        self._feed, self._opens_at = None, at

    def _open(self, now: float) -> None:
        if self.is_cutting or self.leader not in self._links:
            self._opens_at = NEVER  # what is missing calls
            return
        log, self._opens_at = self._log, NEVER
        self._feed = feed = self._numbers.next()
        if not self.is_damaged:
            self._acked = (log.end, log.durable)
            self._say_open(feed, log.end, log.durable, log.last_epoch())
        elif self.observer:
            self._out.append(self.drop())
        else:
            self._say_open(feed, 0, 0, -1)
            self._say_close(feed, CloseReason.DAMAGED)
            self._opens_at = now + REOPEN_S

    def drop(self) -> CopyAnew:
        """Begin empty: nobody counts on what is here."""
        self.is_damaged, self._feed, self.is_cutting = False, None, True
        return CopyAnew(0)

    @property
    def _counts(self) -> bool:
        """Whether the row says that this replica has everything."""
        row = self._row
        return row is not None and (self.node in row.isr or self.node in row.elr)

    @property
    def _observes(self) -> bool:
        """Whether a feed that is opened now is one of an observer."""
        return self.observer or (self.lacks_room and not self._counts)

    def _say_open(self, feed: int, end: int, durable: int, last_epoch: int) -> None:
        self._feed_observes = observes = self._observes
        self._send(OpenFeed(feed, self.partition, self.epoch, end, durable, last_epoch, observes))

    def _say_close(self, feed: int, reason: CloseReason) -> None:
        self._send(CloseFeed(feed, self.epoch, reason, by_copy=True))

    def cut(self, now: float) -> None:
        """The log was cut, or begun anew."""
        self.is_cutting = False
        self._reopen(now)

    # -- frames

    def take(self, frame: FeedFrame, now: float) -> None:
        """A frame of the leader."""
        if frame.feed != self._feed:
            return
        if isinstance(frame, CloseFeed):
            self._closed(frame, now)
        elif self.is_damaged:
            pass  # what came before the leader knew of it
        elif frame.leader_epoch != self.epoch:
            self._reopen(now)
        elif isinstance(frame, FeedBatches):
            self._out.append(AppendCopy(frame))
        elif isinstance(frame, MarkFeed):
            self._out.append(TakeMark(frame.high_watermark, frame.start, frame.compact_bound))
        elif isinstance(frame, Diverge):
            self._diverged(frame)

    def accepts(self, frame: FeedBatches, now: float) -> bool:
        """Whether a piece may be appended: it follows what the log has at this moment."""
        if frame.feed != self._feed:
            return False  # the feed ended in the same pass
        if frame.after == self._log.end:
            return True
        self.refuse(CloseReason.GAP, now)
        return False

    def refuse(self, reason: CloseReason, now: float) -> None:
        """The open feed brought what cannot be appended: close it, and open another later."""
        if self._feed is not None:
            self._say_close(self._feed, reason)
            self._reopen(now if reason is CloseReason.GAP else now + REOPEN_S)

    def _diverged(self, frame: Diverge) -> None:
        log = self._log
        _epoch, own_end = log.end_of(frame.epoch)
        if own_end >= 0:
            end = min(frame.end, own_end, log.end)
        elif frame.epoch >= 0:
            end = min(frame.end, log.start)  # every epoch here is newer: nothing is common
        else:
            end = frame.end  # every epoch there is newer: what is common lies before its start
        self._feed = None
        is_known_loss = self._row is not None and self._row.recover > log.last_epoch()
        is_wrong = end < log.high_watermark or (self.observer and end < log.end)
        if is_wrong and is_known_loss:
            self.is_cutting = True
            self._out.append(CopyAnew(0))
        elif is_wrong:
            self._out.append(
                StopReplica(
                    f"the leader of epoch {self.epoch} has nothing in common with this copy behind"
                    f" {end}, but all replicas had everything below {log.high_watermark}"
                )
            )
        else:
            self.is_cutting = True
            # What is trimmed, here or there, cannot be compared: it would diverge again.
            is_blind = end == log.end or (frame.epoch < 0 and end > log.start)
            self._out.append(CopyAnew(end) if is_blind else CutLog(end))

    def _closed(self, frame: CloseFeed, now: float) -> None:
        if self.is_damaged and frame.reason is CloseReason.BEHIND:
            return  # so it would be for an empty copy
        self._feed = None
        if frame.reason is CloseReason.BEHIND and self._counts:
            self._opens_at = now + REOPEN_S  # while it is counted on, it keeps what it has
            return
        if frame.reason is CloseReason.DAMAGED:
            if self.is_damaged and frame.leader_epoch == self.epoch:
                self._out.append(self.drop())
            return
        if frame.reason is CloseReason.BEHIND:
            self.is_cutting = True
            self._out.append(CopyAnew(frame.offset))
            return
        if frame.leader_epoch != self.epoch or frame.reason is CloseReason.NOT_LEADER:
            self._out.append(ReadRow())
        self._opens_at = now + REOPEN_S

    # -- what is to be done

    def flush(self, now: float) -> list[FollowerOutput]:
        """What is to be done now; called once per pass, and when `due` has come."""
        if self._feed is not None and self._feed_observes != self._observes:
            self._reopen(now)
        if now >= self._opens_at and (self._feed is None or self.is_damaged):
            self._open(now)
        out, self._out = self._out, []
        return out

    def acknowledge(self) -> SendFrame | None:
        """The acknowledgement that is due after what the pass has appended and synced."""
        ends = (self._log.end, self._log.durable)
        if self._feed is None or ends == self._acked:
            return None
        self._acked = ends
        return SendFrame(self.leader, FeedLane.LIVE, AckFeed(self._feed, self.epoch, *ends))

    @property
    def due(self) -> float:
        """When `flush` should be called again, if nothing happens before."""
        return self._opens_at

    def _send(self, frame: FeedFrame) -> None:
        self._out.append(SendFrame(self.leader, FeedLane.LIVE, frame))
