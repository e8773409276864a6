"""Watches running syncs: one that does not come back raises an alarm.

Rules: a sync that hangs harms no data, but every publisher waits for it, and an operator cannot see
why. After `SYNC_DEADLINE_S` it is a standing trouble until it returns. There is one timer for all
syncs, and none while no sync runs.
"""

from __future__ import annotations

import asyncio
from typing import Final

from onelog.base.clock import Clock
from onelog.observe.troubles import Troubles

SYNC_DEADLINE_S: Final = 10.0
SYNC_HANGS: Final = "sync-hangs"


class SyncWatch:
    """The syncs that run now, by partition."""

    __slots__ = ("_clock", "_late", "_running", "_timer", "_troubles", "deadline_s")

    def __init__(self, troubles: Troubles, clock: Clock) -> None:
        self.deadline_s = SYNC_DEADLINE_S
        self._troubles = troubles
        self._clock = clock
        self._running: dict[str, float] = {}
        self._late: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, place: str) -> None:
        """Note that a sync began."""
        self._running[place] = self._clock.monotonic()
        if self._timer is None:
            self._arm(self.deadline_s)

    def end(self, place: str) -> None:
        """Note that a sync ended, with or without an error."""
        self._running.pop(place, None)
        if place in self._late:
            self._late.discard(place)
            self._troubles.clear(SYNC_HANGS, place)

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now, oldest = self._clock.monotonic(), None
        for place, began in self._running.items():
            if place in self._late:
                continue
            if now - began >= self.deadline_s:
                self._late.add(place)
                error = f"the disk has not answered a sync for {now - began:.0f} s"
                self._troubles.stand(SYNC_HANGS, place, error, blocks=True)
            elif oldest is None or began < oldest:
                oldest = began
        if oldest is not None:
            self._arm(max(0.01, oldest + self.deadline_s - now))
        elif self._running:
            self._arm(self.deadline_s)
