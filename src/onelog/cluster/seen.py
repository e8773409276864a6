"""The cluster as values, for the admin API and the command line.

Rule: nothing here knows etcd, so that a node on its own imports none of it.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec


class SeenNode(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the cluster."""

    id: int
    name: str
    rack: str
    roles: tuple[str, ...]
    version: str
    epoch: int
    """Its node epoch; 0: it is not registered."""
    draining: bool
    is_clean: bool
    """Whether its process before this one had closed everything."""
    is_owner: bool
    """Whether it made the cluster."""
    inner_versions: tuple[int, int]
    """The lowest and highest inner version that it speaks; 0: it is not registered."""
    leads: int
    """Partitions that it leads."""
    replicas: int
    """Partitions of which it has a copy."""
    elections: int | None
    """Leaderships that it took over since its start; null: it did not answer."""
    listeners: dict[str, str]
    """Where clients reach it."""


class SeenEtcd(msgspec.Struct, frozen=True, kw_only=True):
    """A member of etcd."""

    url: str
    version: str
    """Empty: it never answered this node."""
    is_resting: bool
    """Whether it failed lately."""


class SeenLink(msgspec.Struct, frozen=True, kw_only=True):
    """How one node reaches another."""

    from_node: int
    node: int
    address: str
    lanes: tuple[str, ...]
    """Its connections: `live` and `bulk`; empty: there is no link."""
    rtt_ms: float | None
    suspicion: str | None
    """Why the node seems dead from there."""
    attempts: int
    """Attempts to connect since the link was lost."""
    last_end: str
    """Why the last connection ended."""


PartitionState = Literal["healthy", "moving", "under-replicated", "refusing", "offline"]


class ReplicaLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replica is behind its leader."""

    node: int
    offsets: int


class SeenPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition and its replicas."""

    name: str
    """`main/0`."""
    stream: str
    partition: int
    state: PartitionState
    """`refusing`: fewer replicas are in sync than a record needs, so publishers are refused.
    `offline`: nobody leads it."""
    leader: int
    """-1: nobody leads it."""
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """Replicas in sync: those that an answer waits for."""
    elr: tuple[int, ...]
    """Replicas outside the ISR that have everything, too, and may lead."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    min_insync: int
    lags: tuple[ReplicaLag, ...]
    """Replicas that lack something now; empty also where the leader did not answer."""


class PartitionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How many partitions are in which state; one is counted once, by the worst."""

    partitions: int = 0
    offline: int = 0
    refusing: int = 0
    under_replicated: int = 0
    moving: int = 0


class SeenCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of it."""

    summary: str = ""
    """In one line: healthy, or what is wrong and what to do."""
    is_healthy: bool = True
    """Whether every partition has a leader and all of its replicas in sync, and etcd answers."""

    mode: Literal["single", "etcd"]
    """`single`: this node is on its own, and the rest says nothing more."""
    name: str = ""
    id: str = ""
    node: int
    """This node."""
    epoch: int = 0
    """Its node epoch; 0: it is not registered."""
    controller: int = -1
    """The node that controls; -1: none does."""
    is_current: bool = True
    """Whether the metadata store answered just now."""
    revision: int = 0
    """The revision of the metadata store."""
    version: int = 0
    """The inner version that operators have finalised."""
    totals: PartitionTotals = PartitionTotals()
    lag_max: int = 0
    """Offsets that the slowest replica lacks."""
    nodes: tuple[SeenNode, ...] = ()
    links: tuple[SeenLink, ...] = ()
    """As seen by each node that answered."""
    etcd: tuple[SeenEtcd, ...] = ()


class ClusterDesk(Protocol):
    """What can be asked of the cluster."""

    async def look(self) -> SeenCluster:
        """The cluster now."""
        ...

    async def drain(self, node: int, *, draining: bool) -> None:
        """Let others lead what a node leads; or take that mark away. Raises NotFound, Conflict."""
        ...

    async def remove(self, node: int) -> None:
        """Take a node that does not run out of the cluster. Raises NotFound, Conflict."""
        ...

    async def partitions(self) -> list[SeenPartition]:
        """Every partition, with how far its replicas are."""
        ...

    async def reassign(self, name: str, replicas: tuple[int, ...] | None) -> None:
        """Move a partition to these nodes; None: stop a move. Raises StreamNotFound, Conflict,
        InvalidRequest, Unavailable, OutcomeUnknown."""
        ...

    async def empty(self, node: int) -> int:
        """Mark a node as draining, and move its copies elsewhere. Returns how many partitions are
        on their way. Raises NotFound, Conflict."""
        ...

    async def elect(self, name: str) -> int:
        """Let preferred replicas lead: of one partition, or (empty) of all. Returns how many
        leaders changed. Raises StreamNotFound, Conflict."""
        ...

    async def recover(self, name: str, node: int) -> bool:
        """Let a node lead an offline partition with what it has. Whether it does. Raises
        StreamNotFound, Conflict, InvalidRequest."""
        ...

    async def finalize(self, version: int | None) -> int:
        """Say that all nodes may use an inner version; None: the highest that all know. Returns
        it. Raises Conflict, InvalidRequest."""
        ...
