"""The rim of the controller: it plans whenever the rows change, and writes what it planned.

Rules:
- It plans from the rows as this node knows them. A stale look does no harm: each change compares
  the rows that it was made from.
- At most one write of a partition is under way, and a bounded number of all. After a write that was
  not done, it plans again when the rows change, or a little later.
- While this node does not control, it does nothing (`view` returns None).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from onelog.cluster.controller import ClusterView, plan
from onelog.cluster.membership import RETRY_S, RowOutcome
from onelog.cluster.row_store import RowStore
from onelog.cluster.rows import PartitionChange
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

WRITES_MAX: Final = 32
"""Writes under way at once."""
FAILED: Final = "controller"
"""Incidents: a plan raised."""


class Controlling:
    """The controller of this node, whether it has the seat or not."""

    def __init__(
        self, view: Callable[[], ClusterView | None], rows: RowStore, troubles: Troubles
    ) -> None:
        self._view = view
        self._rows = rows
        self._troubles = troubles
        self._changed = asyncio.Event()
        self._writing: set[PartitionKey] = set()
        self._task: asyncio.Task[None] | None = None
        self.changes = 0
        """Rows that it changed."""

    def open(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="cluster-controller")
        self._changed.set()

    async def close(self) -> None:
        """End. A write under way may still be made. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Rows, nodes or the seat changed."""
        self._changed.set()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for change in self._planned():
                    self._writing.add(change.partition)
                    group.create_task(self._write(change))

    def _planned(self) -> list[PartitionChange]:
        view = self._view()
        if view is None:
            return []
        try:
            found = plan(view)
        except Exception as error:  # noqa: BLE001 - the controller lives on
            self._troubles.note(FAILED, "plan", error)
            return []
        free = [change for change in found if change.partition not in self._writing]
        return free[: WRITES_MAX - len(self._writing)]

    async def _write(self, change: PartitionChange) -> None:
        outcome = RowOutcome.UNKNOWN
        try:
            outcome, _revision = await self._rows.write(change)
            self.changes += outcome is RowOutcome.DONE
        finally:
            self._writing.discard(change.partition)
            if outcome is RowOutcome.DONE:
                self._changed.set()  # there may be more than could be written at once
            else:
                asyncio.get_running_loop().call_later(RETRY_S, self._changed.set)
