"""The hooks of the door: who may do what, and how much of it.

Rules: the door asks before it acts, on publish, subscribe and delivery. A hook answers at once from
memory. Anything that needs a network or a hash was computed before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onelog.security.principals import LOCAL, NOBODY, Action, Kind, Principal

__all__ = [
    "LOCAL",
    "NOBODY",
    "Action",
    "AllowAll",
    "Authorizer",
    "Kind",
    "Principal",
    "Quotas",
    "Unlimited",
]


class Authorizer(Protocol):
    """Decides. Its answers may be cached until it reports a change."""

    on_change: list[Callable[[], None]]
    """Called when its answers may have changed."""

    @property
    def checks_delivery(self) -> bool:
        """Whether it decides on each delivery, too; False: a subscriber may have every message.

        May change whenever its answers do.
        """
        ...

    @property
    def tells_clients_apart(self) -> bool:
        """Whether its answers depend on client ids; may change whenever its answers do."""
        ...

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        """Whether the principal may do this to a topic, filter, cursor or the server."""
        ...

    def denies(self, principal: Principal, action: Action, resource: str) -> bool:
        """Whether a rule forbids this to the principal, for a topic or for a part of a filter.

        A principal that no rule allows it, and none forbids it, may get it from one who may.
        """
        ...


class AllowAll:
    """Everybody may do everything."""

    checks_delivery = False
    tells_clients_apart = False

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        """Yes."""
        del principal, action, resource, kind
        return True

    def denies(self, principal: Principal, action: Action, resource: str) -> bool:
        """No."""
        del principal, action, resource
        return False


class Quotas(Protocol):
    """Counts what principals publish.

    The messages that a connection published in one read may be counted in one call, after they were
    accepted. If the share is too small for that, the count is taken in parts, now and later, which
    need not be whole messages (`meter.py`).
    """

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        """Take from the principal's share. Raises QuotaExceeded when it is used up."""
        ...


class Unlimited:
    """No quota."""

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        """There is always enough."""
        del principal, messages, size_bytes
