"""SUBSCRIBE and UNSUBSCRIBE: one answer per row, in order; then what is retained.

Rules: a row that is refused does not stop the others. A persistent session's subscriptions are
kept before they are answered. Retained messages follow the answer, as each row asks (3.3.1.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import InvalidName, LimitExceeded, NotAuthorized, OnelogError
from onelog.base.topics import check_filter
from onelog.broker import Action
from onelog.protocols.mqtt.errors import reason_for
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.packets import (
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.session import Subscribed
from onelog.protocols.mqtt.topics import split_share

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection


def on_subscribe(connection: Connection, packet: Subscribe) -> None:
    """Add subscriptions."""
    reasons: list[ReasonCode] = []
    retained: list[Subscribed] = []
    identifier = next(iter(packet.properties.subscription_ids), 0)
    for row in packet.subscriptions:
        try:
            reasons.append(_subscribe(connection, row, identifier, retained))
        except OnelogError as error:
            reasons.append(reason_for(error, PacketType.SUBACK))

    def answer() -> None:
        connection.send(Suback(packet.packet_id, tuple(reasons)))
        for wanted in retained:
            connection.hub.retained.send(connection, wanted)

    connection.after_keeping(answer)


def _subscribe(
    connection: Connection, row: Subscription, identifier: int, retained: list[Subscribed]
) -> ReasonCode:
    session, hub = connection.session, connection.hub
    assert session is not None
    group, text = split_share(row.filter)
    if group is not None:
        raise InvalidName("shared subscriptions are not served yet")
    check_filter(text)
    if text.count("/") >= hub.limits.topic_levels or len(text.encode()) > hub.limits.topic_bytes:
        raise InvalidName(f"the filter {text[:60]!r} is too long or too deep")
    if not hub.broker.authorizer.allows(connection.principal, Action.SUBSCRIBE, text):
        raise NotAuthorized(f"{connection.principal.name} may not subscribe to {text}")
    known = text in session.subscriptions
    if not known and len(session.subscriptions) >= hub.limits.subscriptions_per_client:
        raise LimitExceeded(
            f"a session has at most {hub.limits.subscriptions_per_client} subscriptions"
        )
    wanted = Subscribed.of(row, identifier)
    session.subscribe(wanted)
    connection.tag_publishes()
    # Retain handling: 0 always, 1 only when new, 2 never (MQTT5 3.3.1-9 to -11).
    if row.retain_handling == 0 or (row.retain_handling == 1 and not known):
        retained.append(wanted)
    return ReasonCode(row.qos)


def on_unsubscribe(connection: Connection, packet: Unsubscribe) -> None:
    """Remove subscriptions."""
    session = connection.session
    assert session is not None
    reasons = tuple(
        ReasonCode.SUCCESS if session.unsubscribe(text) else ReasonCode.NO_SUBSCRIPTION_EXISTED
        for text in packet.filters
    )
    connection.tag_publishes()
    connection.after_keeping(lambda: connection.send(Unsuback(packet.packet_id, reasons)))
