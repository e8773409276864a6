"""Hooks that are asked before records leave a partition, and hooks that are called after they left.

Rules: each hook is isolated. When one that is asked fails, the records stay until the next pass
asks again. When one that is called fails, the others are called. `Troubles` has both errors. A hook
that takes longer than `HOOK_S` (its own stream waits for an object store) goes on by itself: the
records stay, no other partition waits for it, and it is not asked again before it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from onelog.base.errors import Conflict, OffsetOutOfRange, Timeout
from onelog.base.ids import Offset
from onelog.log.handle import PartitionHandle
from onelog.log.partition import Partition
from onelog.log.visits import Counters
from onelog.observe.troubles import Troubles

HOOK: Final = "maintenance-hook"
"""Incidents: a hook for leaving records raised, or takes long."""
HOOK_S: Final = 30.0
"""How long a pass waits for a hook."""

Leaving = Callable[[PartitionHandle, Offset], Awaitable[None]]
"""Saves what is needed of the records of a partition below an offset, before they leave."""
Left = Callable[[PartitionHandle], Awaitable[None]]
"""Called after records of a partition left."""


class LeavingHooks:
    """Calls the hooks of maintenance."""

    def __init__(self, troubles: Troubles, counters: Counters) -> None:
        self._troubles = troubles
        self._counters = counters
        self._late: dict[tuple[object, Partition], asyncio.Task[None]] = {}
        """Hooks that a pass did not wait for."""

    async def may_leave(self, hooks: Sequence[Leaving], partition: Partition, upto: Offset) -> bool:
        """Let everybody see to records before they leave; False: one could not, so they stay."""
        for leaving in tuple(hooks):
            try:
                await self._bounded(leaving, partition, partial(leaving, partition, upto))
            except Exception as error:  # noqa: BLE001 - the other partitions go on
                self._failed(partition, error, upto)
                return False
        return True

    async def tell(self, hooks: Sequence[Left], partition: Partition) -> None:
        """Tell everybody that records left."""
        for left in tuple(hooks):
            try:
                await self._bounded(left, partition, partial(left, partition))
            except Exception as error:  # noqa: BLE001 - the others are called
                self._failed(partition, error, partition.start_offset)

    async def _bounded(
        self, hook: object, partition: Partition, call: Callable[[], Awaitable[None]]
    ) -> None:
        """Wait for a hook, but not for ever. Raises what it raises, and Timeout."""
        key = (hook, partition)
        task = self._late.get(key)
        if task is None:
            task = asyncio.create_task(_awaited(call), name="onelog-leaving")
        try:
            done, _ = await asyncio.wait([task], timeout=0 if key in self._late else HOOK_S)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            self._late[key] = task
            raise Timeout(
                f"a hook of {partition.place} has not ended: what it writes waits for a disk or an"
                " object store. The records stay until it has"
            )
        was_late = self._late.pop(key, None) is not None
        task.result()
        if was_late:  # it saw to what was to leave then
            await self._bounded(hook, partition, call)

    async def close(self) -> None:
        """Let nothing run on. Idempotent."""
        late = list(self._late.values())
        self._late.clear()
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _failed(self, partition: Partition, error: Exception, upto: Offset) -> None:
        passing = isinstance(error, OffsetOutOfRange | Conflict)  # trimmed or cut meanwhile
        if partition.stopped is None and not passing:
            self._counters.errors += 1
            self._troubles.note(HOOK, partition.place, error, offset=int(upto))


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()
