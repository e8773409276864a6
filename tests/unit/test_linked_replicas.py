"""Do three nodes hold the same bytes over real links, and what does a cut link cost?

Three nodes in one process: each has its own engine, its own folder and its own inner listener, and
dials the others by the proxy. The rows are in a real metadata store. The leader is fixed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from onelog.base.clock import SystemClock
from onelog.base.ids import Offset
from onelog.cluster.driving import ReplicaDriver
from onelog.cluster.exchange import FeedExchange
from onelog.cluster.follower import FeedNumbers
from onelog.cluster.link.links import LinkIdentity, Links
from onelog.cluster.link.listening import BoundInner
from onelog.cluster.link.security import LinkSecurity
from onelog.cluster.port import PartitionPort
from onelog.cluster.replica import ClusterReplica
from onelog.cluster.row_store import MetadataRows
from onelog.cluster.rows import NodeFacts, encode_row, new_row, row_key
from onelog.log.partition import Durability, Partition
from onelog.log.shared import Shared
from onelog.log.syncer import Syncer
from onelog.metadata.local import LocalStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine
from tests.batches import read_all
from tests.logs import KEY, put, row
from tests.support.link_proxy import LinkProxy
from tests.support.links import LOOPBACK

WAIT_S = 20.0
LAG_S = 0.5
SECURITY = LinkSecurity(secret=b"a secret of at least 16 bytes")


class LinkedNode:
    """One node: a partition, its driver, and links to the others."""

    def __init__(self, number: int, epoch: int, folder: Path, store: LocalStore, syncer: Syncer):
        clock = SystemClock()
        self.number, self.epoch = number, epoch
        self.troubles = Troubles(clock)
        self.engine = SegmentEngine(folder / str(number), clock)
        self.partition = Partition(
            "s", KEY.partition, self.engine.open(KEY, LogSettings(topic_index=False)),
            durability=Durability.FSYNC, message_bytes_max=1 << 20,
            shared=Shared(syncer, clock, self.troubles), replicated=True,
        )  # fmt: skip
        port = PartitionPort(self.partition)
        self.replica = ClusterReplica(
            KEY, number, port, FeedNumbers(), node_epoch=epoch, lag_s=LAG_S
        )
        self.suspected: dict[int, str | None] = {}
        self.exchange = FeedExchange(asyncio.get_running_loop().time)
        self.exchange.on_suspicion = self.suspected.__setitem__
        who = LinkIdentity(cluster_id="c", node=number, epoch=epoch, data_uuid=str(number))
        self.links = Links(who, self.exchange, SECURITY, self.troubles, clock)
        self.exchange.send_frame = self.links.send
        self.inner = BoundInner(LOOPBACK, SECURITY, clock)
        rows = MetadataRows(store)
        self.driver = ReplicaDriver(port, self.replica, self.exchange, rows, self._remake)
        self.exchange.add(self.driver)

    async def _remake(self) -> Partition:
        raise AssertionError("no copy begins anew here")

    async def close(self) -> None:
        await self.inner.close()
        await self.links.close()
        await self.driver.close()
        await self.partition.close()


class LinkedCluster:
    """Three nodes that replicate one partition; node 1 leads."""

    def __init__(self, store: LocalStore, proxy: LinkProxy) -> None:
        self.store = store
        self.proxy = proxy
        self.nodes: dict[int, LinkedNode] = {}

    async def begin(self, folder: Path, syncer: Syncer) -> None:
        for number in (1, 2, 3):
            epoch = await self.store.put(f"nodes/{number}", b"{}")
            node = self.nodes[number] = LinkedNode(number, epoch, folder, self.store, syncer)
            await node.inner.serve(node.links, node.troubles)
        fronts = {n: self.proxy.front(n, node.inner.address) for n, node in self.nodes.items()}
        for number, node in self.nodes.items():
            for other in self.nodes.keys() - {number}:
                node.links.know(other, fronts[other], self.nodes[other].epoch)
        epochs = {n: node.epoch for n, node in self.nodes.items()}
        made = new_row((1, 2, 3), epochs, 2, Durability.FSYNC)
        await self.store.put(row_key(KEY), encode_row(made))
        await self.tell()

    async def tell(self) -> None:
        """All nodes see the row as it is."""
        made, revision = await MetadataRows(self.store).read(KEY)
        facts = {n: NodeFacts(node=n, node_epoch=node.epoch) for n, node in self.nodes.items()}
        now = asyncio.get_running_loop().time()
        for node in self.nodes.values():
            node.replica.nodes_seen(facts, now)
            node.replica.row_seen(made, revision, now)
            node.driver.wake()

    async def isr(self) -> set[int]:
        return set((await MetadataRows(self.store).read(KEY))[0].isr)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110 - ends move in many places
                await asyncio.sleep(0.002)

    async def until_isr(self, expected: set[int]) -> None:
        async with asyncio.timeout(WAIT_S):
            while await self.isr() != expected:  # noqa: ASYNC110 - the store has no wake-up here
                await asyncio.sleep(0.02)

    async def publish(self, *values: bytes) -> None:
        """Append at the leader, and wait for the answer."""
        leader = self.nodes[1]
        await self.until(lambda: leader.replica.is_leading)
        for value in values:
            end = put(leader.partition, row(b"k", value)).end_offset
            async with asyncio.timeout(WAIT_S):
                await leader.partition.wait_visible(Offset(end - 1))

    async def agree(self, end: int) -> None:
        """Every replica shows all records up to `end`, and they are the same bytes."""
        parts = [node.partition for node in self.nodes.values()]
        await self.until(lambda: all(part.high_watermark == end for part in parts))
        assert len({read_all(part.log) for part in parts}) == 1


@pytest.fixture
async def cluster(tmp_path: Path, syncer: Syncer) -> AsyncIterator[LinkedCluster]:
    store = await LocalStore.open(tmp_path / "metadata.db", SystemClock())
    with LinkProxy() as proxy:
        made = LinkedCluster(store, proxy)
        await made.begin(tmp_path, syncer)
        yield made
        for node in made.nodes.values():
            await node.close()
        for node in made.nodes.values():
            assert not node.troubles.rows()
    await store.close()


async def test_an_answered_record_is_on_the_disks_of_all_three_nodes(
    cluster: LinkedCluster,
) -> None:
    await cluster.publish(*(b"%d" % n for n in range(20)))
    assert await cluster.isr() == {1, 2, 3}
    assert all(node.partition.durable >= 20 for node in cluster.nodes.values())
    await cluster.agree(20)


async def test_records_of_many_bytes_cross_in_pieces(cluster: LinkedCluster) -> None:
    await cluster.publish(*[b"x" * 900_000] * 30)
    await cluster.agree(30)


async def test_a_follower_that_is_cut_off_leaves_the_isr_and_comes_back(
    cluster: LinkedCluster,
) -> None:
    await cluster.publish(b"a")
    cluster.proxy.part(1, 3)
    await cluster.publish(b"b", b"c")  # answered as soon as node 3 has left
    assert await cluster.isr() == {1, 2}
    assert cluster.nodes[3].partition.end_offset == 1
    cluster.proxy.heal()
    await cluster.until_isr({1, 2, 3})
    await cluster.agree(3)


async def test_a_link_that_breaks_in_the_middle_of_a_frame_loses_nothing(
    cluster: LinkedCluster,
) -> None:
    await cluster.publish(b"a")
    for other in (2, 3):
        cluster.proxy.halve(1, other)
    await cluster.publish(*[b"y" * 200_000] * 5)
    await cluster.agree(6)
