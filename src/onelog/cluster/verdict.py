"""Whether a cluster is healthy, in one line: what is wrong, and what to do.

Rule: the worst comes first, and names nodes, never streams: whoever may not see a stream sees this.
"""

from __future__ import annotations

from collections.abc import Iterable

from onelog.cluster.rows import NOBODY, ReplicaSet
from onelog.cluster.seen import PartitionState, PartitionTotals, SeenCluster


def state_of(row: ReplicaSet) -> PartitionState:
    """The state of a partition, by its row."""
    if row.leader == NOBODY:
        return "offline"
    if len(row.isr) < row.min_insync:
        return "refusing"
    if any(node not in row.isr for node in row.replicas if node not in row.adding):
        return "under-replicated"
    return "moving" if row.adding or row.removing else "healthy"


def totals_of(rows: Iterable[ReplicaSet]) -> PartitionTotals:
    """How many partitions are in which state."""
    states = [state_of(row) for row in rows]
    return PartitionTotals(
        partitions=len(states),
        offline=states.count("offline"),
        refusing=states.count("refusing"),
        under_replicated=states.count("under-replicated"),
        moving=states.count("moving"),
    )


def is_whole(totals: PartitionTotals) -> bool:
    """Whether every partition has a leader, and all of its replicas in sync."""
    return not (totals.offline or totals.refusing or totals.under_replicated)


def is_healthy(seen: SeenCluster) -> bool:
    """Whether nothing has to be done."""
    return is_whole(seen.totals) and seen.is_current and seen.epoch > 0 and seen.controller >= 0


def summary_of(seen: SeenCluster) -> str:
    """The line."""
    totals, wrong = seen.totals, []
    if not seen.is_current:
        wrong.append("etcd does not answer (what is shown may be old; start a majority of etcd)")
    elif not seen.epoch:
        wrong.append(f"node {seen.node} is not registered (its log says why)")
    elif seen.controller < 0:
        wrong.append("no node controls (wait a moment; else look at the log of a node)")
    down = sorted(node.id for node in seen.nodes if not node.epoch)
    cure = f"start {_nodes(down)}" if down else "wait, or look at the nodes' logs"
    if totals.offline:
        wrong.append(
            f"{_partitions(totals.offline)} offline ({cure}; if the data is lost for good:"
            " onelog cluster recover)"
        )
    if totals.refusing:
        wrong.append(
            f"{_partitions(totals.refusing)} refusing records, with too few replicas in sync"
            f" ({cure})"
        )
    if totals.under_replicated:
        wrong.append(f"{_partitions(totals.under_replicated)} under-replicated ({cure})")
    if wrong:
        return "unhealthy: " + "; ".join(wrong)
    up = len(seen.nodes) - len(down)
    text = f"healthy: {up} nodes, {totals.partitions} partitions with all replicas in sync"
    if totals.moving:
        text += f", {totals.moving} on their way to other nodes"
    if down:
        text += f"; {_nodes(down)} does not run, and has nothing"
    draining = sorted(node.id for node in seen.nodes if node.draining)
    return text + (f"; {_nodes(draining)} is draining" if draining else "")


def _partitions(count: int) -> str:
    return "1 partition is" if count == 1 else f"{count} partitions are"


def _nodes(numbers: list[int]) -> str:
    return ("node " if len(numbers) == 1 else "nodes ") + ", ".join(map(str, numbers))
