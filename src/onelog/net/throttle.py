"""The throttle of one connection: for how long it is not read because it did too much.

Rules: this is the one place where a quota holds a connection back, for every protocol. Only the
reading of this connection pauses; nobody else waits. A protocol may have less patience than the
wait is long: then `patience_spent` is called, and it decides. A connection that is gone, or
whose quota changed, is held no longer.
"""

from __future__ import annotations

import asyncio
from typing import Final

from onelog.net.deadline import Deadline
from onelog.net.pauses import Pauses

QUOTA: Final = "it is over its quota"


class ThrottleCounters:
    """Plain numbers of one protocol, read at scrape time."""

    __slots__ = ("holds", "seconds")

    def __init__(self) -> None:
        self.holds = 0
        """How often a connection was held back."""
        self.seconds = 0.0
        """For how long, in all; a hold counts when it is over."""


class Throttled:
    """A connection that can be held back. Each method is for protocols that do something then."""

    __slots__ = ()

    pauses: Pauses
    """Why it is not read."""

    def held_back(self, seconds: float) -> None:
        """It is not read for so long; called again when that gets longer."""

    def let_on(self) -> None:
        """It is read again."""

    def patience_spent(self) -> None:
        """It would be held back for longer than its protocol waits."""

    def quotas_changed(self) -> None:
        """Other quotas count for it from now on."""


class Throttle:
    """Holds one connection back."""

    __slots__ = ("_counters", "_deadline", "_loop", "_owner", "_patience_s", "_since", "_until")

    def __init__(
        self, owner: Throttled, counters: ThrottleCounters, patience_s: float = float("inf")
    ) -> None:
        self._owner: Throttled | None = owner
        self._counters = counters
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._deadline = Deadline(self._loop)
        self._since = self._until = 0.0

    @property
    def is_held(self) -> bool:
        """Whether the connection is held back now."""
        return self._until > 0

    def hold(self, seconds: float) -> None:
        """Read nothing for so long, from now; a longer hold counts."""
        now, owner = self._loop.time(), self._owner
        if owner is None or seconds <= 0 or now + seconds <= self._until:
            return
        began = not self.is_held
        self._until = now + seconds
        if began:
            self._since = now
            self._counters.holds += 1
            owner.pauses.pause(QUOTA)
        ends_at = min(self._until, self._since + self._patience_s)
        self._deadline.start(max(0.0, ends_at - now), self._over)
        owner.held_back(seconds)

    def _over(self) -> None:
        owner, spent = self._owner, self._until > self._since + self._patience_s
        if spent and owner is not None:
            owner.patience_spent()
        self.free()

    def free(self) -> None:
        """Hold the connection no longer. Idempotent."""
        owner = self._owner
        if self._stop() and owner is not None:
            owner.pauses.resume(QUOTA)
            owner.let_on()

    def _stop(self) -> bool:
        """Stop the clock. Returns whether the connection was held back."""
        if not self.is_held:
            return False
        self._counters.seconds += self._loop.time() - self._since
        self._deadline.stop()
        self._since = self._until = 0.0
        return True

    def let_go(self) -> None:
        """The connection is gone: drop all references, so that nothing waits for the cycle
        collector."""
        self._stop()
        self._owner = None
