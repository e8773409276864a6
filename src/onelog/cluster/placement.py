"""Where the replicas of a partition lie: spread over racks first, then over nodes.

Rules: the same nodes and the same loads give the same answer. No two replicas lie on one node, and
no two in one rack while another rack is free. The first of a partition's replicas is its preferred
leader, so firsts are spread over the nodes, too: those of one stream first of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from onelog.base.errors import InvalidRequest
from onelog.cluster.rows import NodeFacts


class Loads:
    """How many replicas and how many preferred leaders each node has; one for each stream that is
    placed."""

    __slots__ = ("_firsts", "_near", "_replicas")

    def __init__(self, placed: Iterable[tuple[int, ...]] = ()) -> None:
        self._replicas: Counter[int] = Counter()
        self._firsts: Counter[int] = Counter()
        self._near: Counter[int] = Counter()
        """Preferred leaders of what was placed since."""
        for replicas in placed:
            self.add(replicas)

    def add(self, replicas: tuple[int, ...]) -> None:
        """Count one more partition."""
        self._replicas.update(replicas)
        self._firsts.update(replicas[:1])

    def place(self, factor: int, nodes: Mapping[int, NodeFacts]) -> tuple[int, ...]:
        """Choose the replicas of a new partition, and count them. Raises InvalidRequest."""
        homes = {node: facts for node, facts in nodes.items() if facts.is_up and not facts.draining}
        if len(homes) < factor:
            raise InvalidRequest(
                f"a partition with {factor} replicas needs as many nodes, and {len(homes)} can take"
                " one now; start more nodes, or ask for fewer replicas"
            )
        placed = self._chosen((), factor, homes)
        self.add(placed)
        self._near.update(placed[:1])
        return placed

    def more(
        self, replicas: tuple[int, ...], count: int, nodes: Mapping[int, NodeFacts]
    ) -> tuple[int, ...]:
        """Up to so many nodes more for a partition, and count them."""
        homes = {node: facts for node, facts in nodes.items() if facts.is_up and not facts.draining}
        free = len(homes.keys() - set(replicas))
        wanted = len(replicas) + min(count, free)
        racks = {node: nodes[node] for node in replicas if node in nodes}
        added = self._chosen(replicas, wanted, homes | racks)[len(replicas) :]
        self._replicas.update(added)
        return added

    def _chosen(
        self, first: tuple[int, ...], count: int, homes: Mapping[int, NodeFacts]
    ) -> tuple[int, ...]:
        chosen = list(first)
        racks = Counter(homes[node].rack for node in first if node in homes)
        while len(chosen) < count:
            loads = self._replicas if chosen else self._firsts + self._replicas
            near = Counter[int]() if chosen else self._near
            best = min(
                (node for node in homes if node not in chosen),
                key=lambda node: (racks[homes[node].rack], near[node], loads[node], node),
            )
            chosen.append(best)
            racks[homes[best].rack] += 1
        return tuple(chosen)
