"""Connections that are not read because too much of what clients publish waits for another node.

Rules: nobody is refused for it: the peer's socket fills, and it waits. While a leader has no room,
no topic has a route (`Publisher.route`), so every publish to it comes by here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection

_CROWDED: Final = "crowded"
"""Why a connection is not read."""


class Crowd:
    """The connections of a hub that wait."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: WeakSet[Connection] = WeakSet()
        """Weak: a connection that is gone waits for nothing."""

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, connection: Connection) -> None:
        """Read no more of a connection until there is room."""
        self._waiting.add(connection)
        connection.pauses.pause(_CROWDED)

    def let_go(self) -> None:
        """There is room again."""
        waiting, self._waiting = self._waiting, WeakSet()
        for connection in waiting:
            connection.pauses.resume(_CROWDED)
