"""The row of a partition in the metadata store: who has it, who leads it, who is in sync.

Words: the *ISR* is the set of replicas that an answer waits for. The *ELR* holds replicas that left
an ISR which was too small to let the high watermark move: they have everything that was answered,
too, and may lead. A *node epoch* is the revision of a node's registration: it grows with each
start of the node.

Rules:
- Every member of ISR and ELR stands with the node epoch in which it was proved to have everything.
  If a later start of that node found its data gone, the proof is void (`NodeFacts.has_lost`).
- A leader is elected for one node epoch. A process that starts anew never goes on in an epoch of
  the process before it: it may have lost records that others copied.
- `min_insync` and `level` stand in the row, so that all who judge by them change their mind at one
  revision.
- Every write compares the row's own revision. The leader writes ISR and ELR, and compares the
  registration of each node that it adds. The controller writes the rest, and compares its own row.
- A row says nothing that only time could make true: a lease decides when somebody writes, and a
  compare decides whether it counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from onelog.base.ids import PartitionId
from onelog.log.promises import Durability
from onelog.metadata.store import Compare, Put
from onelog.storage.engine import PartitionKey

NOBODY: Final = -1
"""The leader of a partition that is offline."""
PARTITIONS: Final = "partitions/"
NODES: Final = "nodes/"
CONTROLLER: Final = "controller"

_replace: Final = msgspec.structs.replace


class ReplicaSet(msgspec.Struct, frozen=True, kw_only=True):
    """The row."""

    replicas: tuple[int, ...]
    """The nodes that copy it; the first one is the preferred leader."""
    leader: int = NOBODY
    leader_node_epoch: int = 0
    """The leader's process: no other one leads in this epoch."""
    epoch: int = 0
    """Grows by one with each election."""
    isr: dict[int, int] = {}
    """In-sync replicas, and the node epoch in which each was proved to have everything."""
    elr: dict[int, int] = {}
    """Eligible replicas outside the ISR, in the same form."""
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment adds; they are among `replicas`."""
    removing: tuple[int, ...] = ()
    """Replicas that a reassignment removes as soon as the others are in sync."""
    min_insync: int = 1
    level: Durability = Durability.FSYNC
    recover: int = 0
    """The last epoch that may have begun with a loss; 0: none did."""
    factor: int = 0
    """The replicas that its stream asked for when their number was last set by it; 0: what the
    cluster gives. A move by an operator changes `replicas` alone."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata store says of a node."""

    node: int
    node_epoch: int = 0
    """The revision of its registration; 0: it is not registered now."""
    disk_since: int = 0
    """Proofs from node epochs below this one were made on a disk that is gone."""
    cache_since: int = 0
    """Proofs from node epochs below this one may have been lost with the page cache."""
    process_since: int = 0
    """Proofs from node epochs below this one were those of another process."""
    rack: str = ""
    draining: bool = False

    @property
    def is_up(self) -> bool:
        """Whether it is registered."""
        return self.node_epoch > 0

    def has_lost(self, proved: int, level: Durability) -> bool:
        """Whether records that it had at `level` in node epoch `proved` may be gone."""
        since = self.disk_since
        if level is Durability.OS:
            since = max(since, self.cache_since)
        elif level is Durability.MEMORY:
            since = max(since, self.process_since)
        return proved < since


def seen_together(member: NodeFacts, revision: int, node_epoch: int) -> NodeFacts:
    """A node by its two rows: its member's, seen at `revision`, and its registration.

    A registration writes both at one revision, but they come by two watches. Until the member's row
    has come, too, nobody knows what that start found gone: the node counts as not registered.
    """
    return _replace(member, node_epoch=node_epoch if revision >= node_epoch else 0)


class PartitionChange(msgspec.Struct, frozen=True, kw_only=True):
    """A write of a row, which counts only if all its compares hold."""

    partition: PartitionKey
    expected: int
    """The row's revision as the writer knows it; 0: there is no row yet."""
    row: ReplicaSet
    nodes: tuple[tuple[int, int], ...] = ()
    """Nodes that must be registered with exactly these node epochs."""
    controller: int = 0
    """The revision of the controller's row; 0: the leader writes."""

    def transaction(self) -> tuple[list[Compare], list[Put]]:
        """The change for a metadata store."""
        key = row_key(self.partition)
        compares = [Compare(key, "mod_revision", "==", self.expected)]
        compares += [
            Compare(f"{NODES}{node}", "mod_revision", "==", epoch) for node, epoch in self.nodes
        ]
        if self.controller:
            compares.append(Compare(CONTROLLER, "mod_revision", "==", self.controller))
        return compares, [Put(key, encode_row(self.row))]


def is_in_sync(row: ReplicaSet, facts: NodeFacts) -> bool:
    """Whether a node has everything: its proof stands in the ISR, and no later start of it found
    its data gone. The controller may not have taken such a node out yet."""
    proved = row.isr.get(facts.node)
    return proved is not None and facts.is_up and not facts.has_lost(proved, row.level)


# -- keys and values

_decoder: Final = msgspec.json.Decoder(ReplicaSet)


def row_key(partition: PartitionKey) -> str:
    """Where the row of a partition stands."""
    return f"{PARTITIONS}{partition.stream_id}/{partition.partition}"


def partition_of(key: str) -> PartitionKey:
    """The partition whose row stands at `key`."""
    stream_id, _, number = key.removeprefix(PARTITIONS).rpartition("/")
    return PartitionKey(stream_id, PartitionId(int(number)))


def encode_row(row: ReplicaSet) -> bytes:
    """The value of a row."""
    return msgspec.json.encode(row)


def decode_row(value: bytes) -> ReplicaSet:
    """The row of a value."""
    return _decoder.decode(value)


# -- steps


def with_member(row: ReplicaSet, node: int, node_epoch: int) -> ReplicaSet:
    """`node` has everything now: it is in sync."""
    isr = {**row.isr, node: node_epoch}
    return _with_elr(_replace(row, isr=isr), row.elr)


def without_members(row: ReplicaSet, nodes: Collection[int]) -> ReplicaSet:
    """These replicas leave the ISR together.

    They stay eligible if nothing can be answered without them.
    """
    isr = {node: proved for node, proved in row.isr.items() if node not in nodes}
    left = {node: proved for node, proved in row.isr.items() if node in nodes}
    return _with_elr(_replace(row, isr=isr), {**row.elr, **left})


def without_lost(row: ReplicaSet, nodes: Collection[int]) -> ReplicaSet:
    """These replicas lack records: they leave ISR and ELR."""
    isr = {node: proved for node, proved in row.isr.items() if node not in nodes}
    elr = {node: proved for node, proved in row.elr.items() if node not in nodes}
    return _with_elr(_replace(row, isr=isr), elr)


def with_leader(row: ReplicaSet, node: int, node_epoch: int) -> ReplicaSet:
    """`node`, a member of ISR or ELR, leads in a new epoch."""
    assert node in row.isr or node in row.elr, "nobody leads who may lack a record"
    led = with_member(row, node, node_epoch)
    return _replace(led, leader=node, leader_node_epoch=node_epoch, epoch=row.epoch + 1)


def without_leader(row: ReplicaSet) -> ReplicaSet:
    """Nobody leads: the epoch is over, the next election begins another."""
    return _replace(row, leader=NOBODY, leader_node_epoch=0)


def with_promise(row: ReplicaSet, min_insync: int, level: Durability) -> ReplicaSet:
    """What an answer means from now on; never more replicas than there are."""
    insync = min(min_insync, settled_count(row))
    if (insync, level) == (row.min_insync, row.level):
        return row
    return _with_elr(_replace(row, min_insync=insync, level=level), row.elr)


def settled_count(row: ReplicaSet) -> int:
    """How many replicas there are before, and will be after, the reassignment under way."""
    return len(row.replicas) - max(len(row.adding), len(row.removing))


def _with_elr(row: ReplicaSet, elr: dict[int, int]) -> ReplicaSet:
    """An ISR that is large enough needs no ELR: records may be answered that the ELR lacks."""
    if len(row.isr) >= row.min_insync:
        return _replace(row, elr={})
    return _replace(row, elr={node: elr[node] for node in elr if node not in row.isr})


def new_row(
    replicas: Sequence[int], nodes: dict[int, int], min_insync: int, level: Durability
) -> ReplicaSet:
    """The row of a new partition: every living replica has everything, for there is nothing.

    `nodes` holds the node epochs of those that are registered.
    """
    isr = {node: nodes[node] for node in replicas if node in nodes}
    row = ReplicaSet(replicas=tuple(replicas), isr=isr, min_insync=min_insync, level=level)
    first = next(iter(isr), NOBODY)
    return row if first == NOBODY else with_leader(row, first, nodes[first])
