"""A few threads for work that blocks, so that the event loop never does.

Rules: the answer of a job comes back on the loop that asked. Answers that are ready together need
one wake-up of the loop. `close` waits for all jobs. An error of a callback goes to `Troubles`, and
the other callbacks are called. A thread that waits for its next job holds nothing of the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from onelog.observe.troubles import Troubles

ANSWER: Final = "disk-answer"
"""Incidents: the callback of a job raised."""
T = TypeVar("T")

Done = Callable[[Any, BaseException | None], None]


class Pool:
    """Threads that run jobs in the order in which they come."""

    __slots__ = ("_answers", "_jobs", "_lock", "_loop", "_threads", "_troubles")

    def __init__(self, name: str, threads: int, troubles: Troubles) -> None:
        self._loop = asyncio.get_running_loop()
        self._troubles = troubles
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Done] | None] = SimpleQueue()
        self._answers: list[tuple[Done, Any, BaseException | None]] = []
        self._lock = Lock()
        self._threads = [
            Thread(target=self._work, name=f"onelog-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            del job
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it is handed to `done` on the loop
                failure = error
            with self._lock:
                is_first = not self._answers
                self._answers.append((done, result, failure))
            del work, done, result, failure
            if is_first:  # one wake-up of the loop delivers all answers
                try:
                    self._loop.call_soon_threadsafe(self._tell)
                except RuntimeError:
                    return  # the loop is closed: nobody is waiting

    def _tell(self) -> None:
        with self._lock:
            answers, self._answers = self._answers, []
        for done, result, error in answers:
            self._call(done, result, error)

    def _call(self, done: Callable[..., None], *answer: Any) -> None:
        try:
            done(*answer)
        except Exception as problem:  # noqa: BLE001 - the other callbacks are called
            self.raised(done, problem)

    def raised(self, done: Callable[..., None], problem: Exception) -> None:
        """The callback of a job raised: report it."""
        place = getattr(done, "__qualname__", repr(done))
        self._troubles.note(ANSWER, place, problem)

    def start(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run `work` in a thread, then `done(result, error)` on the loop."""
        self._jobs.put((work, done))

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and wait for it."""
        return await answer_of(self.start, work)

    def refuse_waiting(self, error: BaseException) -> None:
        """Refuse jobs that have not begun; their callers get the error."""
        with contextlib.suppress(Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job[1](None, error)

    async def close(self) -> None:
        """Wait for all jobs, then end the threads."""
        for _thread in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)


async def answer_of(start: Callable[[Callable[[], T], Done], None], work: Callable[[], T]) -> T:
    """Give `work` to `start`, and wait for its result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    start(work, done)
    return await future
