"""The world of one seed: nodes, a store, a network, clients, and all that goes wrong.

Rules: the seed decides everything, and time jumps from event to event. Faults end at some moment;
then every node runs and every link heals, and calls must succeed again within `PROGRESS_S` (C12).
At last a node drains.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from unittest.mock import patch

from onelog.base.ids import PartitionId
from onelog.cluster import feeds, leader, replica
from onelog.cluster.controller import Wish
from onelog.cluster.membership import RowOutcome
from onelog.cluster.rows import NOBODY, PartitionChange, ReplicaSet, new_row
from onelog.log.promises import Durability
from onelog.storage.engine import PartitionKey
from tests.simulation.cluster.ambushes import Ambushes
from tests.simulation.cluster.checker import Checker, Violation
from tests.simulation.cluster.faults import KINDS, Faults
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.store import Change, SimulatedStore

FAULTS_S = 4.0
PROGRESS_S = 10.0
DRAIN_S = 5.0
TTL_S = 0.8
CALL_S = 1.0
EVENTS_MAX = 200_000

Event = tuple[float, int, Callable[[], None]]
Reply = Callable[[RowOutcome, int], None]


class ClusterWorld:
    """One seed."""

    levels: tuple[Durability, ...] = (
        Durability.FSYNC, Durability.FSYNC, Durability.OS, Durability.MEMORY
    )  # fmt: skip
    sizes: tuple[int, ...] = (3, 3, 4, 5)
    sync_times: tuple[float, ...] = (0.005, 0.005, 0.05)
    min_insyncs: tuple[int, ...] = (1, 2, 2, 2, 3)
    luck: tuple[float, ...] = (0.03, 0.03, 0.25)
    """How many writes of the store have no answer."""
    many: tuple[int, int] = (2, 10)
    """Faults."""
    kinds: tuple[str, ...] = KINDS
    """Which ones, the more often the likelier."""
    keeps: tuple[float, ...] = (0.3, 0.3, 0.02)
    """How many syncs of a log keep its high watermark, too."""
    slow_links: tuple[float, ...] = (1.0, 1.0, 20.0)
    """How much slower than others the links of one node are."""
    moves_observers = False
    """Whether nodes begin and end to observe, and any node may become a replica."""
    is_apart = False
    """Whether the rows of members come by a watch of their own, later than registrations."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.now = 0.0
        self._events: list[Event] = []
        self._sequence = 0
        self.is_calm = False
        """No more faults."""
        self.checker = Checker()
        self.store = SimulatedStore(self._tell)
        self.watch_times: dict[tuple[int, str], float] = {}
        self.news: defaultdict[tuple[int, str], deque[Change]] = defaultdict(deque)
        """By node and watch."""
        self.cut_off: set[int] = set()
        """Nodes that do not reach the store."""
        self.deaf: set[int] = set()
        """Nodes whose watches are late, while their calls get through."""
        self.slow_s = chance.choice((0.001, 0.003, 0.02))
        self.sync_s = chance.choice(self.sync_times)
        self.unlucky = chance.choice(self.luck)
        self.keep = chance.choice(self.keeps)
        size = chance.choice(self.sizes)
        self.slow_node, self.slowness = chance.randrange(size), chance.choice(self.slow_links)
        self.nodes: list[SimulatedNode] = []
        self.network = Network(self, size)
        self.nodes += [SimulatedNode(self, number) for number in range(size)]
        self.partitions = [
            PartitionKey("s", PartitionId(n)) for n in range(chance.choice((1, 1, 2)))
        ]
        self.is_shard = chance.random() < 0.5
        """One node is to lead all partitions."""
        self.observers: dict[PartitionKey, set[int]] = {}
        self.wishes: dict[PartitionKey, Wish] = {}
        """What the streams ask for; each node hears of it in its own time."""
        self.value = 0
        self.died: defaultdict[int, set[str]] = defaultdict(set)
        """How the processes and disks of each node ended."""
        self.faults = Faults(self)
        self.ambushes = Ambushes(self)
        self.least: dict[PartitionKey, int] = {}
        """So many losses may leave a partition offline."""

    # -- time

    def at(self, when: float, work: Callable[[], None]) -> None:
        """Do something at a moment."""
        self._sequence += 1
        heapq.heappush(self._events, (when, self._sequence, work))

    def on(self, node: SimulatedNode, work: Callable[[], None]) -> None:
        """Let a node's process do something now, or when it goes on."""
        if not node.is_up:
            return
        if node.paused_until > self.now:
            process = node.process
            self.at(
                node.paused_until,
                lambda: self.on(node, work) if node.process == process else None,
            )
            return
        work()

    def on_same(self, node: SimulatedNode, work: Callable[[], None]) -> Callable[[], None]:
        """A call of this process: it ends with it."""
        process = node.process
        return lambda: self.on(node, work) if node.process == process else None

    def delay(self) -> float:
        """How long a frame takes."""
        if self.chance.random() < 0.02:
            return self.chance.random() * 0.4
        return self.slow_s * (0.5 + self.chance.random())

    def delay_between(self, one: int, other: int) -> float:
        """How long a frame takes between two nodes."""
        return self.delay() * (self.slowness if self.slow_node in (one, other) else 1.0)

    def run_until(self, end: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Go on until a moment, or until something holds."""
        for _ in range(EVENTS_MAX):
            if is_done():
                return True
            if not self._events or self._events[0][0] > end:
                self.now = max(self.now, end)
                return is_done()
            when, _sequence, work = heapq.heappop(self._events)
            self.now = max(self.now, when)
            work()
        raise Violation("C12: the events never end")

    # -- the store

    def _tell(self, change: Change) -> None:
        for node in self.nodes:
            self._tell_node(node, change)

    def _tell_node(self, node: SimulatedNode, change: Change) -> None:
        self._tell_by(node, "rows", change, self.delay())
        if self.is_apart and change.facts is not None:
            late_s = self.chance.choice((0.0, 0.0, 0.1, 0.5)) * self.chance.random()
            self._tell_by(node, "members", change, self.delay() + late_s)

    def _tell_by(self, node: SimulatedNode, watch: str, change: Change, wait_s: float) -> None:
        when = max(self.watch_times.get((node.number, watch), 0.0), self.now + wait_s)
        self.watch_times[node.number, watch] = when
        self.news[node.number, watch].append(change)
        self.at(when, partial(self._come, node, watch))

    def _come(self, node: SimulatedNode, watch: str) -> None:
        """The oldest change that a node has not seen comes, or waits on."""
        if node.number in self.cut_off or node.number in self.deaf:
            self.at(self.now + 0.1, partial(self._come, node, watch))
        else:
            change = self.news[node.number, watch].popleft()
            told = node.told if watch == "rows" else node.told_of_member
            self.on(node, lambda: told(change))

    def write_row(self, node: SimulatedNode, change: PartitionChange, reply: Reply) -> None:
        """Apply a change, or not, and answer, or not."""
        self.ambushes.row_is_written(node, change)
        answer = partial(self._answer, node, reply)
        luck = self.chance.random()
        wait_s = self.delay()
        if node.number in self.cut_off or (luck < self.unlucky and not self.is_calm):
            self.checker.count["unknown"] += 1
            if self.chance.random() < 0.6:  # it got through, its answer did not
                late_s = self.chance.choice((wait_s, self.chance.random() * 2.0))
                self.at(self.now + late_s, lambda: self.store.apply(change))
            answer(0.3 + self.chance.random() * 0.5, RowOutcome.UNKNOWN, 0)
            return

        def apply() -> None:
            answer(self.delay(), *self.store.apply(change))

        self.at(self.now + wait_s, apply)

    def _answer(
        self, node: SimulatedNode, reply: Reply, wait_s: float, outcome: RowOutcome, revision: int
    ) -> None:
        self.at(self.now + wait_s, self.on_same(node, lambda: reply(outcome, revision)))

    def read_row(
        self,
        node: SimulatedNode,
        partition: PartitionKey,
        reply: Callable[[tuple[ReplicaSet, int] | None], None],
    ) -> None:
        """Read a row as it is at one moment between the call and its answer."""
        process = node.process

        def read() -> None:
            if node.process != process:
                return
            is_lost = node.number in self.cut_off
            found = None if is_lost else self.store.rows[partition]
            wait_s = 0.5 if is_lost else self.delay()
            self.at(self.now + wait_s, self.on_same(node, lambda: reply(found)))

        self.at(self.now + self.delay(), read)

    def wish(self, partition: PartitionKey, wish: Wish) -> None:
        """A stream asks for something else: every node hears of it, some of them late."""
        self.wishes[partition] = wish
        for node in self.nodes:
            self._hear_wish(node, partition)

    def _hear_wish(self, node: SimulatedNode, partition: PartitionKey) -> None:
        wait_s = self.chance.choice((self.delay(), self.delay(), self.chance.random() * 1.5))

        def hear() -> None:
            node.wishes[partition] = self.wishes[partition]
            self.plan_soon(node)

        self.at(self.now + wait_s, self.on_same(node, hear))

    # -- registrations and the controller

    def join(self, node: SimulatedNode) -> None:
        """A process registers: at its start, or because its lease is gone."""
        process = node.process

        def register() -> None:
            if node.process != process or not node.is_up:
                return
            facts = self.store.nodes.get(node.number)
            if node.node_epoch and facts is not None and facts.node_epoch == node.node_epoch:
                return
            if node.number in self.cut_off or node.paused_until > self.now:
                self.at(self.now + 0.1, register)
                return
            rack = f"r{node.number % 2}"
            node_epoch = self.store.register(node.number, lost=node.lost, rack=rack)
            is_lucky = self.is_calm or self.chance.random() >= self.unlucky
            # Without an answer the node reads back what it wrote.
            wait_s = 0.0 if is_lucky else 0.3 + self.chance.random() * 0.5
            self.at(self.now + wait_s, self.on_same(node, partial(hear, node_epoch)))

        def hear(node_epoch: int) -> None:
            held = self.store.nodes[node.number].node_epoch
            if held != node_epoch:
                if not held:  # else a later registration of this process is about to be heard of
                    register()
                return
            node.lost = set()
            node.registered(node_epoch)

        self.at(self.now + 0.005 + self.delay(), register)

    def plan_soon(self, node: SimulatedNode) -> None:
        """A node looks whether it has to control, and what."""
        if not node.planning:
            node.planning = True
            wait_s = 0.005 + self.chance.random() * 0.05
            self.at(self.now + wait_s, self.on_same(node, lambda: self._control(node)))

    def _control(self, node: SimulatedNode) -> None:
        holder, revision = node.controller
        facts = node.facts.get(holder)
        is_vacant = facts is None or not facts.is_up
        if is_vacant and node.is_ready and node.number not in self.cut_off:
            is_late = self.chance.random() < self.unlucky
            wait_s = self.chance.random() if is_late else self.delay()
            self.at(self.now + wait_s, lambda: self.store.take_control(node.number, revision))
        node.control()

    def expire_later(self, node: SimulatedNode) -> None:
        """A silent node loses its registration, sooner or later."""
        facts = self.store.nodes.get(node.number)
        held = 0 if facts is None else facts.node_epoch

        def expire() -> None:
            now_held = self.store.nodes[node.number].node_epoch
            is_silent = (
                not node.is_up
                or node.paused_until > self.now
                or node.number in self.cut_off
                or node.node_epoch != held
            )
            if held and now_held == held and is_silent:
                self.store.expire(node.number)

        # A new leader of the store begins all leases anew.
        late = 1 if self.chance.random() < 0.9 else 4
        self.at(self.now + TTL_S * (0.3 + 2 * self.chance.random()) * late, expire)

    # -- the run

    def run(self) -> None:
        """Everything."""
        with ExitStack() as stack:
            for module, name, value in (
                (feeds, "WINDOW_BYTES", 5), (feeds, "FULL_PIECES_MAX", 2),
                (leader, "PIECE_BYTES", 2), (replica, "FULL_S", 0.2),
            ):  # fmt: skip
                stack.enter_context(patch.object(module, name, value))
            self._begin()
            for _ in range(self.chance.randint(*self.many)):
                self.at(self.now + self.chance.random() * FAULTS_S, self.faults.happen)
            for client in range(2):
                self.at(self.now + 0.1 * client, partial(self.call, client))
            self.run_until(self.now + FAULTS_S)
            self._finish()

    def _begin(self) -> None:
        for node in self.nodes:
            node.start()
        self.run_until(0.5, lambda: all(node.is_ready for node in self.nodes))
        for partition in self.partitions:
            numbers = list(range(len(self.nodes)))
            self.chance.shuffle(numbers)
            replicas = numbers[:3]
            self.observers[partition] = set()
            if len(numbers) > 3 and self.chance.random() < 0.5:
                self.observers[partition] = {numbers[3]}
            nodes = {one: self.store.nodes[one].node_epoch for one in replicas}
            level = self.chance.choice(self.levels)
            row = new_row(replicas, nodes, self.chance.choice(self.min_insyncs), level)
            self.least[partition] = row.min_insync
            self.store.put_row(partition, row)
            self.wish(partition, wish_of(row))
        self.network.connect_all()
        self.run_until(self.now + 0.3)

    def level(self, partition: PartitionKey) -> Durability:
        """What an answer promises."""
        return self.store.rows[partition][0].level

    # -- clients

    def call(self, client: int) -> None:
        """A client publishes or reads, then again after a while."""
        if self.is_calm:
            return
        again_s = self.chance.expovariate(15)
        partition = self.chance.choice(self.partitions)
        if self.chance.random() < 0.3:
            node = self.chance.choice(self.nodes)
            if partition in node.replicas:
                self.on(node, lambda: self._read(node, partition))
        else:
            self.publish(partition)
        self.at(self.now + again_s, partial(self.call, client))

    def _read(self, node: SimulatedNode, partition: PartitionKey) -> None:
        if partition in node.replicas and not node.logs[partition].is_damaged:
            epoch = node.replicas[partition].row.epoch
            self.checker.see(partition, node.logs[partition], epoch, f"node {node.number}")

    def publish(self, partition: PartitionKey, answered: Callable[[], None] = lambda: None) -> None:
        """Publish where somebody says that the leader is."""
        self.value += 1
        value = self.value
        asked = self.chance.choice(self.nodes)
        row = asked.rows.get(partition)
        number = row[0].leader if row is not None else NOBODY
        node = self.nodes[number] if number != NOBODY else asked
        is_open = True

        def done(outcome: str) -> None:
            nonlocal is_open
            if not is_open:
                return
            is_open = False
            if outcome == "refused":
                self.checker.refuse(value)
            elif outcome == "ok":
                offset = next(
                    offset
                    for offset, _epoch, one in reversed(node.logs[partition].records)
                    if one == value
                )
                self.checker.answer(partition, offset, value, node.replicas[partition].row.epoch)
                answered()

        self.checker.attempt(partition, value)
        self.on(node, lambda: node.publish(partition, value, done))
        self.at(self.now + CALL_S, lambda: done("unknown"))

    # -- the end

    def _finish(self) -> None:
        self.is_calm = True
        self.cut_off.clear()
        self.deaf.clear()
        self.slowness = 1.0
        self.run_until(max(self.now, *(node.paused_until for node in self.nodes)))
        for node in self.nodes:
            self.store.drain(node.number, draining=False)
            node.start()
        self.network.heal()
        self.run_until(self.now + 0.01)
        for partition in self.partitions:
            self._succeed(partition)
        self.run_until(self.now + 2.0)
        for partition in self.partitions:
            row, _revision = self.store.rows[partition]
            if row.leader != NOBODY:
                self._compare(partition, row)
        self._drain(self.chance.choice(self.nodes).number)

    def _is_lost(self, partition: PartitionKey) -> bool:
        """Whether the partition may stay offline: more was lost than its level promises."""
        row, _revision = self.store.rows[partition]
        is_empty = row.leader == NOBODY and not row.isr and not row.elr
        kept = {"kill"} if row.level is Durability.OS else {"kill", "power"}
        kept = kept if row.level is not Durability.MEMORY else set()
        lossy = [node for node, ways in self.died.items() if ways - kept]
        return is_empty and len(lossy) >= min(row.min_insync, self.least[partition])

    def _succeed(self, partition: PartitionKey) -> None:
        answers: list[int] = []

        def again() -> None:
            if not answers:
                self.publish(partition, lambda: answers.append(1))
                self.at(self.now + 0.2, again)

        again()
        if not self.run_until(
            self.now + PROGRESS_S, lambda: bool(answers) or self._is_lost(partition)
        ):
            raise Violation(f"C12: no call to {partition} succeeds: {self.store.rows[partition]}")
        self.checker.count["offline"] += not answers

    def _compare(self, partition: PartitionKey, row: ReplicaSet) -> None:
        """The leader has everything, and every copy that shows a record shows the same one."""
        self.checker.complete(
            partition, self.nodes[row.leader].logs[partition], row.epoch + 1, "at last the leader"
        )
        for node in self.nodes:
            if partition in node.replicas:
                self._read(node, partition)
        unsynced = set(row.replicas) - set(row.isr)
        self.checker.count["unsynced"] += bool(unsynced)

    def _drain(self, number: int) -> None:
        """A node that drains leads nothing soon, where another one could lead."""
        self.store.drain(number, draining=True)

        def leads() -> list[PartitionKey]:
            rows = [(one, self.store.rows[one][0]) for one in self.partitions]
            return [one for one, row in rows if row.leader == number and len(row.isr) > 1]

        if not self.run_until(self.now + DRAIN_S, lambda: not leads()):
            raise Violation(f"C12: node {number} drains, and still leads {leads()}")


def wish_of(row: ReplicaSet) -> Wish:
    """What the stream of a row asks for, as long as nobody changes it."""
    return Wish(
        replicas=row.replicas,
        min_insync=row.min_insync,
        level=row.level,
        factor=len(row.replicas),
        asked=row.factor,
    )
