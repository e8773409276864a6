"""Logins wait for their turn: a password check takes tens of milliseconds of a processor.

Rules: few checks of the API are under way at a time, so that clients of the protocols log in beside
them. The others wait, first come first served per address, and the addresses take turns: one that
sends a thousand logins keeps nobody else out. `WAITING_MAX` logins wait at most, one more is
refused with 429 and the seconds to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from onelog.base.errors import QuotaExceeded

AT_ONCE: Final = 4
"""Checks under way."""
WAITING_MAX: Final = 2000
"""Logins that wait, of all addresses together."""


class LoginQueue:
    """The logins of one process."""

    def __init__(self) -> None:
        self._running = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By address; the address whose turn is next comes first."""
        self._count = 0

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait until a check may begin. Raises QuotaExceeded when too many wait."""
        if self._running >= AT_ONCE:
            await self._wait(address)
        else:
            self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._wake()

    async def _wait(self, address: str) -> None:
        if self._count >= WAITING_MAX:
            raise QuotaExceeded(f"{self._count} logins wait already: try again in a few seconds")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(future)
        self._count += 1
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # its turn had come
                self._running -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        """Give a free place to the next one."""
        while self._waiting and self._running < AT_ONCE:
            address = next(iter(self._waiting))
            line = self._waiting.pop(address)
            future = line.popleft()
            self._count -= 1
            if line:
                self._waiting[address] = line  # behind the other addresses
            if not future.done():
                self._running += 1
                future.set_result(None)
