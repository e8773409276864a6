"""A simulated node: its process, its logs, what it saw of the store, and its replicas.

It is the rim around the machines of `onelog.cluster`: it carries out their outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from onelog.cluster.controller import ClusterView, Wish, plan
from onelog.cluster.follower import FeedNumbers
from onelog.cluster.frames import CloseFeed, CloseReason, FeedFrame, FeedLane, OpenFeed
from onelog.cluster.membership import RowOutcome
from onelog.cluster.outputs import (
    AppendCopy,
    CopyAnew,
    CutLog,
    Follow,
    Lead,
    ReadPiece,
    ReadRow,
    ReplicaOutput,
    SendFrame,
    StopReplica,
    TakeMark,
    WriteRow,
)
from onelog.cluster.replica import ClusterReplica
from onelog.cluster.rows import NodeFacts, PartitionChange, ReplicaSet, seen_together
from onelog.log.promises import Durability
from onelog.storage.engine import PartitionKey
from tests.simulation.cluster.checker import Violation
from tests.simulation.cluster.log import SimulatedLog, Stored
from tests.simulation.cluster.store import Change

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

LAG_S = 0.6
TURNS_MAX = 50
"""A replica that is never done within one pass is stuck."""


class Waiter:
    """A publisher that waits for its record."""

    def __init__(self, offset: int, value: int, done: Callable[[str], None]) -> None:
        self.offset = offset
        self.value = value
        self.done = done


class SimulatedNode:
    """One node over all of its processes."""

    def __init__(self, world: ClusterWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.logs: dict[PartitionKey, SimulatedLog] = {}
        self.observing: set[PartitionKey] = set()
        """Whose log is an observer's, and never a replica's."""
        self.process = 0
        self.is_up = False
        self.paused_until = 0.0
        self.lost: set[str] = {"process"}
        """What the next registration has to say."""
        self.born, self.rate = world.chance.random() * 1e6, world.chance.uniform(0.8, 1.25)
        """This node's own clock."""
        self._forget()

    def _forget(self) -> None:
        """All that a process knows."""
        self.node_epoch = 0
        self.numbers = FeedNumbers()
        self.replicas: dict[PartitionKey, ClusterReplica] = {}
        self.rows: dict[PartitionKey, tuple[ReplicaSet, int]] = {}
        self.facts: dict[int, NodeFacts] = {}
        self.epochs: dict[int, int] = {}
        self.members: dict[int, tuple[NodeFacts, int]] = {}
        """What each member's row says, and its revision: another watch than that of nodes."""
        self.controller = (-1, 0)
        self.seen_revision = 0
        self.linked_to: set[int] = set()
        self.waiters: dict[PartitionKey, list[Waiter]] = {}
        self.syncing: set[PartitionKey] = set()
        self.timers: dict[PartitionKey, float] = {}
        self.touched: set[PartitionKey] = set()
        self.planning = False
        self.planned: set[PartitionKey] = set()
        self.shown: dict[PartitionKey, int] = {}
        self.wishes: dict[PartitionKey, Wish] = {}
        self.is_full = False
        """Its disk has no room. Copies have some, as they would have for small pieces."""

    @property
    def now(self) -> float:
        """The time by its own clock: another origin and another rate than those of other nodes."""
        return self.born + self.world.now * self.rate

    @property
    def is_ready(self) -> bool:
        return self.is_up and self.node_epoch > 0

    # -- life

    def start(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.process += 1
            if self.world.moves_observers:
                for partition in list(self.observing):
                    self._drop_observed(partition)
            for log in self.logs.values():
                log.reopen()
            self.world.join(self)

    def die(self, how: str) -> None:
        """By a kill, without power, or with its disk."""
        if how == "power":
            self.lost.add("cache")
            for log in self.logs.values():
                log.lose_cache(self.world.chance)
        elif how == "disk":
            self.lost.add("disk")
            self.logs.clear()
        self.lost.add("process")
        for partition in list(self.logs):
            if self.world.level(partition) is Durability.MEMORY:
                del self.logs[partition]
        for waiters in self.waiters.values():
            for waiter in waiters:
                waiter.done("unknown")
        self.is_up = False
        self.process += 1
        self._forget()
        self.world.network.isolate(self.number)

    def registered(self, node_epoch: int) -> None:
        """The store has this process; it reads all rows, and what it reads is whole."""
        store = self.world.store
        self.node_epoch = node_epoch
        self.rows, self.facts = dict(store.rows), dict(store.nodes)
        self.epochs = {one: facts.node_epoch for one, facts in store.nodes.items()}
        self.members = {one: (facts, store.members[one]) for one, facts in store.nodes.items()}
        self.controller, self.seen_revision = store.controller, store.revision
        self.wishes = dict(self.world.wishes)
        for partition in self.rows:
            self._row_changed(partition)
        for replica in self.replicas.values():
            replica.nodes_seen(self.facts, self.now)
            replica.registered(node_epoch, self.now)
        self.world.network.isolate(self.number)
        self._touch_all()
        self.world.plan_soon(self)

    def rot(self, partition: PartitionKey) -> None:
        """The log of a replica turns out to be damaged: it stops."""
        self.logs[partition].rot(self.world.chance)
        self.replicas[partition].damaged(self.now)
        self.touch(partition)

    # -- what the store tells

    def told(self, change: Change) -> None:
        if change.revision <= self.seen_revision:
            return
        self.seen_revision = change.revision
        if change.partition is not None and change.row is not None:
            self.rows[change.partition] = (change.row, change.revision)
            self._row_changed(change.partition)
        elif change.facts is not None:
            facts = change.facts
            if not self.world.is_apart:
                self.members[facts.node] = facts, change.member
            self._nodes_changed(facts.node, facts.node_epoch)
            if facts.node == self.number and not facts.is_up and self.node_epoch:
                self.world.join(self)  # the lease is gone, and the process lives
        elif change.controller is not None:
            self.controller = (change.controller, change.revision)
        self.world.plan_soon(self)

    def told_of_member(self, change: Change) -> None:
        """The watch of members' rows, where that is another one."""
        facts = change.facts
        if facts is None or change.member <= self.members.get(facts.node, (facts, 0))[1]:
            return
        self.members[facts.node] = facts, change.member
        self._nodes_changed(facts.node, self.epochs.get(facts.node, 0))
        self.world.plan_soon(self)

    def _nodes_changed(self, number: int, node_epoch: int) -> None:
        self.epochs[number] = node_epoch
        if number in self.members:
            facts = seen_together(*self.members[number], node_epoch)
            self.facts = {**self.facts, number: facts}
        for replica in self.replicas.values():
            replica.nodes_seen(self.facts, self.now)
        self._touch_all()

    def look(self, partition: PartitionKey) -> None:
        """It begins to observe a partition, or ends it."""
        if partition in self.rows:
            self._row_changed(partition)

    def _row_changed(self, partition: PartitionKey) -> None:
        row, revision = self.rows[partition]
        is_replica = self.number in row.replicas
        observes = not is_replica and self.number in self.world.observers[partition]
        if partition in self.observing and not observes:
            self._drop_observed(partition)
        replica = self.replicas.get(partition)
        if not is_replica and partition not in self.observing:
            if replica is not None:
                self._drop(partition)
            if partition in self.logs:  # a row that comes late may be an old one
                self.world.read_row(self, partition, partial(self._give_up, partition))
                return
        if not is_replica and not observes:
            return
        if observes:
            self.observing.add(partition)
        if replica is None:
            log = self.logs.setdefault(partition, SimulatedLog())
            replica = ClusterReplica(
                partition, self.number, log, self.numbers,
                node_epoch=self.node_epoch, lag_s=LAG_S, observer=observes,
                is_damaged=log.is_damaged,
            )  # fmt: skip
            self.replicas[partition] = replica
            replica.nodes_seen(self.facts, self.now)
            for other in self.linked_to:
                replica.linked(other, self.now)
        replica.row_seen(row, revision, self.now)
        self.touch(partition)

    def _drop_observed(self, partition: PartitionKey) -> None:
        """What an observer has never counts: whatever comes next begins empty."""
        self.observing.discard(partition)
        self.logs.pop(partition, None)
        if partition in self.replicas:
            self._drop(partition)

    def _drop(self, partition: PartitionKey) -> None:
        del self.replicas[partition]
        self.shown.pop(partition, None)
        self._fail_waiters(partition)

    def _give_up(self, partition: PartitionKey, found: tuple[ReplicaSet, int] | None) -> None:
        """Drop the log of a replica that was removed, if the row still says so."""
        if found is None:
            self.world.at(
                self.world.now + 0.3,
                self.world.on_same(
                    self,
                    lambda: self.world.read_row(self, partition, partial(self._give_up, partition)),
                ),
            )
        elif partition not in self.replicas and self.number not in found[0].replicas:
            self.logs.pop(partition, None)
            self.look(partition)  # somebody may read it here

    def _touch_all(self) -> None:
        for partition in self.replicas:
            self.touch(partition)

    # -- links

    def linked(self, other: int) -> None:
        self.linked_to.add(other)
        for partition, replica in self.replicas.items():
            replica.linked(other, self.now)
            self.touch(partition)

    def link_lost(self, other: int) -> None:
        self.linked_to.discard(other)
        for partition, replica in self.replicas.items():
            replica.link_lost(other, self.now)
            self.touch(partition)

    def take(self, sender: int, node_epoch: int, frame: FeedFrame) -> None:
        if isinstance(frame, OpenFeed):
            found = self.replicas.get(frame.partition)
            replicas = [] if found is None else [found]
            if found is None:
                refused = CloseFeed(frame.feed, 0, CloseReason.NOT_LEADER)
                self.world.network.send(self.number, sender, FeedLane.LIVE, refused)
        else:
            replicas = list(self.replicas.values())  # only one knows the number
        for replica in replicas:
            replica.take(sender, node_epoch, frame, self.now)
            self.touch(replica.partition)

    # -- turns

    def touch(self, partition: PartitionKey) -> None:
        """Something happened: take a turn in this pass."""
        if partition not in self.touched:
            self.touched.add(partition)
            self.world.at(
                self.world.now, lambda: self.world.on(self, partial(self.turn, partition))
            )

    def turn(self, partition: PartitionKey) -> None:
        self.touched.discard(partition)
        replica = self.replicas.get(partition)
        if replica is None:
            return
        now = self.now
        replica.room(now, is_full=self.is_full)
        for _ in range(TURNS_MAX):
            outputs = replica.flush(now)
            for output in outputs:
                self._do(replica, output)
            self._progress(replica)
            if not outputs:
                break
        else:
            raise Violation(f"C12: node {self.number} is never done with {partition}")
        ack = replica.follower.acknowledge() if replica.leader is None else None
        if ack is not None:
            self._do(replica, ack)
        self._schedule(partition, replica.due)

    def _schedule(self, partition: PartitionKey, due: float) -> None:
        if due < float("inf") and self.timers.get(partition, 0.0) != due:
            self.timers[partition] = due
            wait_s = max(0.0, due - self.now) / self.rate
            self.world.at(
                self.world.now + wait_s,
                lambda: self.world.on(self, partial(self._timer, partition, due)),
            )

    def _timer(self, partition: PartitionKey, due: float) -> None:
        if self.timers.get(partition) == due:
            del self.timers[partition]
            self.touch(partition)

    def _progress(self, replica: ClusterReplica) -> None:
        """The log moved: sync it, show what may be seen, answer publishers."""
        partition, log = replica.partition, self.logs[replica.partition]
        leader = replica.leader
        if leader is not None:
            leader.progress()
            log.high_watermark = max(log.high_watermark, min(leader.high_watermark, log.end))
            waiting = self.waiters.get(partition, [])
            while waiting and waiting[0].offset < log.high_watermark:
                waiting.pop(0).done("ok")
        shown = self.shown.get(partition, 0)
        if log.high_watermark < shown:
            raise Violation(f"C5: node {self.number} showed {shown}, now {log.high_watermark}")
        if log.high_watermark > shown and not log.is_damaged:  # a reader that waits sees it at once
            self.world.checker.see(partition, log, replica.row.epoch, f"node {self.number}", shown)
        self.shown[partition] = log.high_watermark
        if log.durable < log.end and partition not in self.syncing:
            self._sync(replica)

    def _sync(self, replica: ClusterReplica) -> None:
        partition, log, chance = replica.partition, self.logs[replica.partition], self.world.chance
        is_fsync = replica.row.level is Durability.FSYNC
        wait_s = chance.expovariate(1 / self.world.sync_s if is_fsync else 1)
        if is_fsync and chance.random() < 0.01:
            wait_s += chance.random()
        end, cuts = log.end, log.cuts
        self.syncing.add(partition)

        def synced() -> None:
            self.syncing.discard(partition)
            if log.cuts == cuts:
                log.durable = max(log.durable, end)
            if chance.random() < self.world.keep:
                log.keep()
            self.touch(partition)

        self.world.at(self.world.now + wait_s, lambda: self.world.on(self, synced))

    # -- outputs

    def _do(self, replica: ClusterReplica, output: ReplicaOutput) -> None:
        world, partition = self.world, replica.partition
        log = self.logs[partition]
        match output:
            case SendFrame(node, lane, frame):
                world.network.send(self.number, node, lane, frame)
            case ReadPiece():
                wait_s = world.chance.choice((0.0, 0.0, 0.002))
                self._soon(wait_s, lambda: self._read_piece(replica, output))
            case WriteRow(change):
                world.write_row(self, change, partial(self._written, replica, change))
            case ReadRow():
                world.read_row(self, partition, partial(self._read, replica))
            case AppendCopy(frame):
                if replica.follower.accepts(frame, self.now):
                    log.append_copy(cast("list[Stored]", frame.data))
                    log.take_mark(frame.high_watermark, frame.start)
            case TakeMark(high_watermark, start, _bound):
                log.take_mark(high_watermark, start)
            case CutLog(end):
                world.checker.count["cuts"] += end < log.end
                self._soon(world.chance.random() * 0.01, lambda: self._cut(replica, end))
            case CopyAnew(start):
                world.checker.count["copied anew"] += 1
                self._soon(world.chance.random() * 0.01, lambda: self._anew(replica, start))
            case Lead(epoch):
                if replica.row.recover > world.checker.anew[partition]:
                    world.checker.forget(partition, replica.row.recover)
                log.epochs.note(epoch, log.end)
                leader = replica.lead(self.now)
                world.checker.lead(partition, self.number, self.process, leader.epoch, log)
            case Follow():
                log.epochs.truncate(log.end)  # an epoch that wrote nothing here
                self._fail_waiters(partition)
            case StopReplica(why):
                raise Violation(f"node {self.number} is damaged: {why}")

    def _soon(self, wait_s: float, work: Callable[[], None]) -> None:
        self.world.at(self.world.now + wait_s, lambda: self.world.on(self, work))

    def _read_piece(self, replica: ClusterReplica, want: ReadPiece) -> None:
        log = self.logs.get(replica.partition)
        if replica.leader is None or log is None or want.offset < log.start:
            return
        data: Any = log.read(want.offset, want.upto, want.bytes_max)
        sent = replica.leader.piece(want.node, want.feed, data, want.offset + len(data))
        if sent is not None:
            self._do(replica, sent)
        self.touch(replica.partition)

    def _cut(self, replica: ClusterReplica, end: int) -> None:
        if self.replicas.get(replica.partition) is replica:
            self.logs[replica.partition].truncate(end)
            replica.cut(self.now)
            self.touch(replica.partition)

    def _anew(self, replica: ClusterReplica, start: int) -> None:
        if self.replicas.get(replica.partition) is replica:
            self.logs[replica.partition].begin_anew(start)
            self.shown.pop(replica.partition, None)
            replica.cut(self.now)
            self.touch(replica.partition)

    def _written(
        self, replica: ClusterReplica, change: PartitionChange, outcome: RowOutcome, revision: int
    ) -> None:
        replica.row_written(change, outcome, revision, self.now)
        self.touch(replica.partition)

    def _read(self, replica: ClusterReplica, found: tuple[ReplicaSet, int] | None) -> None:
        if found is None:
            replica.read_failed(self.now)
        else:
            replica.row_read(*found, self.now)
        self.touch(replica.partition)

    # -- clients

    def publish(self, partition: PartitionKey, value: int, done: Callable[[str], None]) -> None:
        replica = self.replicas.get(partition)
        if replica is None or replica.leader is None or not replica.leader.takes_records:
            done("refused")
            return
        offset = self.logs[partition].append(replica.leader.epoch, value)
        waiter = Waiter(offset, value, done)
        self.waiters.setdefault(partition, []).append(waiter)
        self.touch(partition)

    def _fail_waiters(self, partition: PartitionKey) -> None:
        for waiter in self.waiters.pop(partition, []):
            waiter.done("unknown")

    # -- as the controller

    def control(self) -> None:
        """Change what has to be changed, as far as this node knows."""
        self.planning = False
        node, revision = self.controller
        if node != self.number or not self.is_ready:
            return
        view = ClusterView(
            controller=revision,
            nodes=self.facts,
            rows=self.rows,
            wishes=self.wishes,
            shards=[self.world.partitions] if self.world.is_shard else (),
            is_calm=self.world.chance.random() < 0.1,
        )
        for change in plan(view):
            if change.partition not in self.planned:
                self.planned.add(change.partition)
                self.world.write_row(self, change, partial(self._controlled, change.partition))

    def _controlled(self, partition: PartitionKey, _outcome: RowOutcome, _revision: int) -> None:
        self.planned.discard(partition)
        self.world.plan_soon(self)  # what the watch told meanwhile was passed over
