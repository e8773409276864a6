"""The subscriptions of a session as `~sessions` keeps them, and how they get there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onelog.protocols.mqtt.subscribed import Subscribed

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection


class KeptBody(msgspec.Struct, array_like=True):
    """The part of a session that `~sessions` keeps, beside its cursor."""

    subscriptions: list[Subscribed] = []


async def keep_subscriptions(connection: Connection) -> None:
    """Make the session's subscriptions durable, if they are kept."""
    session, door = connection.session, connection.door
    if session is None or door is None or not door.is_kept:
        return
    rows = [*session.subscriptions.values(), *(row.row for row in session.specials.values())]
    body = msgspec.msgpack.encode(KeptBody(rows))
    broker = connection.hub.broker
    await broker.sessions.update(door, msgspec.structs.replace(door.record, body=body))
    await broker.cursors.save(session)
