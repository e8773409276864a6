"""Pulling: fetch records that are there, or wait for them by wake-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from onelog.cursors.cursor import Reading
from onelog.cursors.wait import QueueWait

if TYPE_CHECKING:
    from onelog.cursors.delivery import Acquired
    from onelog.cursors.queue import QueueCursor

T = TypeVar("T")


async def next_records(
    reading: Reading, fetch: Callable[[int], list[T]], limit: int, timeout_s: float | None
) -> list[T]:
    """Up to `limit` records of `fetch`; waits until there is one or the time runs out."""
    if limit <= 0:
        return []
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while True:
        found = fetch(limit)
        if found:
            return found
        if reading.may_go_on():
            await asyncio.sleep(0)  # a long stretch without a match: let others run, then go on
            if deadline is not None and loop.time() >= deadline:
                return []
            continue
        left = None if deadline is None else deadline - loop.time()
        if (left is not None and left <= 0) or not await reading.wait_readable(left):
            return []


async def next_acquired(
    queue: QueueCursor, consumer: str, limit: int, timeout_s: float | None
) -> list[Acquired]:
    """Up to `limit` records of a queue; waits until there is one or the time runs out."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while True:
        found = queue.acquire(consumer, limit)
        left = None if deadline is None else deadline - loop.time()
        if found or limit <= 0 or (left is not None and left <= 0):
            return found
        if not queue.is_full and (queue.has_returned or queue.reading.may_go_on()):
            await asyncio.sleep(0)
            continue
        available = asyncio.Event()
        wait = QueueWait(queue, available.set)
        try:
            await asyncio.wait_for(available.wait(), left)
        except TimeoutError:
            return []
        finally:
            wait.cancel()
