"""What this node sees of its cluster, read from its registration and from etcd.

Rule: what is shown is the last known state; while etcd is away it may be old, and says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from onelog.base.errors import OnelogError
from onelog.cluster.node_rows import ClusterRow, decode_row, node_key, number_of
from onelog.cluster.nodes import NodeCluster
from onelog.cluster.operating import ClusterOperator
from onelog.cluster.reports import NodeReport
from onelog.cluster.rows import CONTROLLER, ReplicaSet
from onelog.cluster.seen import (
    ReplicaLag,
    SeenCluster,
    SeenEtcd,
    SeenLink,
    SeenNode,
    SeenPartition,
)
from onelog.cluster.verdict import is_healthy, state_of, summary_of, totals_of
from onelog.metadata.etcd import EtcdStore
from onelog.observe.metrics import Sample


class ClusterSight:
    """What is seen, and what can be done."""

    def __init__(self, name: str, row: ClusterRow, nodes: NodeCluster, store: EtcdStore) -> None:
        self._name = name
        self._row = row
        self._nodes_here = nodes
        self._registration = nodes.registration
        self._store = store
        self._known = nodes.known
        self._operator = ClusterOperator(nodes.known, nodes.registration, store)

    async def look(self) -> SeenCluster:
        """The cluster now; etcd is asked once, and so is each other node."""
        reports = asyncio.create_task(self._nodes_here.reports.ask())
        try:
            found = await self._store.range("cluster", 1)
            revision, is_current = found.revision, True
            if found.entries:
                self._row = decode_row(found.entries[0], ClusterRow)
        except OnelogError:
            revision, is_current = self._store.members.revision, False
        said, here = await reports, self._registration
        controller = here.controller.get(CONTROLLER)
        # A row whose stream is gone is nobody's trouble: it goes when all nodes have dropped it.
        rows = [row for _name, _key, row in self._operator.named()]
        seen = SeenCluster(
            mode="etcd",
            name=self._name,
            id=self._row.id,
            node=here.node,
            epoch=here.epoch,
            controller=-1 if controller is None else controller.value.node,
            is_current=is_current,
            revision=revision,
            version=self._row.version,
            totals=totals_of(rows),
            lag_max=max((lag.offsets for one in said.values() for lag in one.lags), default=0),
            nodes=tuple(sorted(self._nodes(rows, said), key=lambda node: node.id)),
            links=tuple(_links(said)),
            etcd=tuple(self._etcd()),
        )
        return msgspec.structs.replace(seen, summary=summary_of(seen), is_healthy=is_healthy(seen))

    async def partitions(self) -> list[SeenPartition]:
        """See `ClusterDesk`."""
        lags: dict[tuple[str, int], list[ReplicaLag]] = {}
        for report in (await self._nodes_here.reports.ask()).values():
            for lag in report.lags:
                found = lags.setdefault((lag.stream_id, lag.partition), [])
                found.append(ReplicaLag(node=lag.node, offsets=lag.offsets))
        return [
            SeenPartition(
                name=name,
                stream=name.rpartition("/")[0],
                partition=int(key.partition),
                state=state_of(row),
                leader=row.leader,
                epoch=row.epoch,
                replicas=row.replicas,
                isr=tuple(sorted(row.isr)),
                elr=tuple(sorted(row.elr)),
                adding=row.adding,
                removing=row.removing,
                min_insync=row.min_insync,
                lags=tuple(lags.get((key.stream_id, int(key.partition)), ())),
            )
            for name, key, row in self._operator.named()
        ]

    def _nodes(
        self, rows: Sequence[ReplicaSet], said: Mapping[int, NodeReport]
    ) -> Iterator[SeenNode]:
        led = Counter(row.leader for row in rows)
        copies = Counter(node for row in rows for node in row.replicas)
        for key, member in self._registration.members.rows():
            number = number_of(key)
            node = self._registration.nodes.get(node_key(number))
            yield SeenNode(
                id=number,
                name=member.name,
                rack=member.rack,
                roles=member.roles,
                version=member.version,
                epoch=0 if node is None else node.revision,
                draining=member.draining,
                is_clean=member.is_clean,
                is_owner=number == self._row.owner,
                listeners={} if node is None else dict(node.value.listeners),
                inner_versions=(0, 0) if node is None else node.value.inner_versions,
                leads=led[number],
                replicas=copies[number],
                elections=said[number].elections if number in said else None,
            )

    def _etcd(self) -> Iterator[SeenEtcd]:
        now = asyncio.get_running_loop().time()
        for member in self._store.members.all:
            yield SeenEtcd(
                url=str(member.endpoint),
                version=member.version,
                is_resting=member.rests_until > now,
            )

    async def drain(self, node: int, *, draining: bool) -> None:
        """Let others lead what a node leads; or take that mark away."""
        await self._registration.drain(node, draining=draining)

    async def remove(self, node: int) -> None:
        """See `ClusterDesk`."""
        await self._operator.remove(node)

    async def reassign(self, name: str, replicas: tuple[int, ...] | None) -> None:
        """See `ClusterDesk`."""
        await self._operator.reassign(name, replicas)

    async def empty(self, node: int) -> int:
        """See `ClusterDesk`."""
        return await self._operator.empty(node)

    async def elect(self, name: str) -> int:
        """See `ClusterDesk`."""
        return await self._operator.elect(name)

    async def recover(self, name: str, node: int) -> bool:
        """See `ClusterDesk`."""
        return await self._operator.recover(name, node)

    async def finalize(self, version: int | None) -> int:
        """See `ClusterDesk`."""
        return await self._operator.finalize(version)

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield from self._nodes_here.watch.samples()
        if self._nodes_here.links is not None:
            yield from self._nodes_here.links.samples()
        here = self._registration
        yield Sample(
            "onelog_node_epoch",
            "Revision of this node's registration; 0: it is not registered.",
            "gauge",
            here.epoch,
        )
        yield Sample(
            "onelog_node_registrations_total",
            "How often this process registered: more than once means lost leases.",
            "counter",
            here.registered,
        )
        yield Sample("onelog_cluster_nodes", "Nodes that are registered.", "gauge", len(here.nodes))
        yield Sample(
            "onelog_controller",
            "Whether this node controls the cluster.",
            "gauge",
            float(here.seat.revision > 0),
        )


def _links(said: Mapping[int, NodeReport]) -> Iterator[SeenLink]:
    for node, report in sorted(said.items()):
        for row in report.links:
            yield SeenLink(
                from_node=node,
                node=row.node,
                address=row.address,
                lanes=row.lanes,
                rtt_ms=row.rtt_ms,
                suspicion=row.suspicion,
                attempts=row.attempts,
                last_end=row.last_end,
            )
