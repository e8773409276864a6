"""How late the event loop is: what everything that waits for it waits too long.

Rules: one timer, every `EVERY_S`, notes how much later than due it was called; nothing else is
measured, so it costs nothing that can be seen. The loop's timers are whole milliseconds: a lag of a
millisecond means that the loop is idle. The window is the last minute.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from time import perf_counter
from typing import Final

from onelog.observe.metrics import Sample

EVERY_S: Final = 0.1
WINDOW: Final = 600
"""Calls that are remembered: a minute of them."""


class LoopLag:
    """The lag of one event loop."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=WINDOW)
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the loop that runs, for the length of a block."""
        self._wait()
        try:
            yield
        finally:
            assert self._timer is not None
            self._timer.cancel()

    def _wait(self) -> None:
        self._due = perf_counter() + EVERY_S
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._note)

    def _note(self) -> None:
        self._late_s.append(max(0.0, perf_counter() - self._due))
        self._wait()

    @property
    def p99_s(self) -> float:
        """The lag that one call in a hundred exceeded."""
        rows = sorted(self._late_s)
        return rows[len(rows) * 99 // 100] if rows else 0.0

    @property
    def max_s(self) -> float:
        """The longest lag."""
        return max(self._late_s, default=0.0)

    def samples(self) -> Iterator[Sample]:
        """The lag of the last minute."""
        about = "How late the event loop was in the last minute, in 99 of 100 looks at most."
        yield Sample("onelog_loop_lag_p99_seconds", about, "gauge", self.p99_s)
        about = "How late the event loop was in the last minute, at most."
        yield Sample("onelog_loop_lag_max_seconds", about, "gauge", self.max_s)
