"""Do operators see what is wrong with a cluster, and can they mend it?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onelog.base.errors import ConfigError, Conflict, InvalidRequest, NotFound, StreamNotFound
from onelog.broker import LOCAL, Durability, Message, StreamConfig
from onelog.cluster import watching
from onelog.cluster.joining import join
from onelog.cluster.node_rows import node_key
from onelog.cluster.operating import ClusterOperator
from onelog.cluster.seen import PartitionTotals, SeenCluster, SeenNode
from onelog.cluster.verdict import is_healthy, summary_of, totals_of
from tests.support.cluster_nodes import Nodes, OneNode, eventually


def operator(node: OneNode) -> ClusterOperator:
    return ClusterOperator(node.cluster.known, node.cluster.registration, node.store)


async def orders(nodes: Nodes) -> None:
    await nodes[1].broker.streams.create(
        StreamConfig(name="orders", captures=("orders",), partitions=3, durability=Durability.OS)
    )
    await nodes.until_whole("orders")


def row_of(node: OneNode, name: str):
    found = node.cluster.known.row(operator(node).find(name))
    assert found is not None
    return found[0]


async def test_a_node_that_is_emptied_can_be_removed_and_no_other(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    await orders(nodes)
    desk = operator(nodes[1])
    with pytest.raises(Conflict, match="onelog cluster empty 3"):
        await desk.remove(3)
    with pytest.raises(NotFound):
        await desk.remove(7)
    assert await desk.empty(3) > 0

    def is_empty() -> bool:
        return not any(3 in row.replicas for _name, _key, row in desk.named())

    await eventually(is_empty)
    assert await desk.empty(3) == 0
    await nodes.stop(3)
    await eventually(lambda: nodes[1].cluster.registration.nodes.get(node_key(3)) is None)
    await desk.remove(3)
    await eventually(lambda: 3 not in nodes[1].cluster.known.facts())
    await nodes.until_whole("orders")


async def test_partitions_are_moved_and_elected_by_name(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    await orders(nodes)
    desk = operator(nodes[2])
    await desk.reassign("orders/0", (3, 2))
    await eventually(lambda: row_of(nodes[1], "orders/0").replicas == (3, 2))
    await nodes.until_whole("orders")
    await desk.reassign("orders/0", (2, 3))
    await eventually(lambda: row_of(nodes[2], "orders/0").replicas == (2, 3))
    if row_of(nodes[2], "orders/0").leader != 2:
        assert await desk.elect("orders/0") == 1
        await eventually(lambda: row_of(nodes[2], "orders/0").leader == 2)
    assert await desk.elect("orders/0") == 0
    with pytest.raises(Conflict, match="not being moved"):
        await desk.reassign("orders/0", None)
    with pytest.raises(Conflict, match="nothing has to be recovered"):
        await desk.recover("orders/0", 3)
    for wrong, error in (
        ("orders/9", StreamNotFound),
        ("nix/0", StreamNotFound),
        ("orders", InvalidRequest),
        ("orders/x", InvalidRequest),
    ):
        with pytest.raises(error):
            desk.find(wrong)
    assert {name for name, _key, _row in desk.named() if name.startswith("orders/")} == {
        "orders/0", "orders/1", "orders/2"
    }  # fmt: skip


async def test_a_node_that_is_away_is_seen_counted_and_told(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "CALM_S", 0.0)
    await nodes.start(1, 2, 3)
    await orders(nodes)
    watch = nodes[1].cluster.watch
    assert totals_of(row for _name, _key, row in operator(nodes[1]).named()).under_replicated == 0
    reports = await nodes[1].cluster.reports.ask()
    assert set(reports) == {1, 2, 3}
    assert {(link.node, link.lanes) for link in reports[2].links} == {
        (1, ("live", "bulk")), (3, ("live", "bulk"))
    }  # fmt: skip
    await nodes.stop(3)
    led = [name for name, _key, row in operator(nodes[1]).named() if row.leader == 1]
    assert led

    def is_told() -> bool:
        return any(
            row.kind == watching.UNDER and "on 3:" in row.error and not row.blocks
            for row in nodes[1].troubles.standing()
        )

    await eventually(is_told)
    assert watch.numbers.under_replicated > 0
    assert watch.numbers.offline == watch.numbers.refusing == 0
    assert watch.elections > 0
    assert watch.shrinks > 0
    samples = {row.name: row.value for row in watch.samples()}
    assert samples["onelog_cluster_under_replicated"] == watch.numbers.under_replicated
    assert samples["onelog_cluster_isr_shrinks_total"] == watch.shrinks
    assert set(await nodes[1].cluster.reports.ask()) == {1, 2}
    await nodes.start(3)
    await nodes.until_whole("orders")
    await eventually(lambda: not is_told())
    assert watch.expansions > 0


async def test_a_partition_without_a_leader_is_told_by_the_node_that_has_a_copy(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy that is there lacks a record that was answered: it must not lead."""
    monkeypatch.setattr(watching, "CALM_S", 0.0)
    nodes._factor, nodes._min_insync = 2, 1
    await nodes.start(1, 2, 3)
    await orders(nodes)
    home = row_of(nodes[1], "orders/0")
    last, stale = home.leader, next(node for node in home.replicas if node != home.leader)
    await nodes.stop(stale)
    broker = nodes[last].broker
    await eventually(lambda: set(row_of(nodes[last], "orders/0").isr) == {last})
    await broker.publish(Message("orders", b"v"), principal=LOCAL, partition=0)
    await nodes.stop(last)
    await nodes.start(stale)

    def told() -> list[bool]:
        rows = nodes[stale].troubles.standing()
        return [row.blocks for row in rows if row.kind == watching.OFFLINE]

    await eventually(lambda: told() == [False])
    watch = nodes[stale].cluster.watch
    samples = {row.name: row.value for row in watch.samples()}
    assert samples["onelog_cluster_offline"] == watch.numbers.offline > 0
    (third,) = nodes.running.keys() - {stale}
    assert third not in home.replicas
    await nodes.start(last)
    await nodes.until_whole("orders")
    await eventually(lambda: not told())
    assert watch.numbers.offline == 0


async def test_a_version_is_finalised_once_all_support_it_and_never_goes_back(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next release speaks 1 and 2. Node 3 runs this one at first.
    monkeypatch.setattr("onelog.cluster.operating.VERSIONS", (1, 2))
    monkeypatch.setattr("onelog.cluster.registration.VERSIONS", (1, 2))
    await nodes.start(1, 2)
    monkeypatch.setattr("onelog.cluster.registration.VERSIONS", (1, 1))
    await nodes.start(3)
    desk = operator(nodes[1])
    assert await desk.version() == await desk.finalize(None) == 1
    with pytest.raises(Conflict, match="all of them speak 1 to 1"):
        await desk.finalize(2)
    await nodes.stop(3)
    monkeypatch.setattr("onelog.cluster.registration.VERSIONS", (1, 2))
    await nodes.start(3)
    assert await desk.finalize(None) == 2
    assert await desk.version() == 2
    with pytest.raises(InvalidRequest, match="does not go back"):
        await desk.finalize(1)
    # This release cannot join it any more.
    with pytest.raises(ConfigError, match="inner version 2"):
        await join(nodes[1].store, tmp_path, 4)


async def test_a_version_waits_for_a_node_that_does_not_run(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    await nodes.stop(3)
    desk = operator(nodes[1])
    await eventually(lambda: nodes[1].cluster.registration.nodes.get(node_key(3)) is None)
    with pytest.raises(Conflict, match="node 3 does not run"):
        await desk.finalize(None)


# ---- the line ----


def a_node(number: int, *, epoch: int = 5, draining: bool = False) -> SeenNode:
    return SeenNode(
        id=number, name="", rack="", roles=(), version="", epoch=epoch, draining=draining,
        is_clean=True, is_owner=False, listeners={}, inner_versions=(1, 1), leads=0, replicas=0,
        elections=None,
    )  # fmt: skip


def seen(totals: PartitionTotals, *nodes: SeenNode) -> SeenCluster:
    return SeenCluster(
        mode="etcd", node=1, epoch=5, controller=1, totals=totals, nodes=nodes or (a_node(1),)
    )


def test_the_line_says_what_is_wrong_and_what_to_do() -> None:
    down = seen(
        PartitionTotals(partitions=9, offline=1, refusing=2, under_replicated=3),
        a_node(1), a_node(2, epoch=0),
    )  # fmt: skip
    line = summary_of(down)
    assert line.startswith("unhealthy: 1 partition is offline (start node 2;")
    assert "2 partitions are refusing records" in line
    assert "3 partitions are under-replicated (start node 2)" in line
    assert not is_healthy(down)
    whole = seen(PartitionTotals(partitions=9, moving=1), a_node(1), a_node(2, draining=True))
    assert is_healthy(whole)
    assert summary_of(whole) == (
        "healthy: 2 nodes, 9 partitions with all replicas in sync, 1 on their way to other nodes;"
        " node 2 is draining"
    )
    away = msgspec.structs.replace(whole, is_current=False)
    assert not is_healthy(away)
    assert "etcd does not answer" in summary_of(away)
    assert "no node controls" in summary_of(msgspec.structs.replace(whole, controller=-1))
    assert "not registered" in summary_of(msgspec.structs.replace(whole, epoch=0))
