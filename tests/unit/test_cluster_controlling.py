"""Does the controller elect when the rows ask for it, and change nothing once it was replaced?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.ids import PartitionId
from onelog.cluster.controller import ClusterView
from onelog.cluster.controlling import Controlling
from onelog.cluster.membership import RowOutcome
from onelog.cluster.row_store import MetadataRows
from onelog.cluster.rows import NodeFacts, PartitionChange, ReplicaSet, encode_row, new_row, row_key
from onelog.log.promises import Durability
from onelog.metadata.local import LocalStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

KEYS = [PartitionKey("s-1", PartitionId(n)) for n in range(100)]
WAIT_S = 10.0


class Seen:
    """What one node knows of the store; `load` is its watch."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.term = 0
        self.nodes: dict[int, NodeFacts] = {}
        self.rows: dict[PartitionKey, tuple[ReplicaSet, int]] = {}

    async def load(self) -> None:
        rows = MetadataRows(self.store)
        self.rows = {key: await rows.read(key) for key in KEYS}

    def view(self) -> ClusterView | None:
        if not self.term:
            return None
        return ClusterView(controller=self.term, nodes=self.nodes, rows=self.rows)


@pytest.fixture
async def seen(tmp_path: Path) -> AsyncIterator[Seen]:
    store = await LocalStore.open(tmp_path / "metadata.db", ManualClock())
    made = Seen(store)
    epochs = {n: await store.put(f"nodes/{n}", b"{}") for n in (1, 2, 3)}
    made.nodes = {n: NodeFacts(node=n, node_epoch=epoch) for n, epoch in epochs.items()}
    for key in KEYS:
        row = new_row((1, 2, 3), epochs, 2, Durability.FSYNC)
        await store.put(row_key(key), encode_row(row))
    await made.load()
    made.term = await store.put("controller", b"{}")
    yield made
    await store.close()


class Watched(MetadataRows):
    """Rows whose writes the node sees at once."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(seen.store)
        self._seen = seen
        self.under_way = self.most = 0
        self.refused = asyncio.Event()

    async def write(self, change: PartitionChange) -> tuple[RowOutcome, int]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        outcome, revision = await super().write(change)
        self.under_way -= 1
        if outcome is RowOutcome.DONE:
            self._seen.rows[change.partition] = (change.row, revision)
        else:
            self.refused.set()
        return outcome, revision


async def test_every_partition_of_a_node_that_is_gone_gets_another_leader(seen: Seen) -> None:
    rows = Watched(seen)
    controlling = Controlling(seen.view, rows, Troubles(ManualClock()))
    controlling.open()
    await asyncio.sleep(0)
    assert controlling.changes == 0
    seen.nodes = {**seen.nodes, 1: NodeFacts(node=1)}
    controlling.wake()
    async with asyncio.timeout(WAIT_S):
        while controlling.changes < len(KEYS):  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.005)
    await seen.load()
    assert {row.leader for row, _revision in seen.rows.values()} == {2}
    assert rows.most <= 32
    await controlling.close()
    await controlling.close()


async def test_a_controller_that_was_replaced_changes_nothing(seen: Seen) -> None:
    rows = Watched(seen)
    controlling = Controlling(seen.view, rows, Troubles(ManualClock()))
    await seen.store.put("controller", b"{}")
    seen.nodes = {**seen.nodes, 1: NodeFacts(node=1)}
    controlling.open()
    async with asyncio.timeout(WAIT_S):
        await rows.refused.wait()
    await controlling.close()
    await seen.load()
    assert {row.leader for row, _revision in seen.rows.values()} == {1}
    assert controlling.changes == 0


async def test_a_node_that_does_not_control_plans_nothing(seen: Seen) -> None:
    seen.term = 0
    seen.nodes = {}
    controlling = Controlling(seen.view, Watched(seen), Troubles(ManualClock()))
    controlling.open()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not controlling._planned()
    await controlling.close()
