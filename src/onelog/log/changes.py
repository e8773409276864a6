"""Changes of streams: one at a time, each made whole, whether a command or the store asks for it.

Rules: a change that began is carried through, even when its caller leaves; otherwise the store
could know a stream that is not open here. A change that the store reports waits for the command
under way, which may have written that change itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from onelog.observe.troubles import Troubles

NOT_ADOPTED: Final = "stream-not-adopted"
"""Incidents: a row of a stream could not take effect here."""

_T = TypeVar("_T")


class Changes:
    """The changes of a catalog. `adopt` lets a stream be what the store says."""

    def __init__(self, adopt: Callable[[str], Awaitable[None]], troubles: Troubles) -> None:
        self.lock = asyncio.Lock()
        self._adopt = adopt
        self._troubles = troubles
        self._is_open = False
        self._told: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """From now on, adopt what the store reports."""
        self._is_open = True

    async def close(self) -> None:
        """Wait until every change is made."""
        self._is_open = False
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def carry_through(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Make a change whole."""
        return await asyncio.shield(self._start(change))

    def tell(self, names: set[str]) -> None:
        """The store has new rows for these streams."""
        is_waiting = bool(self._told)
        if self._is_open:
            self._told |= names
        if self._told and not is_waiting:
            self._start(self._adopt_all())

    def _start(self, change: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has the error, or has left

    async def _adopt_all(self) -> None:
        async with self.lock:
            names, self._told = sorted(self._told), set()
            for name in names:
                try:
                    await self._adopt(name)
                except Exception as error:  # noqa: BLE001 - told; the others are still adopted
                    self._troubles.note(NOT_ADOPTED, name, error)
