"""The rows of a virtual host in the metadata store, and deletions that are still owed.

Rules:
- Writes take effect in the order in which they are asked for, whatever their length.
- When a write fails, the caller undoes it in memory. The store may have it all the same, so its
  deletion is owed, like a deletion that failed. Owed deletions go with the next write, before
  anything else, and with the end. So a row never comes back to a new object of the same name.
- The rows of one write are in such an order that after a crash in the middle the next start knows
  what is left: the row of a queue or exchange goes before those of its bindings, which then lead
  nowhere.
"""

from __future__ import annotations

from onelog.broker import Delete, MetadataStore, Op, Put


class Rows:
    """Writes the rows of one virtual host."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._owed: dict[str, Delete] = {}
        """Deletions that failed, or that undo a failed write."""
        self._number = 0
        self._under_way = 0
        self._put_at: dict[str, int] = {}
        """Key → the number of the last write that put it; emptied when no write is under way."""

    async def write(self, *ops: Op) -> None:
        """Write rows, in this order."""
        if not ops and not self._owed:
            return
        self._number += 1
        number = self._number
        for op in ops:
            if isinstance(op, Put):
                self._put_at[op.key] = number
                self._owed.pop(op.key, None)
        work: list[Op] = [*self._owed.values(), *ops]
        self._owed.clear()
        self._under_way += 1
        try:
            await self._store.write(work)
        except BaseException:  # also when the caller was cancelled: what the store did is not known
            self._owe(work, number)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._put_at.clear()

    async def settle(self) -> None:
        """Write the deletions that are owed."""
        await self.write()

    def _owe(self, work: list[Op], number: int) -> None:
        for op in work:
            if self._put_at.get(op.key, 0) <= number:
                self._owed[op.key] = Delete(op.key)
