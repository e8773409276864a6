"""Work that threads do on one partition's log, so that a truncation can wait for it.

Rules: a job that finds the log stopped stops the partition, whatever the caller does. While one job
has the log alone (`held`), a caller that would start another job refuses or waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from onelog.base.errors import Conflict, OnelogError, PartitionStopped
from onelog.base.futures import settle
from onelog.log.pool import Pool

_T = TypeVar("_T")


class Jobs:
    """The work on one log that may block."""

    __slots__ = ("_place", "_stop", "following", "held", "running")

    def __init__(self, place: str, stop: Callable[[OnelogError], None]) -> None:
        self._place = place
        self._stop = stop
        self.running = 0
        """Jobs that have begun and are not over."""
        self.following: Callable[[], None] | None = None
        """Starts the job that waits for the log alone, when the last running job ends."""
        self.held: asyncio.Future[None] | None = None
        """Done when the job that has the log alone is over; None: no job has it alone."""

    def start(
        self,
        pool: Pool,
        work: Callable[[], _T],
        done: Callable[[_T | None, BaseException | None], None],
    ) -> None:
        """Run `work` in a thread of `pool`, then `done(result, error)` on the loop."""
        self.running += 1
        pool.start(work, self._ended(done))

    def try_start(
        self,
        begin: Callable[[Callable[[_T | None, BaseException | None], None]], bool],
        done: Callable[[_T | None, BaseException | None], None],
    ) -> bool:
        """Have `begin` start work that calls its argument on the loop when it is over; False:
        nothing was started."""
        if not begin(self._ended(done)):
            return False
        self.running += 1
        return True

    def _ended(
        self, done: Callable[[_T | None, BaseException | None], None]
    ) -> Callable[[_T | None, BaseException | None], None]:
        def ended(result: _T | None, error: BaseException | None) -> None:
            self.running -= 1
            try:
                if isinstance(error, PartitionStopped):
                    self._stop(error)
                done(result, error)
            finally:
                self.go_on()

        return ended

    def go_on(self) -> None:
        """A job is over: if it was the last one, start the job that waits for the log alone."""
        if self.following is not None and not self.running:
            begin, self.following = self.following, None
            begin()

    async def run(self, pool: Pool, work: Callable[[], object]) -> None:
        """Run `work` in a thread of `pool` and wait for it."""
        self.refuse_if_held()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.start(pool, work, lambda _result, error: settle(future, error))
        await future

    async def run_alone(
        self,
        pool: Pool,
        work: Callable[[], _T],
        done: Callable[[_T | None, BaseException | None], None],
    ) -> None:
        """As `start`, once no other job runs. No other job begins before `done` has returned.

        The caller may be cancelled; the work is done nevertheless.
        """
        self.refuse_if_held()
        held = self.held = asyncio.get_running_loop().create_future()

        def ended(result: _T | None, error: BaseException | None) -> None:
            self.held = None
            try:
                done(result, error)
            finally:
                settle(held, error)

        if self.running:
            self.following = lambda: self.start(pool, work, ended)
        else:
            self.start(pool, work, ended)
        await asyncio.shield(held)

    def refuse_if_held(self) -> None:
        """Raise Conflict while a job has the log alone."""
        if self.held is not None:
            raise Conflict(f"{self._place} is being truncated; try again")
