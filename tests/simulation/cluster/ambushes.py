"""What goes wrong just while a leader changes its row: the moment at which most rules are needed.

Rules: an ambush is laid by a fault, and strikes at the next change that a leader writes, also of
another partition. It is random how it strikes, and how soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.cluster.rows import PartitionChange
from onelog.storage.engine import PartitionKey
from tests.simulation.cluster.node import SimulatedNode

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

AWAY_S = 2.5
"""Longer than most leases live."""


class Ambushes:
    """The ambushes of one world."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._waiting: list[str] = []

    def lay(self, how: str = "") -> None:
        """Strike at the next change of a row; `how`: one of `_strike`."""
        ways = (
            "leader", "leader", "store", "elect", "member", "break", "break and store", "relent",
        )  # fmt: skip
        self._waiting.append(how or self._world.chance.choice(ways))

    def row_is_written(self, leader: SimulatedNode, change: PartitionChange) -> None:
        """A row is about to be written."""
        world = self._world
        if change.controller or not self._waiting or world.is_calm:
            return
        members = [node for node in change.row.isr if node != leader.number]
        added = [node for node, _epoch in change.nodes]
        if not added and self._waiting[0] == "entry":
            return
        how = self._waiting.pop(0)
        world.checker.count["ambushed"] += 1
        others = [node.number for node in world.nodes if node is not leader]
        target = world.nodes[world.chance.choice(added or members or others)]
        wait_s = world.chance.choice((0.0, 2 * world.slow_s, 6 * world.slow_s, 0.4))
        wait_s *= world.chance.random()
        if how in ("store", "break and store"):  # the outcome is unknown
            self._strike(how, leader, target, change.partition)
        else:
            world.at(
                world.now + wait_s, lambda: self._strike(how, leader, target, change.partition)
            )

    def _strike(
        self, how: str, leader: SimulatedNode, target: SimulatedNode, partition: PartitionKey
    ) -> None:
        world, faults = self._world, self._world.faults
        if world.is_calm:
            return
        away_s = AWAY_S * (0.2 + world.chance.random())
        pair = [(leader.number, target.number), (target.number, leader.number)]
        match how:
            case "leader" | "entry":
                faults.kill(leader, world.chance.choice(("kill", "kill", "power")), away_s)
            case "member":
                faults.kill(target, world.chance.choice(("kill", "power", "disk")), away_s / 10)
            case "break":
                faults.cut(pair[:1], away_s)
                self._kill_later(leader, away_s)
            case "relent":
                faults.operators.relent(partition)
                self._kill_later(leader, away_s)
            case "store":
                faults.cut_off({leader.number}, away_s)
            case "break and store":
                faults.cut(pair[:1], away_s)
                faults.cut_off({leader.number}, away_s)
            case "elect":
                faults.operators.elect(partition)

    def _kill_later(self, leader: SimulatedNode, away_s: float) -> None:
        world = self._world
        world.at(
            world.now + away_s / 3,
            lambda: world.is_calm or world.faults.kill(leader, "kill", away_s),
        )
