"""An event of asyncio that is made when somebody waits for it.

Rule: most connections and sessions have events that nobody ever waits for. One of asyncio has a
queue of waiters and more; one of these takes two fields.
"""

from __future__ import annotations

import asyncio


class LateEvent:
    """As `asyncio.Event`."""

    __slots__ = ("_event", "_is_set")

    def __init__(self, is_set: bool = False) -> None:
        self._is_set = is_set
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """It happened: whoever waits goes on."""
        self._is_set = True
        if self._event is not None:
            self._event.set()
            self._event = None

    def clear(self) -> None:
        """It is to happen again."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it happens."""
        if self._is_set:
            return
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()
