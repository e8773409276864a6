"""One replica of a partition on one node: it leads, follows, observes, or steps down.

Rules:
- It leads when the row names this node and this process of it. A row that names an older process of
  this node makes it a follower without a leader: the controller elects anew.
- It does not begin to lead while its log is being cut.
- A leader whose disk is full lets others lead while enough of them are in sync without it. If not,
  it goes on: its publishers wait until there is room. One that gave way is in sync again only when
  there is room: else it would be elected again, and would give way again.
- A replica that is damaged never leads. Named as leader, it writes a row without itself; only where
  the row begins with a loss in memory, and nobody else is in sync, it begins empty instead: without
  it the controller would name it again.
- Rows come in any order, from a watch and from reads. An older revision than the known one changes
  nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onelog.cluster.follower import FeedNumbers, ReplicaFollower
from onelog.cluster.frames import AckFeed, CloseFeed, CloseReason, FeedFrame, FeedLane, OpenFeed
from onelog.cluster.leader import ReplicaLeader
from onelog.cluster.membership import NEVER, RETRY_S, RowOutcome
from onelog.cluster.outputs import Follow, Lead, ReplicaLog, ReplicaOutput, SendFrame, WriteRow
from onelog.cluster.rows import NodeFacts, PartitionChange, ReplicaSet, without_leader, without_lost
from onelog.log.promises import Durability
from onelog.storage.engine import PartitionKey

LAG_S: Final = 5.0
FULL_S: Final = 2.0
"""How long the disk of a leader is full before others lead."""


class ClusterReplica:
    """The machine of one replica."""

    def __init__(
        self,
        partition: PartitionKey,
        node: int,
        log: ReplicaLog,
        numbers: FeedNumbers,
        *,
        node_epoch: int,
        lag_s: float = LAG_S,
        observer: bool = False,
        is_damaged: bool = False,
    ) -> None:
        self.partition = partition
        self.node = node
        self.node_epoch = node_epoch
        """Of this process as it is registered now."""
        self.row = ReplicaSet(replicas=())
        self.revision = 0
        self.leader: ReplicaLeader | None = None
        self.follower = ReplicaFollower(
            partition, node, log, numbers, observer=observer, is_damaged=is_damaged
        )
        self._log = log
        self._lag_s = lag_s
        self._nodes: Mapping[int, NodeFacts] = {}
        self._resign_at = NEVER
        self._resigning: PartitionChange | None = None
        self._led_in = 0
        """The last epoch in which this process led."""
        self._out: list[ReplicaOutput] = []

    @property
    def is_leading(self) -> bool:
        """Whether it takes appends."""
        return self.leader is not None

    # -- rows and nodes

    def row_seen(self, row: ReplicaSet, revision: int, now: float) -> None:
        """The store has this row."""
        if revision <= self.revision:
            return
        self.row, self.revision = row, revision
        self._take_role(now)
        if self.leader is not None:
            self.leader.row_seen(row, revision, now)

    def row_read(self, row: ReplicaSet, revision: int, now: float) -> None:
        """The row as `ReadRow` found it."""
        self.row_seen(row, revision, now)
        if self.leader is not None:
            self.leader.row_read(row, revision, now)

    def read_failed(self, now: float) -> None:
        """The row could not be read."""
        if self.leader is not None:
            self.leader.members.read_failed(now)

    def row_written(
        self, change: PartitionChange, outcome: RowOutcome, revision: int, now: float
    ) -> None:
        """The outcome of a change; with DONE, the revision that it made."""
        if outcome is RowOutcome.DONE:
            self.row_seen(change.row, revision, now)
        if change is self._resigning:
            self._resigning = None
        elif self.leader is not None:
            self.leader.row_written(change, outcome, revision, now)

    def nodes_seen(self, nodes: Mapping[int, NodeFacts], now: float) -> None:
        """The store has these nodes."""
        self._nodes = nodes
        if self.leader is not None:
            self.leader.nodes_seen(nodes, now)

    def registered(self, node_epoch: int, now: float) -> None:
        """This process registered anew: it leads on only where it is elected anew."""
        self.node_epoch = node_epoch
        if self.leader is None:
            self._take_role(now)

    def _take_role(self, now: float) -> None:
        row, led = self.row, self.leader
        if led is not None:
            if (row.epoch, row.leader) == (led.epoch, self.node):
                return
            self._step_down(now)
        self.follower.row_seen(row, now)
        must_resign = self._is_elected and self.follower.is_damaged and not self._may_begin_empty
        self._resign_at = now if must_resign else NEVER

    @property
    def _is_elected(self) -> bool:
        return self.row.leader == self.node and self.row.leader_node_epoch == self.node_epoch

    @property
    def _may_begin_empty(self) -> bool:
        """Whether the row's epoch began with a loss, and nobody has a record of it."""
        row = self.row
        return (
            row.level is Durability.MEMORY
            and row.recover == row.epoch != self._led_in
            and not row.elr
            and row.isr.keys() == {self.node}
        )

    def _step_down(self, now: float) -> None:
        if self.leader is not None:
            self.leader.depose()
            self._out += self.leader.flush(now)
            self.leader = None
            self._out.append(Follow(self.row.epoch))

    def lead(self, now: float) -> ReplicaLeader:
        """`Lead` was carried out: the log takes appends in the row's epoch."""
        assert self.leader is None
        self._led_in = self.row.epoch
        self.leader = ReplicaLeader(
            self.partition, self.node, self.row, self.revision, self._log, self._nodes,
            self._lag_s, now,
        )  # fmt: skip
        return self.leader

    def damaged(self, now: float) -> None:
        """The log cannot be trusted."""
        self._step_down(now)
        self.follower.damaged(now)
        self._take_role(now)

    def room(self, now: float, *, is_full: bool) -> None:
        """Whether the disk has no room for a write."""
        if not is_full:
            self.follower.lacks_room = False
        if self.leader is None:
            return
        if not is_full:
            self._resign_at = NEVER
        elif self._resign_at == NEVER:
            self._resign_at = now + FULL_S

    def _resigned(self) -> ReplicaSet | None:
        """The row without this node as leader; None: nobody could lead in its place."""
        if self.leader is None:
            return without_leader(without_lost(self.row, (self.node,)))
        lost = self.leader.members.lost_nodes
        row = without_leader(without_lost(self.row, {self.node, *lost}))
        ready = [
            node
            for node in row.isr
            if (facts := self._nodes.get(node)) is not None and facts.is_up and not facts.draining
        ]
        return row if ready and len(row.isr) >= row.min_insync else None

    # -- links and frames

    def linked(self, node: int, now: float) -> None:
        """There is a new link to a node."""
        self.follower.linked(node, now)

    def link_lost(self, node: int, now: float) -> None:
        """The link to a node broke."""
        self.follower.link_lost(node)
        if self.leader is not None:
            self.leader.link_lost(node, now)

    def take(self, node: int, node_epoch: int, frame: FeedFrame, now: float) -> None:
        """A frame of another node. `node_epoch` is what its HELLO said."""
        led = self.leader
        match frame:
            case OpenFeed():
                if led is not None:
                    led.opened(node, node_epoch, frame, now)
                else:
                    closed = CloseFeed(frame.feed, self.row.epoch, CloseReason.NOT_LEADER)
                    self._out.append(SendFrame(node, FeedLane.LIVE, closed))
            case AckFeed():
                if led is not None:
                    led.acked(node, frame, now)
            case CloseFeed() if frame.by_copy:
                if led is not None:
                    led.closed(node, frame, now)
            case _:
                if node == self.follower.leader:
                    self.follower.take(frame, now)

    def cut(self, now: float) -> None:
        """The log was cut, or begun anew."""
        self.follower.cut(now)

    # -- what is to be done

    def flush(self, now: float) -> list[ReplicaOutput]:
        """What is to be done now; called once per pass, and when `due` has come."""
        if self._resign_at <= now and self._resigning is None:
            self._resign_at = now + RETRY_S
            row = self._resigned()
            if row is not None:
                self._resigning = PartitionChange(
                    partition=self.partition, expected=self.revision, row=row
                )
                self._out.append(WriteRow(self._resigning))
                self.follower.lacks_room = self.leader is not None
        out, self._out = self._out, []
        if self.leader is not None:
            out += self.leader.flush(now)
            return out
        out += self.follower.flush(now)
        if self._is_elected and not self.follower.is_cutting:
            if not self.follower.is_damaged:
                out.append(Lead(self.row.epoch))
            elif self._may_begin_empty:
                out.append(self.follower.drop())
        return out

    @property
    def due(self) -> float:
        """When `flush` should be called again, if nothing happens before."""
        other = self.follower.due if self.leader is None else self.leader.due
        # While the row is being written, its outcome is what happens next.
        return min(other, self._resign_at if self._resigning is None else NEVER)
