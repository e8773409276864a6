"""Several whole brokers of one cluster in one process: real links, engines and files, and one
metadata store instead of etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import Broker
from onelog.cluster.hosts import HostSettings
from onelog.cluster.joining import join
from onelog.cluster.known import KnownCluster
from onelog.cluster.link.listening import BoundInner
from onelog.cluster.link.security import LinkSecurity
from onelog.cluster.needs_of_nodes import OwnBroker
from onelog.cluster.nodes import NodeCluster, NodePlan
from onelog.cluster.registration import NodeSettings, Registration
from onelog.metadata.local import LocalStore
from onelog.observe.troubles import Troubles
from tests.support.brokers import FAST
from tests.support.links import LOOPBACK
from tests.support.metadata import FaultyStore

SHARDS = 4
SETTINGS = msgspec.structs.replace(FAST, elected=True, internal_partitions=SHARDS)
WAIT_S = 30.0


class SharedStore(FaultyStore):
    """The store of all nodes, as one of them has it: that node's end does not end it."""

    async def close(self) -> None:
        """It stays open."""


class GatheredCluster(NodeCluster):
    """Makes no stream before all nodes that start together are there: each then has a share."""

    together = 1

    async def join(self, broker: OwnBroker) -> KnownCluster:
        known = await super().join(broker)
        await known.until(lambda: len(known.up()) >= self.together, "nodes are missing", WAIT_S)
        return known


class OneNode:
    """A node of the cluster."""

    def __init__(self, number: int, folder: Path, store: LocalStore, rack: str = "") -> None:
        self.number, self.folder, self.rack = number, folder, rack
        self.store = SharedStore(store)
        self.troubles = Troubles(SystemClock())
        self.broker: Broker
        self.cluster: NodeCluster

    async def start(self, factor: int, min_insync: int, together: int) -> None:
        self.folder.mkdir(exist_ok=True)
        clock = SystemClock()
        row, identity = await join(self.store, self.folder, self.number)
        settings = NodeSettings(
            node=self.number, name=f"n{self.number}", roles=("engine", "broker"), rack=self.rack,
            version="0", ttl_s=60.0, data_dir=self.folder,
        )  # fmt: skip
        registration = Registration(self.store, settings, identity, self.troubles, lambda: None)
        security = LinkSecurity()
        plan = NodePlan(
            cluster_id=row.id,
            settings=HostSettings(factor=factor, min_insync=min_insync, lag_s=1.0, owner=row.owner),
            inner=BoundInner(LOOPBACK, security, clock),
            advertised="",
            security=security,
            local=await LocalStore.open(self.folder / "replicas.db", clock),
            listeners={"kafka": f"kafka://127.0.0.1:{9000 + self.number}"},
            drain_s=10.0,
            clock=clock,
        )
        self.cluster = GatheredCluster(self.store, registration, plan, self.troubles)
        self.cluster.together = together
        self.broker = await open_broker(
            self.folder, SETTINGS, clock, store=self.store, troubles=self.troubles,
            nodes=self.cluster,
        )  # fmt: skip

    async def stop(self) -> None:
        """An orderly stop: others lead before this node closes anything."""
        await self.cluster.leave()
        await self.broker.close()
        await self.cluster.registration.close(is_clean=True)
        await self.cluster.node_store.close()

    def leads(self, stream: str) -> set[int]:
        """The partitions of a stream that take records here."""
        found = self.broker.streams.get(stream)
        return {int(row.id) for row in found.partitions if row.refusal is None}


class Nodes:
    """The cluster. `start` and `stop` bring nodes and take them away."""

    def __init__(self, folder: Path, store: LocalStore, factor: int = 3, min_insync: int = 2):
        self._folder, self._store = folder, store
        self._factor, self._min_insync = factor, min_insync
        self.running: dict[int, OneNode] = {}

    def __getitem__(self, number: int) -> OneNode:
        return self.running[number]

    async def start(self, *numbers: int) -> None:
        made = [OneNode(n, self._folder / str(n), self._store) for n in numbers]
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            for node in made:
                group.create_task(node.start(self._factor, self._min_insync, len(made)))
        self.running |= {node.number: node for node in made}

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            await self.running.pop(number).stop()

    async def until_whole(self, stream: str) -> None:
        """Every partition of a stream has a leader, all of its replicas in sync, and on every
        running node the same end."""
        async with asyncio.timeout(WAIT_S):
            while not self._is_whole(stream):  # noqa: ASYNC110 - it changes in many places
                await asyncio.sleep(0.02)

    def _is_whole(self, stream: str) -> bool:
        found = [node.broker.streams.find(stream) for node in self.running.values()]
        if None in found:
            return False
        for node, here in zip(self.running.values(), found, strict=True):
            assert here is not None
            for partition in here.partitions:
                row = node.cluster.known.row(here.key(partition.id))
                if row is None or set(row[0].isr) != set(row[0].replicas):
                    return False
                if partition.id not in self.running[row[0].leader].leads(stream):
                    return False
        return True

    def homes(self, stream: str, partition: int) -> tuple[int, tuple[int, ...]]:
        """Who leads a partition, and where it lies."""
        any_node = next(iter(self.running.values()))
        found = any_node.broker.streams.get(stream)
        row = any_node.cluster.known.row(found.key(found.partitions[partition].id))
        assert row is not None
        return row[0].leader, tuple(row[0].replicas)

    def leader_of(self, stream: str, partition: int) -> OneNode:
        """The node that leads a partition."""
        return self.running[self.homes(stream, partition)[0]]


async def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - it changes in many places
            await asyncio.sleep(0.02)
