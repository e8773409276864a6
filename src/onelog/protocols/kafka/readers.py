"""Reading from the nearest replica (KIP-392): the leader names it, and a follower serves it.

Rules:
- A consumer says its rack. If the leader is in another one, and an in-sync replica in the
  consumer's rack is registered with a listener that the consumer can reach, the leader names that
  replica and sends nothing. Otherwise it serves the consumer itself.
- A follower serves records up to the end that the leader has told it. For an offset beyond that it
  answers OFFSET_NOT_AVAILABLE: the leader may have shown more already. Only what lies below its
  start is out of range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.broker import PartitionHandle
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.nodes import Nodes, is_led_here, places_of

if TYPE_CHECKING:
    from onelog.protocols.kafka.connection import Connection
    from onelog.protocols.kafka.hub import Hub


class ReadElsewhere(KafkaError):
    """Not an error: the consumer finds its records at another replica."""

    def __init__(self, node: int) -> None:
        super().__init__(ErrorCode.none, f"read from node {node}")
        self.node = node


class Readers:
    """The replicas that are nearer to one consumer than this node."""

    __slots__ = ("_hub", "_near")

    def __init__(self, hub: Hub, near: set[int]) -> None:
        self._hub = hub
        self._near = near

    @classmethod
    def find(cls, connection: Connection, rack: str) -> Readers | None:
        """For a consumer in a rack; None: this node is as near as any."""
        hub = connection.hub
        if not rack or not hub.broker.cluster.nodes():
            return None
        nodes = Nodes(hub, connection)
        if nodes.by_id[hub.node_id].rack == rack:
            return None
        near = {row.id for row in nodes.by_id.values() if row.rack == rack}
        return cls(hub, near) if near else None

    def nearest(self, log: PartitionHandle) -> int | None:
        """The replica to read a partition from that this node leads; None: this node."""
        if not is_led_here(log):
            return None
        near = [node for node in places_of(self._hub, log).isr if node in self._near]
        return near[int(log.id) % len(near)] if near else None


def check_not_ahead(log: PartitionHandle, offset: int) -> None:
    """Refuse an offset behind the end that readers see here: the leader may know more, or this
    node, if it was elected a moment ago. Raises KafkaError."""
    if not is_led_here(log):
        raise KafkaError(
            ErrorCode.offset_not_available,
            f"offset {offset} of {log.stream}/{log.id} has not come to this replica yet",
        )
