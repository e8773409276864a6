"""Wake-ups: waiters for a partition to be visible beyond an offset are called exactly then.

Rules: nobody polls. `advance(end)` calls every waiter below `end`, lowest offset first, in the same
pass of the loop, and no other waiter. A publisher that waits for durability and a reader that waits
for news wait for the same thing: that the record at their offset is visible. A callback that raises
is isolated: its error goes to `raised`, and the other waiters are called.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from functools import partial
from itertools import count

from onelog.base.errors import OnelogError
from onelog.base.futures import settle
from onelog.base.ids import Offset

Callback = Callable[[OnelogError | None], None]
"""Called once: with None when the offset became visible, with the error when it never will."""

Raised = Callable[[Offset, Exception], None]
"""Called with the offset and the error when the callback of a waiter raised."""


class Waiter:
    """One registered wait; `cancel` forgets it."""

    __slots__ = ("_waiters", "callback", "offset")

    def __init__(self, offset: Offset, callback: Callback, waiters: Waiters | None = None) -> None:
        self.offset = offset
        self.callback: Callback | None = callback
        self._waiters = waiters

    def cancel(self) -> None:
        """Never call back. The heap drops the waiter later: when half of its waiters are cancelled,
        or all."""
        if self.callback is not None:
            self.callback = None
            if self._waiters is not None:
                self._waiters.forget_one()


class Waiters:
    """The waiters of one partition, by offset."""

    __slots__ = ("_live", "_raised", "rows")

    sequence = count()
    """Numbers waiters in the order in which they came, for all partitions."""

    def __init__(self, raised: Raised) -> None:
        self._raised = raised
        self.rows: list[tuple[Offset, int, Waiter]] = []
        """A heap. Cancelled waiters stay in it for a while; when it is empty, nobody waits."""
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def forget_one(self) -> None:
        """One of the waiters was cancelled."""
        self._live -= 1
        if not self._live:
            self.rows.clear()  # the next append need not look for waiters
        elif len(self.rows) > 64 and len(self.rows) > 2 * self._live:
            self._drop_cancelled()

    def add(self, offset: Offset, callback: Callback) -> Waiter:
        """Call `callback` when the record at `offset` is visible."""
        waiter = Waiter(offset, callback, self)
        heapq.heappush(self.rows, (offset, next(self.sequence), waiter))
        self._live += 1
        return waiter

    def join(self, offset: Offset, number: int, callback: Callback) -> None:
        """As `add`, for a wait that began when the sequence was at `number`."""
        heapq.heappush(self.rows, (offset, number, Waiter(offset, callback, self)))
        self._live += 1

    def advance(self, end: Offset) -> None:
        """Call every waiter whose offset is below `end`."""
        heap = self.rows
        while heap and heap[0][0] < end:
            self._call(heapq.heappop(heap)[2], None)

    def fail(self, error: OnelogError) -> None:
        """Call everybody with the error: the record that they wait for will not come."""
        heap, self.rows = self.rows, []
        for _offset, _number, waiter in sorted(heap, key=lambda row: row[:2]):
            self._call(waiter, error)

    def fail_between(self, start: Offset, end: Offset, error: OnelogError) -> None:
        """Call those who wait for an offset in [start, end) with the error: it may never come."""
        failed = sorted(row for row in self.rows if start <= row[0] < end)
        self.rows[:] = [row for row in self.rows if not start <= row[0] < end]
        heapq.heapify(self.rows)
        for _offset, _number, waiter in failed:
            self._call(waiter, error)

    def _call(self, waiter: Waiter, error: OnelogError | None) -> None:
        callback, waiter.callback = waiter.callback, None
        if callback is not None:
            self._live -= 1
            try:
                callback(error)
            except Exception as problem:  # noqa: BLE001 - the others wait, too
                self._raised(waiter.offset, problem)

    def _drop_cancelled(self) -> None:
        # In place: `advance` may be working on this very list.
        self.rows[:] = [row for row in self.rows if row[2].callback is not None]
        heapq.heapify(self.rows)


def as_future(register: Callable[[Callback], Waiter | None]) -> asyncio.Future[None]:
    """A future for a wait, if there is one to wait for. Cancelling the future cancels the wait."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    waiter = register(partial(settle, future))
    if waiter is not None:
        future.add_done_callback(lambda _: waiter.cancel())
    return future
