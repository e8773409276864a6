"""Where things are: the nodes of the cluster, the replicas of each partition, the owner of a name.

Rules:
- Everything here is the last known state, read without waiting. A "no" that drops something needs a
  fresh look first (`refresh`); a "yes" may come from what is known.
- A *shard* is a number k: partition k of every internal stream. Whoever leads all partitions of a
  shard owns the names (groups, sessions, cursors, transactions) whose rows lie in it.
- A node on its own (`LoneNode`) is a cluster of one: it leads everything and owns every name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from onelog.base.errors import InvalidRequest
from onelog.base.ids import PartitionId
from onelog.log.handle import PartitionHandle

NOBODY: Final = -1
"""No node: nobody leads, owns or controls it now."""


class NodePlace(NamedTuple):
    """A node that is registered."""

    id: int
    epoch: int
    """Its node epoch: grows with each registration."""
    rack: str
    is_draining: bool
    listeners: Mapping[str, str]
    """The URL at which clients reach each listener, by the listener's name."""


class ReplicaPlaces(NamedTuple):
    """The replicas of a partition, by number of their nodes."""

    leader: int
    """`NOBODY`: it is offline."""
    epoch: int
    """The leader's epoch."""
    replicas: tuple[int, ...]
    """In order of preference."""
    isr: tuple[int, ...]
    """Those that an answer waits for."""
    elr: tuple[int, ...] = ()
    """Those outside the ISR that have everything, too, and may lead."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class ClusterMap(Protocol):
    """What a node knows of its cluster, for protocols and operators."""

    on_change: list[Callable[[], None]]
    """Called after nodes, leaders, replicas or owners changed."""

    @property
    def node(self) -> int:
        """This node."""
        ...

    @property
    def controller(self) -> int:
        """The node that elects leaders; `NOBODY`: none does now."""
        ...

    @property
    def factor(self) -> int:
        """Replicas of a new partition whose creator asks for no number."""
        ...

    def nodes(self) -> Sequence[NodePlace]:
        """The registered nodes, by number. On a node on its own: nothing is known of its
        listeners, and the sequence is empty."""
        ...

    def replicas(self, stream_id: str, partition: PartitionHandle) -> ReplicaPlaces:
        """Who has a partition and who leads it."""
        ...

    def owner(self, name: bytes) -> int:
        """The node that owns a name; `NOBODY`: an election is under way."""
        ...

    async def refresh(self) -> None:
        """Wait until everything that the metadata store knew at the call is known here. Raises
        Unavailable."""
        ...

    async def until_led(self, stream_id: str, partitions: int) -> None:
        """Wait until so many partitions of a new stream have a leader, as far as is known here.
        Raises Timeout, after a few seconds."""
        ...

    async def elect(self, stream_id: str, partition: PartitionId, *, unclean: bool = False) -> bool:
        """Let the preferred replica lead, or (unclean) any replica that is left. Whether the leader
        changed. Raises Conflict, Unavailable, OutcomeUnknown."""
        ...

    async def reassign(
        self, stream_id: str, partition: PartitionId, replicas: Sequence[int] | None
    ) -> None:
        """Move a partition to these nodes; None: stop a move under way. Raises Conflict,
        InvalidRequest, Unavailable, OutcomeUnknown."""
        ...


class LoneNode:
    """A node on its own."""

    def __init__(self, node: int = 0) -> None:
        self.node = self.controller = node
        self.factor = 1
        self.on_change: list[Callable[[], None]] = []

    def nodes(self) -> Sequence[NodePlace]:
        """See `ClusterMap`."""
        return ()

    def replicas(self, stream_id: str, partition: PartitionHandle) -> ReplicaPlaces:
        """See `ClusterMap`: this node leads, even what is stopped."""
        del stream_id
        own = (self.node,)
        return ReplicaPlaces(self.node, int(partition.leader_epoch), own, own)

    def owner(self, name: bytes) -> int:
        """See `ClusterMap`."""
        del name
        return self.node

    async def refresh(self) -> None:
        """See `ClusterMap`: what is known here is all there is."""

    async def until_led(self, stream_id: str, partitions: int) -> None:
        """See `ClusterMap`: this node leads."""
        del stream_id, partitions

    async def elect(self, stream_id: str, partition: PartitionId, *, unclean: bool = False) -> bool:
        """See `ClusterMap`: the only replica leads."""
        del stream_id, partition, unclean
        return False

    async def reassign(
        self, stream_id: str, partition: PartitionId, replicas: Sequence[int] | None
    ) -> None:
        """See `ClusterMap`: there is nowhere to move to."""
        del stream_id, partition, replicas
        raise InvalidRequest("a node on its own has no other node to move a partition to")
