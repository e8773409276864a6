"""Mistakes in the rows of partitions, in their writes, and at the rim."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pytest

from onelog.cluster import controller, rows
from onelog.cluster.membership import Membership, RowOutcome
from onelog.cluster.rows import NodeFacts, PartitionChange, ReplicaSet
from onelog.log.promises import Durability
from tests.simulation.cluster import node as nodes
from tests.simulation.cluster import operators
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.store import SimulatedStore

Patch = pytest.MonkeyPatch


# -- rows and the metadata store


def takes_a_lease_for_a_lock(patch: Patch) -> None:
    """A leader writes its row without a compare: it holds the lease, so nobody else writes."""
    honest = SimulatedStore.apply

    def apply(store: SimulatedStore, change: PartitionChange) -> tuple[RowOutcome, int]:
        if not change.controller:
            held = store.rows[change.partition][1]
            change = msgspec.structs.replace(change, expected=held)
        return honest(store, change)

    patch.setattr(SimulatedStore, "apply", apply)


def controls_without_a_fence(patch: Patch) -> None:
    """A controller that was replaced goes on, and compares nothing."""
    honest = SimulatedStore.apply

    def apply(store: SimulatedStore, change: PartitionChange) -> tuple[RowOutcome, int]:
        if change.controller:
            held = store.rows[change.partition][1]
            change = msgspec.structs.replace(change, expected=held, controller=0, nodes=())
        return honest(store, change)

    patch.setattr(SimulatedStore, "apply", apply)


def trusts_every_proof(patch: Patch) -> None:
    """What a registration says of a lost cache or disk is not read."""
    patch.setattr(NodeFacts, "has_lost", lambda *_: False)


def proves_with_the_process_of_today(patch: Patch) -> None:
    """A row remembers who is in sync, not in which process it was proved."""
    honest = controller._pruned

    def pruned(row: ReplicaSet, nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
        up = {node: facts.node_epoch for node, facts in nodes.items() if facts.is_up}
        isr = {node: up.get(node, proved) for node, proved in row.isr.items()}
        elr = {node: up.get(node, proved) for node, proved in row.elr.items()}
        return honest(msgspec.structs.replace(row, isr=isr, elr=elr), nodes)

    patch.setattr(controller, "_pruned", pruned)


def takes_a_registration_before_its_members_row(patch: Patch) -> None:
    """A node is back: it is elected before anybody has heard that its disk is another one."""

    def seen_together(member: NodeFacts, _revision: int, node_epoch: int) -> NodeFacts:
        return msgspec.structs.replace(member, node_epoch=node_epoch)

    patch.setattr(nodes, "seen_together", seen_together)


def ignores_the_elr(patch: Patch) -> None:
    """KIP-966: only the ISR leads, and the last one that stood in it is nowhere."""
    patch.setattr(rows, "_with_elr", lambda row, _elr: msgspec.structs.replace(row, elr={}))


def keeps_the_elr(patch: Patch) -> None:
    """The ELR stays eligible while others answer without it."""

    def with_elr(row: ReplicaSet, elr: dict[int, int]) -> ReplicaSet:
        return msgspec.structs.replace(
            row, elr={node: elr[node] for node in elr if node not in row.isr}
        )

    patch.setattr(rows, "_with_elr", with_elr)


def elects_any_replica(patch: Patch) -> None:
    """Nobody of ISR or ELR is there: one that is leads (unclean)."""
    honest = controller._led

    def led(row: ReplicaSet, nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
        made = honest(row, nodes)
        up = [nodes[node] for node in row.replicas if node in nodes and nodes[node].is_up]
        if made.leader == rows.NOBODY and up:
            made = rows.with_member(made, up[0].node, up[0].node_epoch)
            made = rows.with_leader(made, up[0].node, up[0].node_epoch)
        return made

    patch.setattr(controller, "_led", led)


def elects_a_draining_replica(patch: Patch) -> None:
    """It is in sync and runs: it leads, whether it drains or not."""
    honest = controller._led

    def led(row: ReplicaSet, nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
        blind = {
            node: msgspec.structs.replace(facts, draining=False) for node, facts in nodes.items()
        }
        return honest(row, blind)

    patch.setattr(controller, "_led", led)


def ends_a_reassignment_at_once(patch: Patch) -> None:
    """Who is to leave leaves before the others have what it had."""

    def reassigned(row: ReplicaSet, _nodes: Mapping[int, NodeFacts]) -> ReplicaSet:
        if not row.removing:
            return row
        replicas = tuple(node for node in row.replicas if node not in row.removing)
        isr = {node: proved for node, proved in row.isr.items() if node not in row.removing}
        first = next((node for node in replicas if node in _nodes and _nodes[node].is_up), None)
        if not isr and first is not None:
            isr = {first: _nodes[first].node_epoch}
        return msgspec.structs.replace(
            row, replicas=replicas, isr=isr, elr={}, adding=(), removing=()
        )

    patch.setattr(controller, "_reassigned", reassigned)


def keeps_the_elr_when_promises_change(patch: Patch) -> None:
    """A lower `min_insync` lets the ISR answer alone, and the ELR stays eligible."""
    patch.setattr(
        controller,
        "with_promise",
        lambda row, min_insync, level: msgspec.structs.replace(
            row, min_insync=min(min_insync, rows.settled_count(row)), level=level
        ),
    )


def raises_the_level_at_once(patch: Patch) -> None:
    """What was answered from the page cache counts as durable."""

    def wished(row: ReplicaSet, wish: controller.Wish | None) -> ReplicaSet:
        insync = row.min_insync if wish is None else wish.min_insync
        return rows.with_promise(row, insync, Durability.FSYNC)

    patch.setattr(controller, "_wished", wished)


def raises_the_level_to_what_it_heard(patch: Patch) -> None:
    """A controller that has not heard of the lower level yet writes the higher one again."""

    def wished(row: ReplicaSet, wish: controller.Wish | None) -> ReplicaSet:
        return row if wish is None else rows.with_promise(row, wish.min_insync, wish.level)

    patch.setattr(controller, "_wished", wished)


def elects_on_request_who_was_in_sync(patch: Patch) -> None:
    """An operator has a member of the ISR elected whose data is gone since."""
    patch.setattr(operators, "is_in_sync", lambda row, facts: facts.node in row.isr and facts.is_up)


def forgets_a_loss_at_an_opening(patch: Patch) -> None:
    """A member that comes back with less than the high watermark stays eligible."""
    patch.setattr(Membership, "lost", lambda *_: None)


def leaves_out_who_lags_in_silence(patch: Patch) -> None:
    """A leader drops replicas from its own row, without the store."""

    def flush(
        members: Membership, end_of: Any, ready: Any, log_end: int, now: float
    ) -> Collection[Any]:
        out = honest(members, end_of, ready, log_end, now)
        if members.pending is not None and not members.pending.nodes:
            members.row = members.pending.row
        return out

    honest = Membership.flush
    patch.setattr(Membership, "flush", flush)


# -- the rim


def refuses_what_it_has_appended(patch: Patch) -> None:
    """C7: a publisher whose leader is deposed hears that nothing happened."""

    def fail(node: SimulatedNode, partition: Any) -> None:
        for waiter in node.waiters.pop(partition, []):
            waiter.done("refused")

    patch.setattr(SimulatedNode, "_fail_waiters", fail)
