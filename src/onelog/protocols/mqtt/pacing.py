"""What quotas count of an MQTT client: its connection, its requests, its subscriptions.

Rules: publishes are counted by reads (`Connection`), because the kernel stages them. A request is a
packet that asks for something else than a publish or its acknowledgement. A connection that takes a
client id over takes its place, so that a client with a quota of one connection can come back.
Subscriptions count while their client is connected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from onelog.base.errors import QuotaExceeded
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.security.quotas.entities import Limit
from onelog.security.quotas.seat import QuotaSeat

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection

_REQUESTS: Final = frozenset(
    {PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ, PacketType.AUTH}
)

_CONNECTIONS: Final = Limit.CONNECTIONS
_SUBSCRIPTIONS: Final = Limit.SUBSCRIPTIONS


def take_seat(connection: Connection, client_id: str) -> None:
    """Count a client that connects. Raises QuotaExceeded when there are too many."""
    hub, user = connection.hub, connection.principal.name
    before = hub.sessions.get(client_id)
    leaving = None if before is None or before.connection is None else before.connection.seat
    if leaving is not None and (leaving.user != user or not leaving.held(_CONNECTIONS)):
        leaving = None
    if leaving is not None:
        leaving.keep(_CONNECTIONS, -1)
    try:
        quotas, listener = hub.broker.client_quotas, connection.peer.listener
        connection.seat = quotas.join(
            connection, "mqtt", user, client_id, listener, patience_s=quotas.patience_s
        )
    except QuotaExceeded:
        if leaving is not None:
            leaving.keep(_CONNECTIONS, 1)
        raise


def count_request(seat: QuotaSeat, kind: PacketType) -> None:
    """Count a packet that Python handles."""
    if kind in _REQUESTS:
        seat.ask(1)


def charge_of(connection: Connection) -> Callable[[int, int], None] | None:
    """What the kernel calls with the messages and bytes of a read; None: nobody counts them."""
    is_paced = connection.seat is not None and connection.seat.paces_publish
    if is_paced or connection.hub.broker.publisher.is_metered:
        return partial(_charge, connection)
    return None


def _charge(connection: Connection, messages: int, size_bytes: int) -> None:
    """Count publishes that the kernel staged. Beyond the quota of the program that runs the broker,
    each one is checked."""
    hub, principal = connection.hub, connection.principal
    publisher = hub.broker.publisher
    if publisher.is_metered and publisher.charge(principal, messages, size_bytes) is not None:
        hub.routes.forget_of(principal)
    if connection.seat is not None:
        connection.seat.publish(messages, size_bytes)


def count_publish(connection: Connection, size_bytes: int) -> None:
    """Count a publish that the kernel left to Python."""
    seat = connection.seat
    if seat is not None and seat.paces_publish:
        seat.publish(1, size_bytes)


def take_subscription(connection: Connection) -> None:
    """Count a new subscription. Raises QuotaExceeded when there are too many."""
    if connection.seat is not None:
        connection.seat.take(_SUBSCRIPTIONS)


def count_subscriptions(connection: Connection) -> None:
    """Count the subscriptions that the client has now."""
    seat, session = connection.seat, connection.session
    if seat is not None and session is not None:
        count = len(session.subscriptions) + len(session.specials)
        seat.keep(_SUBSCRIPTIONS, count - seat.held(_SUBSCRIPTIONS))
