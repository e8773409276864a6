"""A subscription as a session holds and keeps it."""

from __future__ import annotations

import msgspec

from onelog.broker import Position
from onelog.protocols.mqtt.packets import Subscription


class Subscribed(msgspec.Struct, array_like=True):
    """One subscription of a session."""

    filter: str
    """As the client wrote it; for an exclusive one, the filter alone."""
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    since: list[Position] = []
    """Where it begins, if the session was reading older records when it was made."""
    exclusive: bool = False

    @classmethod
    def of(cls, row: Subscription, identifier: int) -> Subscribed:
        """The subscription that a SUBSCRIBE asks for."""
        return cls(row.filter, row.qos, row.no_local, row.retain_as_published, identifier)
