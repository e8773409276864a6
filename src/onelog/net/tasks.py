"""Tasks that end with their owner: a connection, or all of a protocol.

Rules: every task that is started is held here until it is done. The caller that starts a task
passes a handler for its failure; the handler notes a fault of ours in `Troubles`. The handler is
also called for a failure that comes up while the task is cancelled. Only a task under way holds the
owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from types import coroutine
from typing import Any

OnFailed = Callable[[BaseException], None]


class OwnedTasks:
    """The tasks of one owner."""

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

    def run_at_once(
        self, work: Coroutine[Any, Any, Any], on_failed: OnFailed
    ) -> asyncio.Task[Any] | None:
        """Run a coroutine until it has to wait; only then is it a task. None: it is done.

        Up to there it has no task of its own: it must not ask for the current one, as
        `asyncio.timeout` does.
        """
        try:
            waits_for = work.send(None)
        except StopIteration:
            return None
        except BaseException as error:  # noqa: BLE001 - as that of a task
            on_failed(error)
            return None
        return self.run(_go_on(work, waits_for), on_failed)

    def cancel(self) -> None:
        """The owner ends: so does everything that is under way."""
        for task in self._tasks:
            task.cancel()

    def _ran(self, on_failed: OnFailed, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            on_failed(error)


async def _go_on(work: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
    return await _rest(work, waits_for)


@coroutine
def _rest(work: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """A coroutine that has begun, as what follows: it waits for `waits_for` first."""
    while True:
        try:
            said = yield waits_for
        except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine
            step = partial(work.throw, error)
        else:
            step = partial(work.send, said)
        try:
            waits_for = step()
        except StopIteration as done:
            return done.value
