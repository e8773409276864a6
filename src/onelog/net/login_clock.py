"""The deadlines of connections that have not logged in yet: all have the same time, and one timer.

Rules: who came first is due first, so that only the oldest needs a timer. Most connections log in
at once: to begin and to end their deadline is an entry of a table each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LoginClock:
    """The connections of one protocol that have to log in; all methods are called on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def begin(self, connection: object, late: Callable[[], None]) -> None:
        """Its time runs from now on; `late` is called when it is over."""
        due = self._loop.time() + self._seconds
        self._due[connection] = due, late
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._look)

    def end(self, connection: object) -> None:
        """It has logged in, or is gone. Idempotent."""
        self._due.pop(connection, None)

    def close(self) -> None:
        """Nobody comes any more. Idempotent."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """The oldest of a while ago is due, unless it has logged in."""
        self._timer = None
        now = self._loop.time()
        while self._due:
            connection, (due, late) = next(iter(self._due.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._look)
                return
            del self._due[connection]
            late()
