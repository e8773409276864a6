"""The one timer of a connection: login, idle, keep-alive and close deadlines, one after the other.

Rules: a deadline that starts takes the place of the one before it. A deadline that has passed or
was stopped holds no reference, so that a connection that ended does not wait for the cycle
collector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Deadline:
    """Calls a function later, unless it is stopped."""

    __slots__ = ("_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Whether a call is pending."""
        return self._handle is not None

    def start(self, seconds: float, act: Callable[..., object], *said: Any) -> None:
        """Call `act` after so many seconds, in place of any earlier deadline."""
        self.stop()
        self._handle = self._loop.call_later(seconds, self._pass, act, said)

    def stop(self) -> None:
        """Cancel the pending call. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _pass(self, act: Callable[..., object], said: tuple[Any, ...]) -> None:
        self._handle = None  # before the call, which may start it again
        act(*said)
