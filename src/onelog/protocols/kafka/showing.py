"""Kafka as operators see it: connections, and what they count."""

from __future__ import annotations

from collections.abc import Iterator

from onelog.broker.showing import ConnectionRow, Traffic, connection_id
from onelog.protocols.kafka.connection import Connection
from onelog.protocols.kafka.hub import Hub


class KafkaDesk:
    """What there is of Kafka now."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def traffic(self) -> Traffic:
        """Its counters now. Fetches send stored bytes, whose messages nobody counts."""
        hub = self._hub
        return Traffic(
            connections=len(hub.connections),
            received_messages=hub.broker.publisher.batched_messages,
            sent_messages=None,
            received_bytes=hub.counters.received_bytes,
            sent_bytes=hub.counters.sent_bytes,
        )

    def connections(self) -> Iterator[ConnectionRow]:
        """Every connection."""
        return map(_row, list(self._hub.connections))

    def kick(self, connection: str, reason: str) -> int:
        """Close the connections of this id; Kafka has no word for why."""
        found = [row for row in self._hub.connections if _id(row) == connection]
        for row in found:
            row.close(reason)
        return len(found)


def _id(connection: Connection) -> str:
    return connection_id(connection.peer.listener, connection.peer.address)


def _row(connection: Connection) -> ConnectionRow:
    peer, identity = connection.peer, connection.identity
    return ConnectionRow(
        id=_id(connection),
        protocol="kafka",
        listener=peer.listener,
        address=peer.address,
        via=peer.via,
        user=None if identity is None else identity.name,
        client_id=connection.client_id,
        state="authenticating" if identity is None else "connected",
        version="",
        connected_ms=None,
        received_bytes=None,
        sent_bytes=None,
        subscriptions=0,
    )
