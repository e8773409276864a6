"""What protocols show to operators: rows of their connections, groups, transactions and wills.

Rules: a row is a value, made when somebody asks. A protocol has one `ProtocolDesk` while it is
served; lists come one row at a time from a copy, so that a caller that shows many can give others
their turn. Nothing here knows a protocol's own classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One connection."""

    id: str
    """Unique while it lasts: its listener and the address of its peer."""
    protocol: str
    listener: str
    address: str
    via: str
    """tcp, tls, ws or wss."""
    user: str | None
    """None before the login."""
    client_id: str
    state: str
    version: str
    connected_ms: int | None
    received_bytes: int | None
    sent_bytes: int | None
    subscriptions: int
    """Filters that it subscribed to, or queues that it consumes."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What a protocol did since the start of the process; rates are differences of these."""

    connections: int
    received_messages: int
    sent_messages: int | None
    """None: the protocol sends stored bytes and does not count messages."""
    received_bytes: int
    sent_bytes: int


class ProtocolDesk(Protocol):
    """A protocol that is served."""

    def traffic(self) -> Traffic:
        """Its counters now."""
        ...

    def connections(self) -> Iterator[ConnectionRow]:
        """Every connection."""
        ...

    def kick(self, connection: str, reason: str) -> int:
        """End the connections of this id, as the protocol says goodbye; how many there were."""
        ...


def connection_id(listener: str, address: str) -> str:
    """How a connection is named to operators."""
    return f"{listener}-{address}"
