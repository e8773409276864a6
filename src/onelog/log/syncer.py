"""The threads that sync, and the threads for all other work that blocks.

Rules: a thread that syncs does nothing else, so that no publisher waits behind a compaction, a
trim, an inflate or the opening of a stream: these are `chores`. When a disk hangs, the syncing
threads hang with it, and chores that need no disk go on. A partition does the group commit: it has
at most one sync here, which serves every append before it. Threads of the kernel, which need no
interpreter, sync single files (`ask`). They begin when they are asked for the first time. A sync
that takes more than that is a job (`start`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from onelog.base.clock import SystemClock
from onelog.kernel import SyncThreads
from onelog.log.pool import Pool
from onelog.observe.troubles import Troubles
from onelog.storage.engine import HasDescriptor, SyncTicket

DISK_THREADS: Final = 8
"""Threads of the kernel. They only wait for the disk, and syncs that wait together take less time
than one after the other."""


class Syncer(Pool):
    """A few threads for syncs and, by default, as many for chores."""

    __slots__ = ("_is_slow", "chores", "disk")

    def __init__(
        self, threads: int = 4, troubles: Troubles | None = None, *, chores: int | None = None
    ) -> None:
        troubles = troubles or Troubles(SystemClock())
        super().__init__("sync", threads, troubles)
        self.chores = Pool("chore", threads if chores is None else chores, troubles)
        self.disk: SyncThreads | None = None
        """The threads of the kernel, once somebody has asked for a sync."""
        self._is_slow = False
        """There are no threads of the kernel, and there will be none."""

    def ask(self, file: HasDescriptor, done: Callable[[SyncTicket], None]) -> SyncTicket | None:
        """Sync a file in a thread of the kernel, then call `done(ticket)` on the loop. None: it
        cannot be done that way now."""
        disk = self.disk
        if disk is None:
            disk = self._open()
        return None if disk is None else disk.ask(file, done)

    def _open(self) -> SyncThreads | None:
        if self._is_slow:
            return None
        try:
            disk = SyncThreads(DISK_THREADS)
            # Without a frame in between: the kernel answers the syncs that it began itself.
            self._loop.add_reader(disk.fileno(), disk.answer, self.raised)
        except (OSError, NotImplementedError):  # no room for threads; a loop without readers
            self._is_slow = True
            return None
        self.disk = disk
        return disk

    async def close(self) -> None:
        """Wait for all jobs and syncs, then end the threads."""
        await self.chores.close()
        disk = self.disk
        if disk is not None:
            await asyncio.to_thread(disk.close)
            self._loop.remove_reader(disk.fileno())
            disk.answer(self.raised)
        await super().close()
