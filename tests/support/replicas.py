"""Nodes in one process whose partitions are driven by the machines of replication.

Each has its own segment engine on its own folder. The rows are in one real metadata store, and the
controller is called by hand. Frames go by the loop, or over real links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from onelog.base.clock import ManualClock, SystemClock
from onelog.base.ids import Offset
from onelog.cluster.controller import ClusterView, plan
from onelog.cluster.driving import ReplicaDriver
from onelog.cluster.exchange import FeedExchange
from onelog.cluster.follower import FeedNumbers
from onelog.cluster.frames import FeedFrame, FeedLane
from onelog.cluster.link.address import LinkAddress
from onelog.cluster.link.hello import Sender
from onelog.cluster.link.links import LinkIdentity, Links
from onelog.cluster.link.listening import BoundInner
from onelog.cluster.link.security import LinkSecurity
from onelog.cluster.port import PartitionPort
from onelog.cluster.replica import ClusterReplica
from onelog.cluster.row_store import MetadataRows
from onelog.cluster.rows import NodeFacts, ReplicaSet, encode_row, new_row, row_key
from onelog.log.partition import Durability, Partition
from onelog.log.shared import Shared
from onelog.log.syncer import Syncer
from onelog.metadata.local import LocalStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine
from tests.batches import read_all
from tests.logs import KEY, put, row

WAIT_S = 10.0
LAG_S = 1.0


class ReplicaNode:
    """One node: an engine, a partition, its machine and its driver."""

    def __init__(self, cluster: ReplicaCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.folder = cluster.folder / str(number)
        self.numbers = FeedNumbers()
        self.driver: ReplicaDriver

    async def start(self) -> None:
        """Open what is on the disk, register, and take a role."""
        self.epoch = await self.cluster.store.put(f"nodes/{self.number}", b"{}")
        self.port = PartitionPort(self._open(), lambda: self.cluster.compacts)
        replica = ClusterReplica(
            KEY, self.number, self.port, self.numbers, node_epoch=self.epoch, lag_s=LAG_S
        )
        rows = MetadataRows(self.cluster.store)
        self.exchange = FeedExchange(asyncio.get_running_loop().time)
        self.exchange.send_frame = self._send
        if self.cluster.is_linked:
            await self._listen()
        self.driver = ReplicaDriver(self.port, replica, self.exchange, rows, self._remake)
        self.exchange.add(self.driver)
        self.cluster.up[self.number] = self

    def _open(self) -> Partition:
        self.engine = SegmentEngine(self.folder, self.cluster.clock)
        return Partition(
            "s", KEY.partition, self.engine.open(KEY, LogSettings(topic_index=False)),
            durability=self.cluster.level, message_bytes_max=1 << 20,
            shared=self.cluster.shared, replicated=True,
        )  # fmt: skip

    async def _remake(self) -> Partition:
        is_damaged = self.partition.stopped is not None
        await self.partition.close()
        if is_damaged:
            self.engine.set_aside(KEY)
        else:
            self.engine.delete(KEY)
        return self._open()

    @property
    def partition(self) -> Partition:
        return self.port.partition

    def _send(self, node: int, lane: FeedLane, frame: FeedFrame) -> None:
        other = self.cluster.up.get(node)
        if other is None or {self.number, node} in self.cluster.cuts:
            return
        lanes = self.cluster.lanes
        lanes[lane.name] = lanes.get(lane.name, 0) + 1
        asyncio.get_running_loop().call_soon(other.take, self, frame)

    def take(self, sender: ReplicaNode, frame: FeedFrame) -> None:
        if self.cluster.up.get(self.number) is self:
            self.cluster.look(frame)
            self.exchange.received(Sender(sender.number, sender.epoch), FeedLane.LIVE, frame)

    def link(self, node: int, *, is_up: bool) -> None:
        """Both lanes to a node stand, or break."""
        sender = Sender(node, self.cluster.up[node].epoch if is_up else 0)
        for lane in FeedLane:
            if is_up:
                self.exchange.linked(sender, lane)
            else:
                self.exchange.unlinked(sender, lane)

    async def _listen(self) -> None:
        """Have real links instead."""
        security, clock, troubles = LinkSecurity(), SystemClock(), self.cluster.shared.troubles
        identity = LinkIdentity(
            cluster_id="c1", node=self.number, epoch=self.epoch, data_uuid=f"uuid-{self.number}"
        )
        self.links = Links(identity, self.exchange, security, troubles, clock)
        path = self.cluster.folder / f"{self.number}-{self.epoch}.sock"
        self.inner = BoundInner(LinkAddress(path=str(path)), security, clock)
        await self.inner.serve(self.links, troubles)
        self.exchange.send_frame = self.links.send

    async def unlink(self) -> None:
        """End real links."""
        if self.cluster.is_linked:
            await self.inner.close()
            await self.links.close()

    async def kill(self) -> None:
        """The process is gone; what it wrote is on the disk."""
        del self.cluster.up[self.number]
        await self.driver.close()
        await self.partition.flush()  # no thread of ours may write after this
        await self.unlink()
        if not self.cluster.is_linked:
            for node in self.cluster.up.values():
                node.link(self.number, is_up=False)


class ReplicaCluster:
    """Three nodes, one store, and a controller that is called by hand."""

    def __init__(self, folder: Path, store: LocalStore, clock: ManualClock, syncer: Syncer) -> None:
        self.folder = folder
        self.store = store
        self.clock = clock
        self.shared = Shared(syncer, clock, Troubles(clock))
        self.level = Durability.FSYNC
        self.compacts = False
        self.is_linked = False
        """Whether frames go over real links."""
        self.up: dict[int, ReplicaNode] = {}
        self.cuts: list[set[int]] = []
        self.lanes: dict[str, int] = {}
        self.look: Callable[[FeedFrame], object] = lambda _frame: None

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def begin(self, nodes: int = 3, factor: int = 3, min_insync: int = 2) -> None:
        for number in range(1, nodes + 1):
            await ReplicaNode(self, number).start()
        epochs = {node.number: node.epoch for node in self.up.values()}
        made = new_row(tuple(range(1, factor + 1)), epochs, min_insync, self.level)
        await self.store.put(row_key(KEY), encode_row(made))
        await self.tell()

    async def row(self) -> tuple[ReplicaSet, int]:
        return await MetadataRows(self.store).read(KEY)

    async def tell(self) -> None:
        """All nodes see the rows as they are, and have links to all others."""
        made, revision = await self.row()
        facts = {n.number: NodeFacts(node=n.number, node_epoch=n.epoch) for n in self.up.values()}
        for node in self.up.values():
            replica = node.driver.replica
            replica.nodes_seen(facts, self.now)
            replica.row_seen(made, revision, self.now)
            for other in self.up.keys() - {node.number}:
                if self.is_linked:
                    node.links.know(other, self.up[other].inner.address, self.up[other].epoch)
                elif other not in node.exchange.linked_nodes():
                    node.link(other, is_up=True)
            node.driver.wake()

    async def control(self) -> None:
        """Elect and prune."""
        facts = {n: NodeFacts(node=n) for n in (1, 2, 3)}
        facts |= {n.number: NodeFacts(node=n.number, node_epoch=n.epoch) for n in self.up.values()}
        for _ in range(20):  # a leader may write the row meanwhile
            view = ClusterView(controller=0, nodes=facts, rows={KEY: await self.row()})
            changes = plan(view)
            if not changes:
                break
            await MetadataRows(self.store).write(changes[0])
        await self.tell()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110 - ends move in many places
                await asyncio.sleep(0.002)

    async def leader(self) -> ReplicaNode:
        made, _revision = await self.row()
        node = self.up[made.leader]
        await self.until(lambda: node.driver.replica.is_leading)
        return node

    def bytes_of(self) -> set[bytes]:
        return {read_all(node.partition.log) for node in self.up.values()}

    async def agree(self, end: int) -> None:
        """Every replica shows all records up to `end`, and they are the same bytes."""
        nodes = list(self.up.values())
        await self.until(lambda: all(n.partition.high_watermark == end for n in nodes))
        assert len(self.bytes_of()) == 1

    async def close(self) -> None:
        """End everything."""
        for node in self.up.values():
            await node.unlink()
            await node.driver.close()
            await node.partition.close()


async def publish(node: ReplicaNode, *values: bytes) -> None:
    """Append, and wait for the answer."""
    for value in values:
        end = put(node.partition, row(b"k", value)).end_offset
        async with asyncio.timeout(WAIT_S):
            await node.partition.wait_visible(Offset(end - 1))
