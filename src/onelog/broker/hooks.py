"""The hooks of the door: who may do what, and how much of it.

Rules: the door asks before it acts, on publish, subscribe and delivery. A hook answers at once from
memory. Anything that needs a network or a hash was computed before.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """Who asks, and through which protocol."""

    name: str
    protocol: str = "embedded"


LOCAL = Principal("local")
"""The broker itself, and the program that runs it in its own process. Code that acts as the broker
passes it by name. No call has it as a default: a call for a peer that forgot its principal would
act as the broker."""
NOBODY = Principal("", "none")
"""A peer that has not logged in yet."""


class Action(StrEnum):
    """What is asked for."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DELIVER = "deliver"
    MANAGE = "manage"


class Authorizer(Protocol):
    """Decides. Its answers may be cached until it reports a change."""

    checks_delivery: bool
    """Whether it also decides on each delivery; False: a subscriber may have every message."""
    on_change: list[Callable[[], None]]
    """Called when its answers may have changed."""

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        """Whether the principal may do this to a topic, filter, stream or cursor."""
        ...


class AllowAll:
    """Everybody may do everything: the default of a broker on loopback."""

    checks_delivery = False

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        """Yes."""
        del principal, action, resource
        return True


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
