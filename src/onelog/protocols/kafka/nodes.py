"""Nodes as Kafka clients see them: where each is reached, who leads a partition, who owns a name.

Rules:
- A client gets the addresses of the listener that it came by: each node registers the address of
  every listener by its name. A node without that listener does not exist for the client.
- A node on its own knows nobody else. Its address is the one of the connection.
- A view's partition has the leader and the replicas of the partition that holds its records.
- A leader that may have been replaced long ago shows nothing: clients ask again until it knows.
- Every node runs the commands of clients. So a cluster always has a controller for them: while
  nobody has the seat, it is the node that answers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from onelog.base.errors import NotLeader
from onelog.broker import NO_NODE, PartitionHandle, ReplicaPlaces
from onelog.protocols.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from onelog.protocols.kafka.connection import Connection
    from onelog.protocols.kafka.hub import Hub

_URLS_REMEMBERED: Final = 1000


class NodeRow(NamedTuple):
    """A node at the address that a client can reach."""

    id: int
    host: str
    port: int
    rack: str | None = None


class Nodes:
    """The nodes that one client sees, at one moment."""

    __slots__ = ("_hub", "by_id", "is_alone")

    def __init__(self, hub: Hub, connection: Connection) -> None:
        self._hub = hub
        cluster, listener = hub.broker.cluster, connection.peer.listener
        registered = cluster.nodes()
        self.is_alone = not registered
        self.by_id: dict[int, NodeRow] = {}
        for place in registered:
            url = place.listeners.get(listener)
            if url is not None:
                host, port = address_of(url)
                self.by_id[place.id] = NodeRow(place.id, host, port, place.rack or None)
        if hub.node_id not in self.by_id:
            self.by_id[hub.node_id] = NodeRow(hub.node_id, *connection.advertised)

    @property
    def controller(self) -> int:
        """The node that a client asks to change the cluster."""
        found = self._hub.broker.cluster.controller
        return found if found in self.by_id else self._hub.node_id

    def is_up(self, node: int) -> bool:
        """Whether a node is registered, and this client can reach it."""
        return node in self.by_id

    def leader(self, places: ReplicaPlaces, log: PartitionHandle) -> tuple[int, ErrorCode]:
        """The leader of a partition for this client, or why it sees none."""
        leader = places.leader
        if leader == NO_NODE or (leader == self._hub.node_id and log.stopped is not None):
            return NO_NODE, ErrorCode.leader_not_available
        if leader in self.by_id:
            return leader, ErrorCode.none
        cluster = self._hub.broker.cluster
        if any(place.id == leader for place in cluster.nodes()):
            return NO_NODE, ErrorCode.listener_not_found
        return NO_NODE, ErrorCode.leader_not_available


@lru_cache(_URLS_REMEMBERED)
def address_of(url: str) -> tuple[str, int]:
    """The host and port of a listener's URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def places_of(hub: Hub, log: PartitionHandle) -> ReplicaPlaces:
    """Who has a partition, and who leads it."""
    broker = hub.broker
    return broker.cluster.replicas(broker.streams.get(log.stream).record.id, log)


def is_led_here(log: PartitionHandle) -> bool:
    """Whether this node leads a partition, as far as it knows."""
    return not isinstance(log.refusal, NotLeader)


def check_led(log: PartitionHandle) -> None:
    """Raise NotLeader unless this node leads a partition."""
    refusal = log.refusal
    if refusal is not None and isinstance(refusal, NotLeader):
        raise refusal.with_traceback(None)


def check_fresh(log: PartitionHandle) -> None:
    """Raise NotLeader if this node leads a partition, and may have been replaced long ago."""
    if not log.is_fresh:
        raise NotLeader(
            f"{log.stream}/{log.id} may have another leader: this node reaches neither the metadata"
            " store nor all replicas that could lead; try again"
        )
