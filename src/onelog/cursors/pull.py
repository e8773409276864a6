"""Pulling: fetch records that are there, or wait for them by wake-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from onelog.cursors.cursor import Reading

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
