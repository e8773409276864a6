"""The threads that sync, and the threads for all other work that blocks.

Rules: a thread that syncs does nothing else, so that no publisher waits behind a compaction, a
trim, an inflate or the opening of a stream: these are `chores`. When a disk hangs, the syncing
threads hang with it, and chores that need no disk go on. A partition does the group commit: it has
at most one sync here, which serves every append before it.
"""

from __future__ import annotations

from onelog.base.clock import SystemClock
from onelog.log.pool import Pool
from onelog.observe.troubles import Troubles


class Syncer(Pool):
    """A few threads for syncs and, by default, as many for chores."""

    __slots__ = ("chores",)

    def __init__(
        self, threads: int = 4, troubles: Troubles | None = None, *, chores: int | None = None
    ) -> None:
        troubles = troubles or Troubles(SystemClock())
        super().__init__("sync", threads, troubles)
        self.chores = Pool("chore", threads if chores is None else chores, troubles)

    async def close(self) -> None:
        """Wait for all jobs, then end the threads."""
        await self.chores.close()
        await super().close()
