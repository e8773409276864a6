"""The connections of one protocol: which there are, what they count, and whose they are.

Rules: when a user is changed or removed, this module finds the user's connections, for every
protocol alike. It calls `user_changed` of each one whose proof counts no more, whichever of them
raises; the connection then ends in the way of its protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

from onelog.observe import Sample, Troubles

USER_CHANGED: Final = "user-listener"
"""Incidents: a connection raised when its user was changed."""


class Proven(Protocol):
    """Who a peer has proved to be."""

    @property
    def name(self) -> str:
        """The user's name."""
        ...


class UserConnection(Protocol):
    """A connection that belongs to a user once its peer has logged in."""

    @property
    def identity(self) -> Proven | None:
        """Who the peer is; None before the login."""
        ...

    def user_changed(self) -> None:
        """The user was changed or removed, and the peer would not be let in as it is: end."""
        ...


C = TypeVar("C", bound=UserConnection)


class Connections(set[C]):
    """All connections of one protocol on this node."""

    __slots__ = ("_is_current", "_troubles")

    def __init__(self, is_current: Callable[[Any], bool], troubles: Troubles) -> None:
        super().__init__()
        self._is_current = is_current
        self._troubles = troubles

    def of_user(self, name: str) -> list[C]:
        """The connections of one user."""
        return [row for row in self if row.identity is not None and row.identity.name == name]

    def user_changed(self, name: str) -> None:
        """End what the user could not open again by the same proof."""
        ending = [row for row in self.of_user(name) if not self._is_current(row.identity)]
        self._troubles.tell(USER_CHANGED, [row.user_changed for row in ending])


class ConnectionCounters:
    """Plain numbers that every protocol has, read at scrape time."""

    def __init__(self) -> None:
        self.connects = 0
        self.disconnects = 0
        self.sent_bytes = 0


def connection_samples(
    protocol: str, *, now: int, ended: int, received_bytes: int, sent_bytes: int
) -> Iterator[Sample]:
    """The counters of connections, which every protocol shows under the same names."""
    yield Sample(f"onelog_{protocol}_connections", "Connections now.", "gauge", now)
    totals = (
        ("disconnects", "Connections that ended.", ended),
        ("received_bytes", "Bytes received.", received_bytes),
        ("sent_bytes", "Bytes sent.", sent_bytes),
    )
    for name, about, value in totals:
        yield Sample(f"onelog_{protocol}_{name}_total", about, "counter", value)
