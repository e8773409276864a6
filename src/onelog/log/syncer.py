"""The threads that sync, and beside them those for everything else that blocks.

Rules: a thread that syncs does nothing else, so that no publisher waits behind a compaction, a
trim, an inflate or the opening of a stream: these are `chores`. A disk that hangs takes the threads
that sync, and chores that need no disk go on. Group commit is the partition's: it has at most one
sync here, which serves every append before it.
"""

from __future__ import annotations

from onelog.base.clock import SystemClock
from onelog.log.pool import Pool
from onelog.observe.troubles import Troubles


class Syncer(Pool):
    """A few threads for syncs, and as many for chores unless it is said otherwise."""

    __slots__ = ("chores",)

    def __init__(
        self, threads: int = 4, troubles: Troubles | None = None, *, chores: int | None = None
    ) -> None:
        troubles = troubles or Troubles(SystemClock())
        super().__init__("sync", threads, troubles)
        self.chores = Pool("chore", threads if chores is None else chores, troubles)

    async def close(self) -> None:
        """Wait for what runs, then end the threads."""
        await self.chores.close()
        await super().close()
