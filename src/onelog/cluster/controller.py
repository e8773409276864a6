"""The controller: which rows must change, given what the metadata store says.

Rules:
- It keeps nothing. `plan` is a function of the rows as they are; a change that failed, or whose
  outcome is unknown, is planned again from the rows as they are then. So any node may take over at
  any time.
- Every change compares the controller's own row: a controller that was replaced changes nothing.
- A node that is not registered leaves every ISR. A node whose data may be gone leaves ISR and ELR
  before anything is decided by them.
- Only a member of ISR or ELR leads, and only as the process that is registered now. Nobody
  suitable: the partition is offline, and waits.
- The epoch grows when the leader changes, also from one process of a node to the next, and when a
  replica is removed.
- A partition begins again with a loss on its own only where no replica can have more: its only
  replica lost its page cache, or its level is `memory` and every process that had it ended. Such a
  row names the epoch in `recover`. Everything else waits for the operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from onelog.cluster.placement import Loads
from onelog.cluster.rows import (
    NOBODY,
    NodeFacts,
    PartitionChange,
    ReplicaSet,
    new_row,
    with_leader,
    with_member,
    with_promise,
    without_leader,
    without_lost,
    without_members,
)
from onelog.log.promises import Durability
from onelog.storage.engine import PartitionKey

_replace: Final = msgspec.structs.replace
_LEVELS: Final = (Durability.MEMORY, Durability.OS, Durability.FSYNC)


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream asks of a partition."""

    replicas: tuple[int, ...]
    """Where it lies when it is made."""
    min_insync: int
    """0: as many as the cluster says."""
    level: Durability
    factor: int = 1
    """On how many nodes it is to lie, if so many are there."""
    asked: int = 0
    """The factor that the stream itself names; 0: what the cluster gives."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata store says."""

    controller: int
    """The revision of the controller's row: it fences every change."""
    nodes: Mapping[int, NodeFacts]
    rows: Mapping[PartitionKey, tuple[ReplicaSet, int]]
    """Each row with its revision."""
    wishes: Mapping[PartitionKey, Wish] = {}
    """What the streams ask for, for each of their partitions."""
    shards: Sequence[Sequence[PartitionKey]] = ()
    """Partitions that one node is to lead together."""
    is_calm: bool = False
    """Nothing changed for a while: leaders may go back to their preferred nodes."""


def plan(view: ClusterView) -> list[PartitionChange]:
    """Every change that the rows need now."""
    found = [
        change
        for partition, (row, revision) in view.rows.items()
        if (change := change_of(partition, row, revision, view)) is not None
    ]
    found += _made(view)
    busy = {change.partition for change in found}
    found += _aligned(view, busy)
    busy |= {change.partition for change in found}
    found += _resized(view, busy)
    return found + _grown(view, busy | {change.partition for change in found})


def _resized(view: ClusterView, busy: Collection[PartitionKey]) -> list[PartitionChange]:
    """As many replicas as a stream asks for since it was changed.

    Of too many, those stay that lead, are in sync, are there, and are preferred, in this order.
    """
    loads = Loads(row.replicas for row, _revision in view.rows.values())
    found = []
    for key, (row, revision) in view.rows.items():
        wish = view.wishes.get(key)
        if wish is None or key in busy or row.adding or row.removing or row.leader == NOBODY:
            continue
        if row.factor == wish.asked:
            continue
        kept = sorted(row.replicas, key=partial(_worth, row, view.nodes), reverse=True)
        kept = [node for node in row.replicas if node in kept[: wish.factor]]
        added = loads.more(tuple(kept), wish.factor - len(kept), view.nodes)
        found.append(
            PartitionChange(
                partition=key,
                expected=revision,
                row=_replace(reassign(row, (*kept, *added)), factor=wish.asked),
                controller=view.controller,
            )
        )
    return found


def _worth(row: ReplicaSet, nodes: Mapping[int, NodeFacts], node: int) -> tuple[bool, ...]:
    facts = nodes.get(node)
    is_there = facts is not None and facts.is_up and not facts.draining
    return node == row.leader, node in row.isr, is_there


def _grown(view: ClusterView, busy: Collection[PartitionKey]) -> list[PartitionChange]:
    """More replicas for partitions that were made while too few nodes were there."""
    if not view.is_calm:
        return []
    loads = Loads(row.replicas for row, _revision in view.rows.values())
    shard_of = {key: number for number, keys in enumerate(view.shards) for key in keys}
    like: dict[int, tuple[int, ...]] = {}
    found = []
    for key, (row, revision) in view.rows.items():
        wish = view.wishes.get(key)
        if wish is None or key in busy or row.adding or row.removing or row.leader == NOBODY:
            continue
        missing = wish.factor - len(row.replicas)
        added = like.get(shard_of.get(key, -1), ())
        if not added and missing > 0:
            added = loads.more(row.replicas, missing, view.nodes)
        added = tuple(node for node in added if node not in row.replicas)[: max(0, missing)]
        if key in shard_of:
            like.setdefault(shard_of[key], added)
        if added:
            found.append(
                PartitionChange(
                    partition=key,
                    expected=revision,
                    row=reassign(row, (*row.replicas, *added)),
                    controller=view.controller,
                )
            )
    return found


def _made(view: ClusterView) -> list[PartitionChange]:
    """Rows of new partitions, as soon as one of their nodes is there."""
    epochs = {node: facts.node_epoch for node, facts in view.nodes.items() if facts.is_up}
    found = []
    for partition, wish in view.wishes.items():
        if partition in view.rows or not epochs.keys() & set(wish.replicas):
            continue
        row = new_row(wish.replicas, epochs, wish.min_insync, wish.level)
        row = _replace(row, factor=wish.asked)
        found.append(
            PartitionChange(
                partition=partition,
                expected=0,
                row=row,
                nodes=tuple(row.isr.items()),
                controller=view.controller,
            )
        )
    return found


def _aligned(view: ClusterView, busy: Collection[PartitionKey]) -> list[PartitionChange]:
    """One leader for all partitions of a shard, where a node is in sync in all of them."""
    found = []
    for keys in view.shards:
        rows = {key: view.rows[key] for key in keys if key in view.rows and key not in busy}
        leaders = {row.leader for row, _revision in rows.values()}
        best = _common(view, [row for row, _revision in rows.values()])
        if len(rows) < len(keys) or best is None or leaders == {best.node}:
            continue
        if len(leaders) == 1 and not view.is_calm:
            continue  # a leader that is not preferred, but the same of all
        found += [
            PartitionChange(
                partition=key,
                expected=revision,
                row=with_leader(row, best.node, best.node_epoch),
                nodes=((best.node, best.node_epoch),),
                controller=view.controller,
            )
            for key, (row, revision) in rows.items()
            if row.leader != best.node
        ]
    return found


def change_of(
    partition: PartitionKey, row: ReplicaSet, revision: int, view: ClusterView
) -> PartitionChange | None:
    """The change that one row needs now; None: it is as it should be."""
    nodes = view.nodes
    wanted = _reassigned(_pruned(_wished(row, view.wishes.get(partition)), nodes), nodes)
    wanted = _led(_begun_anew(wanted, row, nodes), nodes)
    if view.is_calm and not any(partition in keys for keys in view.shards):
        wanted = _balanced(wanted, nodes)
    wanted = _fenced(wanted, row)
    if wanted == row:
        return None
    is_elected = wanted.epoch != row.epoch and wanted.leader != NOBODY
    elected = ((wanted.leader, wanted.leader_node_epoch),) if is_elected else ()
    return PartitionChange(
        partition=partition,
        expected=revision,
        row=wanted,
        nodes=elected,
        controller=view.controller,
    )


def _common(view: ClusterView, rows: Sequence[ReplicaSet]) -> NodeFacts | None:
    """The node that these partitions prefer, of those that are in sync in all of them."""
    for node in rows[0].replicas if rows else ():
        facts = view.nodes.get(node)
        is_there = facts is not None and facts.is_up and not facts.draining
        if is_there and all(node in row.isr for row in rows):
            return facts
    return None


# -- steps of a row


def _wished(row: ReplicaSet, wish: Wish | None) -> ReplicaSet:
    """With the numbers that its stream asks for now, as far as this node has heard.

    The level is never raised: replicas may hold what was answered at the lower one, and what this
    node has heard may be older than the row.
    """
    if wish is None:
        return row
    return with_promise(row, wish.min_insync, min(row.level, wish.level, key=_LEVELS.index))


def _pruned(row: ReplicaSet, nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
    """Without members whose data may be gone, and without those that are not registered."""
    lost, gone = [], []
    for node, proved in {**row.isr, **row.elr}.items():
        facts = nodes.get(node)
        # The next registration of a node that is away says what it lost meanwhile.
        if facts is None or not facts.is_up:
            gone.append(node)
        elif facts.has_lost(proved, row.level):
            lost.append(node)
    pruned = without_lost(row, lost) if lost else row
    return without_members(pruned, gone) if pruned.isr.keys() & gone else pruned


def _reassigned(row: ReplicaSet, nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
    """With a reassignment ended, if enough of the remaining replicas are in sync (KIP-455)."""
    if not row.adding and not row.removing:
        return row
    staying = [node for node in row.isr if node not in row.removing]
    if any(node not in row.isr for node in row.adding) or len(staying) < row.min_insync:
        return row
    if row.leader in row.removing and _candidate(row, nodes, row.removing) is None:
        return row
    isr = {node: row.isr[node] for node in staying}
    elr = {node: proved for node, proved in row.elr.items() if node not in row.removing}
    replicas = tuple(node for node in row.replicas if node not in row.removing)
    return _replace(row, replicas=replicas, isr=isr, elr=elr, adding=(), removing=())


def _fenced(row: ReplicaSet, was: ReplicaSet) -> ReplicaSet:
    """In another epoch, if a replica was removed.

    It drops its log when it hears of that. If it is added again meanwhile, what it said before must
    not count: that was in an older epoch.
    """
    is_removed = set(was.replicas) - set(row.replicas)
    if not is_removed or row.epoch != was.epoch or row.leader == NOBODY:
        return row
    return with_leader(row, row.leader, row.leader_node_epoch)


def _begun_anew(row: ReplicaSet, was: ReplicaSet, nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
    """With a first member again, where no replica can have more than it has."""
    up = [facts for node in row.replicas if (facts := nodes.get(node)) is not None and facts.is_up]
    if row.isr or row.elr or len(up) < len(row.replicas):
        return row
    first = up[0]
    proved = {**was.isr, **was.elr}.get(first.node, -1)
    lost_cache = row.level is Durability.OS and len(up) == 1 and proved >= first.disk_since
    if not lost_cache and row.level is not Durability.MEMORY:
        return row
    return _replace(with_member(row, first.node, first.node_epoch), recover=row.epoch + 1)


def _led(row: ReplicaSet, nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
    """With a leader that is registered and may lead, or with nobody."""
    facts, best = nodes.get(row.leader), _candidate(row, nodes)
    if (
        facts is not None
        and facts.node_epoch == row.leader_node_epoch
        and row.leader in row.isr
        and row.leader in row.replicas
        and not (facts.draining and best is not None and not best.draining)
    ):
        return row
    if best is not None:
        return with_leader(row, best.node, best.node_epoch)
    return row if row.leader == NOBODY else without_leader(row)


def _candidate(
    row: ReplicaSet, nodes: Mapping[int, NodeFacts], without: tuple[int, ...] = ()
) -> NodeFacts | None:
    """Who would lead: of the ISR, else of the ELR; one that drains only if there is nobody else."""
    up = [
        facts
        for node in row.replicas
        if node not in without and (facts := nodes.get(node)) is not None and facts.is_up
    ]
    for members in (row.isr, row.elr):
        for facts in up:
            if facts.node in members and not facts.draining:
                return facts
    return next((facts for facts in up if facts.node in row.isr or facts.node in row.elr), None)


def _balanced(row: ReplicaSet, nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
    """With its preferred leader, if that one is in sync."""
    first = row.replicas[0]
    facts = nodes.get(first)
    if row.leader in (NOBODY, first) or first not in row.isr or facts is None:
        return row
    if not facts.is_up or facts.draining:
        return row
    return with_leader(row, first, facts.node_epoch)


# -- what operators ask for


def reassign(row: ReplicaSet, target: tuple[int, ...]) -> ReplicaSet:
    """The row on its way to other replicas; the controller ends it when they are in sync."""
    kept = tuple(node for node in row.replicas if node not in row.adding)
    adding = tuple(node for node in target if node not in kept)
    removing = tuple(node for node in row.replicas if node not in target)
    return _replace(row, replicas=target + removing, adding=adding, removing=removing)


def recover(row: ReplicaSet, facts: NodeFacts) -> ReplicaSet:
    """The operator accepts a loss: `facts.node` leads with what it has."""
    anew = _replace(row, isr={facts.node: facts.node_epoch}, elr={})
    return _replace(with_leader(anew, facts.node, facts.node_epoch), recover=row.epoch + 1)
