"""Hooks that are asked before records leave a partition, and hooks that are called after they left.

Rules: each hook is isolated. When one that is asked fails, the records stay until the next pass
asks again. When one that is called fails, the others are called. `Troubles` has both errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from onelog.base.errors import Conflict, OffsetOutOfRange
from onelog.base.ids import Offset
from onelog.log.handle import PartitionHandle
from onelog.log.partition import Partition
from onelog.log.visits import Counters
from onelog.observe.troubles import Troubles

HOOK: Final = "maintenance-hook"
"""Incidents: a hook for leaving records raised."""

Leaving = Callable[[PartitionHandle, Offset], Awaitable[None]]
"""Saves what is needed of the records of a partition below an offset, before they leave."""
Left = Callable[[PartitionHandle], Awaitable[None]]
"""Called after records of a partition left."""


class LeavingHooks:
    """Calls the hooks of maintenance."""

    def __init__(self, troubles: Troubles, counters: Counters) -> None:
        self._troubles = troubles
        self._counters = counters

    async def may_leave(self, hooks: Sequence[Leaving], partition: Partition, upto: Offset) -> bool:
        """Let everybody see to records before they leave; False: one could not, so they stay."""
        for leaving in tuple(hooks):
            try:
                await leaving(partition, upto)
            except Exception as error:  # noqa: BLE001 - the other partitions go on
                self._failed(partition, error, upto)
                return False
        return True

    async def tell(self, hooks: Sequence[Left], partition: Partition) -> None:
        """Tell everybody that records left."""
        for left in tuple(hooks):
            try:
                await left(partition)
            except Exception as error:  # noqa: BLE001 - the others are called
                self._failed(partition, error, partition.start_offset)

    def _failed(self, partition: Partition, error: Exception, upto: Offset) -> None:
        passing = isinstance(error, OffsetOutOfRange | Conflict)  # trimmed or cut meanwhile
        if partition.stopped is None and not passing:
            self._counters.errors += 1
            self._troubles.note(HOOK, partition.place, error, offset=int(upto))
