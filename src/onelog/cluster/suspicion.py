"""Who believes that a node is dead, and when that is enough to take it out of the cluster.

Rules:
- A link that is refused or silent is a report (`link/pair.py`). Every node tells the others what it
  reports, and says it again to a node that was out of reach; a report ends when its node hears the
  suspect again, or is itself no longer there.
- The controller takes a node out when it suspects the node itself, and at least half of the other
  nodes do. A suspected controller is replaced by the lowest of the other nodes, by the same rule.
- Wrong suspicion costs a registration and an election, never data: what counts are compares.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec


class Suspicion(msgspec.Struct, frozen=True, array_like=True):
    """What one node says of another to the rest."""

    node: int
    epoch: int
    """The registration of the suspect."""
    why: str
    """Empty: it answers again."""


class Suspicions:
    """What all nodes report, as far as it is known here."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._reports: dict[int, dict[int, int]] = {}
        """Suspect → who reports it, and with which registration of the suspect."""

    def report(self, reporter: int, said: Suspicion) -> None:
        """A node reports another, or takes that back."""
        reports = self._reports.setdefault(said.node, {})
        if said.why:
            reports[reporter] = said.epoch
        else:
            reports.pop(reporter, None)

    def forget(self, node: int) -> None:
        """A node is registered anew, or gone: nothing that was said of it, or by it, counts."""
        self._reports.pop(node, None)
        for reports in self._reports.values():
            reports.pop(node, None)

    def own(self) -> list[int]:
        """Nodes that this node suspects."""
        return [node for node, reports in self._reports.items() if self._node in reports]

    def condemned(self, epochs: dict[int, int], controller: int) -> list[int]:
        """Nodes that this node is to take out, given the registered ones and their epochs."""
        return [
            suspect
            for suspect in self.own()
            if suspect in epochs
            and self._is_enough(suspect, epochs)
            and self._decides(suspect, epochs, controller)
        ]

    def _is_enough(self, suspect: int, epochs: dict[int, int]) -> bool:
        reports = self._reports[suspect]
        others = epochs.keys() - {suspect, self._node}
        agreeing = [node for node in others if reports.get(node) == epochs[suspect]]
        return reports[self._node] == epochs[suspect] and 2 * len(agreeing) >= len(others)

    def _decides(self, suspect: int, epochs: Collection[int], controller: int) -> bool:
        if controller in epochs and controller != suspect:
            return controller == self._node
        suspected = {node for node, reports in self._reports.items() if self._node in reports}
        return self._node == min(set(epochs) - suspected - {suspect})
