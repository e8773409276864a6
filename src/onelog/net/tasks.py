"""Tasks that end with their owner: a connection, or all of a protocol.

Rules: every task that is started is held here until it is done. Whoever starts one says who hears
of its failure; that one notes a fault of ours in `Troubles`. A failure is told also when it comes
up while its task is cancelled. Nothing but a task under way holds the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

OnFailed = Callable[[BaseException], None]


class OwnedTasks:
    """What one owner has under way."""

    __slots__ = ("_loop", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(self._tasks)

    def run(self, work: Coroutine[Any, Any, Any], on_failed: OnFailed) -> asyncio.Task[Any]:
        """Start a task, which may fail."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ran, on_failed))
        return task

    def cancel(self) -> None:
        """The owner ends: so does everything that is under way."""
        for task in self._tasks:
            task.cancel()

    def _ran(self, on_failed: OnFailed, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            on_failed(error)
