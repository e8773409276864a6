"""A metadata store with revisions and compares, whose answers may be lost and whose leases may lie.

Rules: a call is applied at one moment, or never. A caller that was cut off, or unlucky, gets
UNKNOWN, and the call is applied at once, later, or never. Watches tell every change in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from onelog.cluster.membership import RowOutcome
from onelog.cluster.rows import NodeFacts, PartitionChange, ReplicaSet
from onelog.storage.engine import PartitionKey

Tell = Callable[["Change"], None]


class Change(msgspec.Struct, frozen=True):
    """One revision."""

    revision: int
    partition: PartitionKey | None = None
    row: ReplicaSet | None = None
    facts: NodeFacts | None = None
    member: int = 0
    """The revision of the member's row behind `facts`."""
    controller: int | None = None


class SimulatedStore:
    """The rows, as they are at this moment."""

    def __init__(self, tell: Tell) -> None:
        self.revision = 1
        self.rows: dict[PartitionKey, tuple[ReplicaSet, int]] = {}
        self.nodes: dict[int, NodeFacts] = {}
        self.members: dict[int, int] = {}
        """The revision of each member's row."""
        self.controller: tuple[int, int] = (-1, 0)
        """The node, and the revision of the row."""
        self._tell = tell
        self.refused = self.applied = 0

    def _next(self) -> int:
        self.revision += 1
        return self.revision

    def put_row(self, partition: PartitionKey, row: ReplicaSet) -> int:
        revision = self._next()
        self.rows[partition] = (row, revision)
        self._tell(Change(revision, partition=partition, row=row))
        return revision

    def apply(self, change: PartitionChange) -> tuple[RowOutcome, int]:
        """What the transaction of a change does."""
        held = self.rows.get(change.partition, (None, 0))[1] == change.expected
        held = held and all(
            node in self.nodes and self.nodes[node].node_epoch == epoch
            for node, epoch in change.nodes
        )
        if not held or (change.controller and change.controller != self.controller[1]):
            self.refused += 1
            return RowOutcome.REFUSED, 0
        self.applied += 1
        return RowOutcome.DONE, self.put_row(change.partition, change.row)

    def take_control(self, node: int, expected: int) -> int:
        """Write the controller's row over the one of `expected`; 0: it is another one now."""
        if self.controller[1] != expected:
            return 0
        revision = self._next()
        self.controller = (node, revision)
        self._tell(Change(revision, controller=node))
        return revision

    def register(self, node: int, *, lost: Iterable[str], rack: str = "") -> int:
        """Register a node; `lost` names what its last life left behind."""
        revision = self._next()
        old = self.nodes.get(node, NodeFacts(node=node, rack=rack))
        news = {f"{what}_since": revision for what in lost}
        facts = msgspec.structs.replace(old, node_epoch=revision, **news)  # type: ignore[arg-type]
        self.members[node] = revision
        self._put_facts(facts, revision)
        return revision

    def expire(self, node: int) -> None:
        """A lease ended, rightly or not."""
        facts = self.nodes.get(node)
        if facts is not None and facts.is_up:
            self._put_facts(msgspec.structs.replace(facts, node_epoch=0), self._next())

    def drain(self, node: int, *, draining: bool) -> None:
        facts = self.nodes.get(node)
        if facts is not None:
            self.members[node] = revision = self._next()
            self._put_facts(msgspec.structs.replace(facts, draining=draining), revision)

    def _put_facts(self, facts: NodeFacts, revision: int) -> None:
        self.nodes[facts.node] = facts
        self._tell(Change(revision, facts=facts, member=self.members[facts.node]))
