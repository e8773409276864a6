"""What operators, and the owners of streams, do while a simulated cluster fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onelog.cluster.controller import reassign, recover
from onelog.cluster.rows import NOBODY, is_in_sync, with_leader
from onelog.log.promises import Durability
from onelog.storage.engine import PartitionKey
from tests.simulation.cluster.node import SimulatedNode

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

OPERATIONS = ("drain", "reassign", "promise", "factor", "recover", "elect")


class Operators:
    """The operators of one world."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world

    def do(
        self, operation: str, node: SimulatedNode, partition: PartitionKey, length_s: float
    ) -> None:
        """One of `OPERATIONS`, or `observe`."""
        match operation:
            case "drain":
                self._drain(node.number, length_s)
            case "reassign":
                self._reassign(partition)
            case "promise":
                self.promise(partition)
            case "factor":
                self._factor(partition)
            case "recover":
                self._recover(partition, self._world.now + length_s)
            case "elect":
                self.elect(partition)
            case "observe":
                self._observe(node, partition)
            case _:
                raise AssertionError(f"nobody knows how to {operation}")

    def _drain(self, number: int, length_s: float) -> None:
        world = self._world
        world.store.drain(number, draining=True)
        world.at(
            world.now + length_s,
            lambda: world.is_calm or world.store.drain(number, draining=False),
        )

    def _reassign(self, partition: PartitionKey) -> None:
        """Move a partition to other nodes, as many as it has."""
        world = self._world
        row, _revision = world.store.rows[partition]
        fixed = set() if world.moves_observers else world.observers[partition]
        homes = [one.number for one in world.nodes if one.number not in fixed]
        count = len(row.replicas) - max(len(row.adding), len(row.removing))
        if count <= len(homes):
            target = tuple(world.chance.sample(homes, count))
            world.store.put_row(partition, reassign(row, target))

    def _observe(self, node: SimulatedNode, partition: PartitionKey) -> None:
        """The first client of a node comes that reads a partition there, or the last one goes."""
        observers = self._world.observers[partition]
        observers ^= {node.number}
        if node.is_ready:
            self._world.on(node, lambda: node.look(partition))

    def promise(self, partition: PartitionKey) -> None:
        """Another `min_insync`, and the same level or a lower one."""
        world, wish = self._world, self._world.wishes[partition]
        order = list(Durability)
        levels = order[: order.index(wish.level) + 1]
        insync = min(world.chance.choice((1, 2, 2, 3)), wish.factor)
        world.least[partition] = min(world.least[partition], insync)
        level = world.chance.choice(levels)
        world.wish(partition, msgspec.structs.replace(wish, min_insync=insync, level=level))

    def relent(self, partition: PartitionKey) -> None:
        """A leader may answer alone."""
        world, wish = self._world, self._world.wishes[partition]
        world.least[partition] = 1
        world.wish(partition, msgspec.structs.replace(wish, min_insync=1))

    def _factor(self, partition: PartitionKey) -> None:
        """Another number of copies."""
        world, wish = self._world, self._world.wishes[partition]
        if world.observers[partition] and not world.moves_observers:
            return  # nobody tells the controller which nodes observe
        factor = world.chance.randint(1, len(world.nodes))
        insync = min(wish.min_insync, factor)
        world.least[partition] = min(world.least[partition], insync)
        world.wish(
            partition,
            msgspec.structs.replace(wish, factor=factor, asked=factor, min_insync=insync),
        )

    def _recover(self, partition: PartitionKey, until: float) -> None:
        """An operator who looks for a while, and accepts the loss of what is offline."""
        world = self._world
        row, _revision = world.store.rows[partition]
        up = [world.store.nodes[one] for one in row.replicas if world.store.nodes[one].is_up]
        if row.leader == NOBODY and up:
            world.checker.count["accepted"] += 1
            world.least[partition] = 1
            world.store.put_row(partition, recover(row, world.chance.choice(up)))
        elif world.now < until:
            world.at(world.now + 0.1, lambda: self._recover(partition, until))

    def elect(self, partition: PartitionKey) -> None:
        """Have another member of the ISR lead."""
        world = self._world
        row, _revision = world.store.rows[partition]
        others = [
            world.store.nodes[node]
            for node in row.isr
            if node != row.leader and node in row.replicas
            if is_in_sync(row, world.store.nodes[node])
        ]
        if others and row.leader != NOBODY:
            chosen = world.chance.choice(others)
            world.store.put_row(partition, with_leader(row, chosen.node, chosen.node_epoch))
