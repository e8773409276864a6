"""Clients that went a moment ago: their rows say so only if they stay away.

Rules: each client has one place here, in the order in which they went, and one timer serves all.
When it is time, the rows of many are written together, so many at once that others have a turn.
What is left is written at the end, so that the time that the broker is away counts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from itertools import islice, takewhile
from typing import Final

LATE_S: Final = 60.0
"""How long a client is away before its row says so."""
AT_ONCE: Final = 8
"""Rows that are written together while others want their turn."""
AT_END: Final = 2000
"""The same when nobody does any more."""


class LateRows:
    """The clients whose rows are written later by `write`, which raises nothing."""

    __slots__ = ("_due", "_task", "_timer", "_write")

    def __init__(self, write: Callable[[str], Awaitable[None]]) -> None:
        self._write = write
        self._due: dict[str, float] = {}
        """When it is time, by the loop's clock; the earliest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, client_id: str) -> None:
        """A client went, and its row does not say so."""
        self._due.pop(client_id, None)
        self._due[client_id] = asyncio.get_running_loop().time() + LATE_S
        self._look()

    def forget(self, client_id: str) -> None:
        """It is back, or its row says all."""
        self._due.pop(client_id, None)

    def _look(self) -> None:
        if self._due and self._timer is None and self._task is None:
            due_s = next(iter(self._due.values()))
            self._timer = asyncio.get_running_loop().call_at(due_s, self._begin)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._task = loop.create_task(self._run(loop.time()))

    async def _run(self, upto_s: float) -> None:
        try:
            await self._write_until(upto_s, AT_ONCE)
        finally:
            self._task = None
        self._look()

    async def _write_until(self, upto_s: float, at_once: int) -> None:
        while clients := [
            client_id
            for client_id, _due_s in islice(
                takewhile(lambda row: row[1] <= upto_s, self._due.items()), at_once
            )
        ]:
            for client_id in clients:
                del self._due[client_id]
            await asyncio.gather(*map(self._write, clients))

    async def close(self) -> None:
        """Write all of them now."""
        while self._task is not None:
            await asyncio.wait((self._task,))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._write_until(math.inf, AT_END)
