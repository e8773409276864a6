"""What each node says of itself to the others: how far replicas are, its links, its elections.

Rules: only the leader of a partition knows how far its replicas are, so that every node is asked. A
node that does not answer in time is left out, and its partitions show no lag. A report is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from onelog.base.errors import OnelogError
from onelog.cluster.hosts import ReplicaHost
from onelog.cluster.known import KnownCluster
from onelog.cluster.link.links import LinkRow

METHOD: Final = "report"
ASK_S: Final = 2.0
LAGS_MAX: Final = 2000
"""Replicas that lack something, in one report."""

Call = Callable[[int, str, Any, type[Any], float], Awaitable[Any]]


class LagRow(msgspec.Struct, frozen=True, array_like=True):
    """A replica that lacks something."""

    stream_id: str
    partition: int
    node: int
    offsets: int


class NodeReport(msgspec.Struct, frozen=True, array_like=True):
    """What one node says."""

    lags: tuple[LagRow, ...]
    links: tuple[LinkRow, ...]
    elections: int


class NodeReports:
    """The reports of all nodes."""

    def __init__(
        self,
        host: ReplicaHost,
        known: KnownCluster,
        call: Call,
        links: Callable[[], Iterator[LinkRow]],
        elections: Callable[[], int],
    ) -> None:
        self._host = host
        self._known = known
        self._call = call
        self._links = links
        self._elections = elections

    async def answer(self, _node: int, _argument: msgspec.Raw) -> NodeReport:
        """What this node says."""
        return self.own()

    def own(self) -> NodeReport:
        """What this node says."""
        lags = tuple(islice(self._lags(), LAGS_MAX))
        return NodeReport(lags, tuple(self._links()), self._elections())

    def _lags(self) -> Iterator[LagRow]:
        for key, driver in list(self._host.drivers.items()):
            leader = driver.replica.leader
            if leader is None:
                continue
            for node in leader.members.row.replicas:
                lag = leader.lag_of(node)
                if node != self._known.node and lag:
                    yield LagRow(key.stream_id, int(key.partition), node, lag)

    async def ask(self) -> dict[int, NodeReport]:
        """The report of each node that answers."""
        others = [row.id for row in self._known.nodes() if row.id != self._known.node]
        found = await asyncio.gather(*map(self._ask, others))
        said = {
            node: report for node, report in zip(others, found, strict=True) if report is not None
        }
        return {self._known.node: self.own(), **said}

    async def _ask(self, node: int) -> NodeReport | None:
        try:
            report: NodeReport = await self._call(node, METHOD, None, NodeReport, ASK_S)
        except OnelogError:  # it is shown as a node that did not answer
            return None
        return report
