"""Dead letters that are being written, by the queues that they go to, and who waits for them.

Rules: a method that looks into a queue waits for the dead letters that were being written to it at
that moment, and for no later ones. A letter that cannot be written now does not count: nobody waits
for a full disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable


class _Line:
    """The letters to one queue by number, the oldest first, and who waits up to which number."""

    __slots__ = ("numbers", "waiters")

    def __init__(self) -> None:
        self.numbers: dict[int, None] = {}
        self.waiters: deque[tuple[int, asyncio.Future[None]]] = deque()


class Coming:
    """The dead letters that are being written in one virtual host."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[str, _Line] = {}
        self._last = 0

    def begin(self, queues: Iterable[str]) -> int:
        """A letter goes to these queues. Returns its number."""
        self._last += 1
        for name in queues:
            self._lines.setdefault(name, _Line()).numbers[self._last] = None
        return self._last

    def end(self, number: int, queues: Iterable[str]) -> None:
        """The letter is in the queues, or will be written another time."""
        for name in queues:
            line = self._lines[name]
            del line.numbers[number]
            oldest = next(iter(line.numbers), self._last + 1)
            while line.waiters and line.waiters[0][0] < oldest:
                _upto, future = line.waiters.popleft()
                if not future.done():
                    future.set_result(None)
            if not line.numbers:
                del self._lines[name]

    def to(self, queue: str) -> Awaitable[None] | None:
        """Wait until every letter so far is in a queue; None: there is none to wait for."""
        line = self._lines.get(queue)
        if line is None:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        line.waiters.append((self._last, future))
        return future
