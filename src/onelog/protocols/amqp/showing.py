"""AMQP as operators see it: connections, and what they count."""

from __future__ import annotations

from collections.abc import Iterator

from onelog.broker.showing import ConnectionRow, Traffic, connection_id
from onelog.protocols.amqp.connection import Connection, State
from onelog.protocols.amqp.errors import Reply
from onelog.protocols.amqp.hub import Hub

_STATES = {
    State.HEADER: "new",
    State.HANDSHAKE: "authenticating",
    State.OPEN: "connected",
    State.CLOSING: "closing",
    State.CLOSED: "closed",
}


class AmqpDesk:
    """What there is of AMQP now."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def traffic(self) -> Traffic:
        """Its counters now."""
        hub = self._hub
        queues = (queue for vhost in hub.vhosts.all() for queue in vhost.queues.values())
        gone = hub.queues.counters.of_deleted["delivered"]
        return Traffic(
            connections=len(hub.connections),
            received_messages=hub.counters.published,
            sent_messages=gone + sum(queue.delivered for queue in queues),
            received_bytes=hub.counters.received_bytes,
            sent_bytes=hub.counters.sent_bytes,
        )

    def connections(self) -> Iterator[ConnectionRow]:
        """Every connection."""
        return map(_row, list(self._hub.connections))

    def kick(self, connection: str, reason: str) -> int:
        """Close the connections of this id (320)."""
        found = [row for row in self._hub.connections if _id(row) == connection]
        for row in found:
            row.close(Reply.CONNECTION_FORCED, f"CONNECTION_FORCED - {reason}")
        return len(found)


def _id(connection: Connection) -> str:
    return connection_id(connection.peer.listener, connection.peer.address)


def _row(connection: Connection) -> ConnectionRow:
    peer, given = connection.peer, connection.properties.get("connection_name")
    channels = list(connection.channels.values())
    return ConnectionRow(
        id=_id(connection),
        protocol="amqp",
        listener=peer.listener,
        address=peer.address,
        via=peer.via,
        user=None if connection.identity is None else connection.identity.name,
        client_id=given if isinstance(given, str) else "",
        state="blocked" if connection.is_blocked else _STATES[connection.state],
        version="0-9-1",
        connected_ms=connection.connected_ms,
        received_bytes=connection.received_bytes,
        sent_bytes=connection.sent_bytes,
        subscriptions=sum(len(channel.consuming.consumers) for channel in channels),
    )
