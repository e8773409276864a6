"""Watches of the embedded store: live while their reader keeps up, read from history when not.

Rules:
- A watch queues a bounded number of revisions and bytes. Beyond the bound it takes no more, and
  later reads on from the store's history, page by page (I8). If history does not go back far
  enough, it ends with `OffsetOutOfRange`: the reader loads the keys again.
- Whole revisions, in order, once. All calls happen on the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from onelog.base.errors import InvalidRequest
from onelog.metadata.local_database import Revision

QUEUE_REVISIONS_MAX = 1024
"""Revisions that one watch holds for its reader."""

QUEUE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of values that one watch holds for its reader, one revision more at most."""


class LocalWatch:
    """One running watch; one task iterates over it."""

    __slots__ = (
        "_behind",
        "_bytes",
        "_closed",
        "_forget",
        "_next",
        "_queue",
        "_refill",
        "_wake",
        "prefix",
    )

    def __init__(
        self,
        prefix: str,
        first: int,
        refill: Callable[[LocalWatch], Awaitable[None]],
        forget: Callable[[LocalWatch], None],
    ) -> None:
        self.prefix = prefix
        self._next = first
        self._refill = refill
        self._forget = forget
        self._queue: deque[Revision] = deque()
        self._bytes = 0
        self._behind = True
        self._closed = False
        self._wake: asyncio.Future[None] | None = None

    @property
    def next_revision(self) -> int:
        """The first revision that was not queued yet."""
        return self._next

    def offer(self, revision: Revision) -> None:
        """Take the changes of a new revision, unless the watch is reading history."""
        number = revision[0].entry.mod_revision
        if self._behind or number < self._next:
            return
        mine = tuple(event for event in revision if event.entry.key.startswith(self.prefix))
        if not mine:
            self._next = number + 1
        elif len(self._queue) >= QUEUE_REVISIONS_MAX or self._bytes >= QUEUE_BYTES_MAX:
            self._behind = True
        else:
            self._push(mine)
            self._next = number + 1
            self._notify()

    def take_page(self, page: list[Revision], following: int, latest: int) -> None:
        """Take a page of history. The watch is live again when it has reached the latest
        revision."""
        for revision in page:
            self._push(revision)
        self._next = following
        self._behind = following <= latest

    def close(self) -> None:
        """End the watch; the iteration stops."""
        if not self._closed:
            self._closed = True
            self._queue.clear()
            self._forget(self)
            self._notify()

    def __aiter__(self) -> AsyncIterator[Revision]:
        """Iterate over changes, one tuple per revision."""
        return self

    async def __anext__(self) -> Revision:
        """The next revision's changes."""
        while not self._closed:
            if self._queue:
                revision = self._queue.popleft()
                self._bytes -= _size(revision)
                return revision
            if self._behind:
                await self._read_on()
            else:
                await self._wait()
        raise StopAsyncIteration

    async def _read_on(self) -> None:
        try:
            await self._refill(self)
        except Exception:
            if self._closed:
                return  # the store was closed under the reader: a plain end
            self.close()
            raise

    async def _wait(self) -> None:
        if self._wake is not None:
            raise InvalidRequest(
                "a watch has one reader, and this one has two: open a second watch"
            )
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _push(self, revision: Revision) -> None:
        self._queue.append(revision)
        self._bytes += _size(revision)

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def _size(revision: Revision) -> int:
    return sum(len(event.entry.value) for event in revision)
