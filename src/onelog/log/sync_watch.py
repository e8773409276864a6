"""Watches running syncs: one that does not come back raises an alarm.

Rules: a sync that hangs harms no data, but every publisher waits for it, and an operator cannot see
why. After `SYNC_DEADLINE_S` it is a standing trouble until it returns. There is one timer for all
syncs, and none while no sync runs. Syncs that the kernel begins itself are noted in the same
places (`kernel/_native/ends.pyx`).
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

    __slots__ = ("_troubles", "clock", "deadline_s", "late", "running", "timer")

    def __init__(self, troubles: Troubles, clock: Clock) -> None:
        self.deadline_s = SYNC_DEADLINE_S
        self._troubles = troubles
        self.clock = clock
        self.running: dict[str, float] = {}
        """When each sync that runs began."""
        self.late: set[str] = set()
        """The syncs for which an alarm was raised."""
        self.timer: asyncio.TimerHandle | None = None

    def begin(self, place: str) -> None:
        """Note that a sync began."""
        self.running[place] = self.clock.monotonic()
        if self.timer is None:
            self._arm(self.deadline_s)

    def end(self, place: str) -> None:
        """Note that a sync ended, with or without an error."""
        self.running.pop(place, None)
        if place in self.late:
            self.late.discard(place)
            self._troubles.clear(SYNC_HANGS, place)

    def _arm(self, delay_s: float) -> None:
        self.timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self.timer = None
        now, oldest = self.clock.monotonic(), None
        for place, began in self.running.items():
            if place in self.late:
                continue
            if now - began >= self.deadline_s:
                self.late.add(place)
                error = f"the disk has not answered a sync for {now - began:.0f} s"
                self._troubles.stand(SYNC_HANGS, place, error, blocks=True)
            elif oldest is None or began < oldest:
                oldest = began
        if oldest is not None:
            self._arm(max(0.01, oldest + self.deadline_s - now))
        elif self.running:
            self._arm(self.deadline_s)
