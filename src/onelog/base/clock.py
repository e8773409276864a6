"""Time: the wall clock for stamps, the monotonic clock for deadlines, and a clock for tests.

Rules: deadlines are monotonic, so a wall clock that jumps never fires or delays one. Code that
needs time takes a `Clock`; only this module calls `time`.
"""

from __future__ import annotations

import time
from typing import Protocol

from onelog.base.ids import TimestampMs


class Clock(Protocol):
    """The two clocks that all code uses."""

    def now_ms(self) -> TimestampMs:
        """Wall clock, milliseconds since the Unix epoch. May jump, also backwards."""
        ...

    def now_ns(self) -> int:
        """The same wall clock in nanoseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, comparable with `loop.time()`."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> TimestampMs:
        """Wall clock, milliseconds since the Unix epoch."""
        return TimestampMs(time.time_ns() // 1_000_000)

    def now_ns(self) -> int:
        """The same in nanoseconds."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        return time.monotonic()


class ManualClock:
    """A clock that a test moves by hand; wall and monotonic time move apart when told to."""

    __slots__ = ("_monotonic", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> TimestampMs:
        """The wall time that was set."""
        return TimestampMs(self._now_ms)

    def now_ns(self) -> int:
        """The same in nanoseconds."""
        return self._now_ms * 1_000_000

    def monotonic(self) -> float:
        """The monotonic time that was advanced to."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        assert seconds >= 0
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)

    def set_wall_ms(self, now_ms: int) -> None:
        """Jump the wall clock, also backwards, as NTP or a person does."""
        self._now_ms = now_ms
