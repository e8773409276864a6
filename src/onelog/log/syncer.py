"""The threads that wait for the disk, so that the event loop never does.

Rules: a job's answer comes back on the loop that asked. `close` waits for running jobs. Group
commit is the partition's: it has at most one sync here, which serves every append before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Syncer:
    """A small pool of threads for blocking storage work."""

    __slots__ = ("_loop", "_pool")

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="onelog-sync")
        self._loop = asyncio.get_running_loop()

    def start(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """Run `work` in a thread, then `done(result, error)` on the loop."""

        def job() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it is handed to `done` on the loop
                self._loop.call_soon_threadsafe(done, None, error)
            else:
                self._loop.call_soon_threadsafe(done, result, None)

        self._pool.submit(job)

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and wait for it."""
        return await self._loop.run_in_executor(self._pool, work)

    async def close(self) -> None:
        """Wait for what runs, then end the threads."""
        await self._loop.run_in_executor(None, self._pool.shutdown)
