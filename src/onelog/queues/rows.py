"""The rows of a virtual host in the metadata store, and what the store still has to forget.

Rules:
- Writes take effect in the order they are asked for, whatever their length.
- What could not be written is undone in memory by whoever asked. The store may have it all the
  same, so its deletion is owed, like one that failed: it goes with the next write, before anything
  else, and with the end. So a row never comes back to something new that has the same name.
- A list is in such an order that after a crash in the middle the next start knows what is left:
  a queue or exchange goes before its bindings, which then lead nowhere.
"""

from __future__ import annotations

from onelog.broker import Delete, MetadataStore, Op, Put


class Rows:
    """Writes the rows of one virtual host."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._owed: dict[str, Delete] = {}
        """Deletions that failed, or that undo a write which did."""
        self._number = 0
        self._under_way = 0
        self._put_at: dict[str, int] = {}
        """Which write put a key last, of those since nothing was under way."""

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
        except BaseException:  # also when whoever asked is gone: what the store did is not known
            self._owe(work, number)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._put_at.clear()

    async def settle(self) -> None:
        """Write what is owed."""
        await self.write()

    def _owe(self, work: list[Op], number: int) -> None:
        for op in work:
            if self._put_at.get(op.key, 0) <= number:
                self._owed[op.key] = Delete(op.key)
