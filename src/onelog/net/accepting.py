"""How much of a pass of the loop goes to new connections: those that stand come first.

Rules: all listeners of a loop share `PASS_S` of each pass. A listener that found none left is
served first in the next pass, so a storm at one listener keeps nobody out of another. Connections
that are not accepted yet wait in the system's backlog. At least one is accepted in a pass.
"""

from __future__ import annotations

import asyncio
import weakref
from time import perf_counter
from typing import Final

PASS_S: Final = 0.0001
"""Time for new connections in one pass; one more is begun while some of it is left. To accept one
takes about as long as this."""


class AcceptTurns:
    """The account of one loop."""

    _of_loops: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AcceptTurns]] = (
        weakref.WeakKeyDictionary()
    )

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> AcceptTurns:
        """The account of a loop."""
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls()
        return found

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._is_counting = False
        self._first: set[object] = set()
        """Listeners that found no time left in the pass before."""
        self._turned_away: set[object] = set()
        self._served: set[object] = set()
        """Of this pass."""
        self._began_s = 0.0

    def begin(self, listener: object, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a listener may accept a connection now; call `end` when that is done."""
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._next_pass)
        if self._spent_s >= PASS_S or (self._first and listener not in self._first):
            if listener not in self._served:
                self._turned_away.add(listener)
            return False
        self._served.add(listener)
        self._began_s = perf_counter()
        return True

    def end(self) -> None:
        """The connection is accepted, or there was none."""
        self._spent_s += perf_counter() - self._began_s

    def _next_pass(self) -> None:
        self._is_counting = False
        self._spent_s = 0.0
        self._first, self._turned_away = self._turned_away, set()
        self._served.clear()
