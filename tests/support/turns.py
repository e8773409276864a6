"""Somebody else on the loop: how often it is his turn, and how long he waits for it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

DEADLINE_S = 30.0


async def passes_until(condition: Callable[[], object]) -> None:
    """Passes of the loop until something holds."""
    ends_at = time.monotonic() + DEADLINE_S
    for _ in iter(lambda: bool(condition()), True):
        assert time.monotonic() < ends_at, "it did not come to hold"
        await asyncio.sleep(0)


class Others:
    """Counts turns; `longest_s` is what the loop's thread worked between two of them.

    That is time of the processor: other programs on the machine and other threads of this one do
    not count. The garbage of the tests before does not count either: as in `onelog serve`, what
    was there before is not looked through. Afterwards it is; when the test is over, what is left is
    frozen again (`tests/conftest.py`).
    """

    thawed = False

    def __init__(self) -> None:
        self.turns = 0
        self.longest_s = 0.0

    async def __aenter__(self) -> Others:
        gc.freeze()
        self._since = time.thread_time()
        self._task = asyncio.create_task(self._count())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.sleep(0)
        self._task.cancel()
        gc.unfreeze()
        Others.thawed = True

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - self._since)
            self._since = now
            self.turns += 1
