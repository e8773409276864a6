"""The group's own timer: what a rebalance waits for, until when, and when to check next."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from onelog.base.clock import Clock


class Phase(Enum):
    """What the group waits for."""

    IDLE = "idle"
    GATHERING = "gathering"
    """The first members of an empty group: others that start at the same time."""
    JOINING = "joining"
    """Members join again; those that have not by the deadline are removed."""
    SYNCING = "syncing"
    """Members ask for their assignment; those that have not by the deadline are removed."""


class Countdown:
    """One phase at a time, with its deadline, beside the deadlines of members."""

    __slots__ = ("_clock", "_grew", "_left_ms", "_step_ms", "deadline", "phase", "wake_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.phase = Phase.IDLE
        self.deadline = 0.0
        self.wake_at: float | None = None
        """When a deadline is over, or a little before: never later."""
        self._step_ms = 0
        self._left_ms = 0
        self._grew = False

    def start(self, phase: Phase, timeout_ms: int) -> None:
        """Begin a phase; the earlier one is over."""
        self.phase = phase
        self.deadline = self.after(timeout_ms)

    def stop(self) -> None:
        """Wait for nothing."""
        self.phase = Phase.IDLE

    def after(self, timeout_ms: int) -> float:
        """A deadline; `wake_at` is not later."""
        deadline = self._clock.monotonic() + timeout_ms / 1000
        if self.wake_at is None or deadline < self.wake_at:
            self.wake_at = deadline
        return deadline

    def look_next(self, deadlines: Iterable[float]) -> None:
        """Expired deadlines were handled: these are left, and that of the phase."""
        own = () if self.phase is Phase.IDLE else (self.deadline,)
        self.wake_at = min((*deadlines, *own), default=None)

    def gather(self, step_ms: int, longest_ms: int) -> None:
        """Wait for first members: a step, and another as long as members come, up to a bound."""
        self.start(Phase.GATHERING, step_ms)
        self._step_ms = step_ms
        self._left_ms = max(longest_ms - step_ms, 0)
        self._grew = False

    def grew(self) -> None:
        """A member came."""
        self._grew = True

    def gathers_on(self) -> bool:
        """A step is over. Returns whether another one begins."""
        step_ms = min(self._step_ms, self._left_ms)
        if not self._grew or not step_ms:
            return False
        self._grew = False
        self._left_ms -= step_ms
        self.start(Phase.GATHERING, step_ms)
        return True
