"""All that goes wrong in a simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.cluster.rows import NOBODY
from onelog.storage.engine import PartitionKey
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.operators import OPERATIONS, Operators

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

LOSSES = {"power", "disk", "rot"}
DEATHS = ("kill", "kill", "kill", "power", "power", "disk")
KINDS = (
    "die", "die", "die", "die all", "pause", "pause", "break", "cut", "isolate", "exile", "exile",
    "store", "deaf", "lie", "lie", "control", "majority", "rot", "trim", "compact", "jump",
    "ambush", "ambush", "succession", "relent", *OPERATIONS,
)  # fmt: skip


class Faults:
    """The faults of one world."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self.operators = Operators(world)

    def happen(self) -> None:
        """Something goes wrong."""
        world, chance = self._world, self._world.chance
        node, partition = chance.choice(world.nodes), chance.choice(world.partitions)
        length_s = chance.choice((0.05, 0.5, 2.0)) * (0.5 + chance.random())
        kind = chance.choice(world.kinds)
        world.checker.count[kind] += 1
        match kind:
            case "die":
                self.kill(node, chance.choice(DEATHS), length_s)
            case "empty":
                leader = world.store.rows[partition][0].leader
                if leader != NOBODY:
                    self.kill(world.nodes[leader], "disk", 0.1 * length_s)
            case "die all":
                self.kill_all(chance.choice(("kill", "power")))
            case "pause":
                node.paused_until = max(node.paused_until, world.now + length_s)
                world.expire_later(node)
            case "break" | "cut" | "isolate" | "exile":
                self._part(kind, node, length_s)
            case "store":
                self.cut_off({node.number}, length_s)
            case "majority":
                self.cut_off(set(range(len(world.nodes))), length_s)
            case "deaf":
                world.deaf.add(node.number)
                world.at(world.now + length_s, lambda: world.deaf.discard(node.number))
            case "lie":
                world.store.expire(node.number)
            case "control":
                world.store.take_control(node.number, world.store.controller[1])
            case "rot":
                self._rot(node, partition)
            case "trim" | "compact":
                self._shorten(kind)
            case "wane":
                self._wane(partition)
            case "full":
                self._fill(node, length_s)
            case "jump":
                node.born += chance.random() * 2
            case "ambush":
                world.ambushes.lay()
            case "succession":
                self._succeed(partition)
            case "relent":
                self._relent(partition)
            case _:
                self.operators.do(kind, node, partition, length_s)

    # -- processes

    def kill(self, node: SimulatedNode, how: str, length_s: float) -> None:
        """End a process for a while."""
        if not node.is_up:
            return
        self._world.died[node.number].add(how)
        node.die(how)
        self._world.expire_later(node)
        self._world.at(self._world.now + length_s, node.start)

    def kill_all(self, how: str) -> None:
        """End all processes; each comes back in its own time."""
        for node in self._world.nodes:
            self.kill(node, how, self._world.chance.random())

    def _rot(self, node: SimulatedNode, partition: PartitionKey) -> None:
        replica = node.replicas.get(partition)
        if replica is not None and not replica.follower.is_cutting:
            self._world.died[node.number].add("rot")
            node.rot(partition)

    # -- links, and the way to the store

    def _part(self, kind: str, node: SimulatedNode, length_s: float) -> None:
        world, number = self._world, node.number
        others = [one.number for one in world.nodes if one is not node]
        other = world.chance.choice(others)
        if kind == "break":
            world.network.break_link(number, other)
            return
        if kind == "cut":
            self.cut([(number, other)], length_s)
            return
        self.cut([pair for one in others for pair in ((number, one), (one, number))], length_s)
        if kind == "exile":  # the wrong side of a cut network
            self.cut_off({number}, length_s)

    def cut(self, pairs: list[tuple[int, int]], length_s: float) -> None:
        """Let nothing through in these directions for a while."""
        for pair in pairs:
            self._world.network.cut(*pair)

        def heal() -> None:
            self._world.network.cuts.difference_update(pairs)
            self._world.network.connect_all()

        self._world.at(self._world.now + length_s, heal)

    def cut_off(self, numbers: set[int], length_s: float) -> None:
        """Part nodes from the store for a while."""
        self._world.cut_off |= numbers
        for number in numbers:
            if self._world.chance.random() < 0.7:
                self._world.expire_later(self._world.nodes[number])
        self._world.at(
            self._world.now + length_s, lambda: self._world.cut_off.difference_update(numbers)
        )

    # -- logs

    def _shorten(self, kind: str) -> None:
        """Every leader trims its log; or every log begins a segment anew, and compacts the others.

        What a log says of its compaction is where its last segment begins, wherever that is: the
        high watermark bounds what was dropped, not what is said.
        """
        chance = self._world.chance
        for partition in self._world.partitions:
            for node in self._world.nodes:
                replica = node.replicas.get(partition)
                if replica is None:
                    continue
                log = node.logs[partition]
                if kind == "compact":
                    log.seal(chance.randint(log.start, log.end))
                elif replica.leader is not None:
                    log.trim(chance.randint(log.start, log.high_watermark))
                node.touch(partition)

    # -- what takes more than one fault

    def _succeed(self, partition: PartitionKey) -> None:
        """A copy lags and leaves the ISR; a new leader that knows of little comes, and dies while
        the copy enters again."""
        world, chance = self._world, self._world.chance
        row, _revision = world.store.rows[partition]
        copies = [node for node in row.replicas if node != row.leader]
        if row.leader == NOBODY or not copies:
            return
        lagging = chance.choice(copies)
        lag_s = 0.8 + chance.random()
        self.cut([(row.leader, lagging)], lag_s)

        def elect() -> None:
            leader, _revision = world.store.rows[partition]
            if world.is_calm or leader.leader == NOBODY:
                return
            world.ambushes.lay("entry")
            if chance.random() < 0.7:
                self.kill_all("kill")
            self.kill(world.nodes[leader.leader], "kill", 1.0 + 2 * chance.random())

        world.at(world.now + lag_s * (0.8 + 0.4 * chance.random()), elect)

    def _fill(self, node: SimulatedNode, length_s: float) -> None:
        """A disk is full for a while: its leaders say so, and others may lead."""
        world = self._world

        def say(*, is_full: bool) -> None:
            node.is_full = is_full
            for partition in node.replicas:
                node.touch(partition)

        world.on(node, lambda: say(is_full=True))
        world.at(world.now + 2 * length_s, world.on_same(node, lambda: say(is_full=False)))

    def _wane(self, partition: PartitionKey) -> None:
        """Segments end where nobody has answered yet, copies open their feeds again, and a leader
        loses its disk: the only one that does, so that nothing answered may be lost."""
        world, chance = self._world, self._world.chance
        self._shorten("compact")
        row, _revision = world.store.rows[partition]
        if row.leader == NOBODY:
            return
        for copy in row.replicas:
            if copy != row.leader and chance.random() < 0.8:
                self.cut([(row.leader, copy), (copy, row.leader)], 0.3 * chance.random())

        def lose_disk() -> None:
            leader = world.store.rows[partition][0].leader
            others = [ways for node, ways in world.died.items() if node != leader]
            if not world.is_calm and leader != NOBODY and not any(map(LOSSES.intersection, others)):
                self.kill(world.nodes[leader], "disk", 0.2 + chance.random())

        world.at(world.now + 0.1 + 0.5 * chance.random(), lose_disk)

    def _relent(self, partition: PartitionKey) -> None:
        """A stream asks for less. Before all have heard of it, another node controls, and one that
        had a copy loses its power."""
        world, chance = self._world, self._world.chance
        row, _revision = world.store.rows[partition]
        self.operators.promise(partition)
        control_s, power_s = 0.3 * chance.random(), 0.6 * chance.random()
        node, copy = chance.choice(world.nodes), world.nodes[chance.choice(row.replicas)]

        def take_control() -> None:
            world.store.take_control(node.number, world.store.controller[1])

        def lose_power() -> None:
            if not world.is_calm:
                self.kill(copy, "power", 0.05 + chance.random() / 2)

        world.at(world.now + control_s, take_control)
        world.at(world.now + power_s, lose_power)
