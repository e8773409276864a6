"""The hooks of the door: who may do what, and how much of it.

Rules: the door asks before it acts, on publish, subscribe and delivery. A hook answers at once
from memory; whatever needs a network or a hash was fetched before.
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
"""The broker itself, and the program that runs it in its own process. Whoever acts as it says so:
no call takes it for granted, else a peer's call that forgets its principal would be this one."""
NOBODY = Principal("", "none")
"""A peer that has not said yet who it is."""


class Action(StrEnum):
    """What is asked for."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DELIVER = "deliver"
    MANAGE = "manage"


class Authorizer(Protocol):
    """Decides. What it answers may be remembered until it says that its answers changed."""

    checks_delivery: bool
    """Whether it decides on each delivery, too; False: who may subscribe may have all of it."""
    on_change: list[Callable[[], None]]
    """What it calls when its answers may have changed."""

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        """Whether the principal may do this to a topic, filter, stream or cursor."""
        ...


class AllowAll:
    """Everybody may do everything: what a broker on loopback starts with."""

    checks_delivery = False

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        """Yes."""
        del principal, action, resource
        return True


class Quotas(Protocol):
    """Counts.

    What a connection publishes in one read may be counted in one call when it was taken already. A
    share that is too small for it is then taken in parts, now and later, also in parts of no whole
    message (`meter.py`).
    """

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        """Take from the principal's share; raises QuotaExceeded when it is used up."""
        ...


class Unlimited:
    """No quota."""

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        """There is always enough."""
        del principal, messages, size_bytes
