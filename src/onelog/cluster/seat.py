"""The seat of the controller: one node takes it, and its revision fences whoever had it before.

Rules:
- The seat is taken by compare: it is empty, or the row is the one that was seen. It hangs on the
  lease of the registration, so it becomes free when that is gone.
- A lease is no lock. What counts is the revision of the row, which each write of a controller
  compares: a controller that was replaced without noticing changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onelog.base.errors import Fenced, OutcomeUnknown
from onelog.cluster.node_rows import ControllerRow, decode_row
from onelog.cluster.rows import CONTROLLER
from onelog.metadata.store import Compare, MetadataStore, Op, Put, TxnResult


class Seat:
    """The seat, as one node sees it."""

    def __init__(self, store: MetadataStore, node: int) -> None:
        self._store = store
        self._node = node
        self._revision = 0

    @property
    def revision(self) -> int:
        """The fence of this node's writes as the controller; 0: it is not the controller."""
        return self._revision

    def leave(self) -> None:
        """This node no longer believes to be the controller."""
        self._revision = 0

    def adopt(self, revision: int) -> None:
        """The watch shows that the seat is this node's."""
        self._revision = revision

    async def take(self, node_epoch: int, lease: int, *, over: int = 0) -> bool:
        """Take the seat if it is free, or if its row still has the revision `over`. Whether this
        node is the controller now."""
        row = ControllerRow(node=self._node, node_epoch=node_epoch)
        compare = Compare(CONTROLLER, "mod_revision", "==", over)
        put = Put(CONTROLLER, msgspec.json.encode(row), lease)
        try:
            result = await self._store.txn((compare,), (put,))
        except OutcomeUnknown:
            pass  # the row shows whose it is
        else:
            self._revision = result.revision if result.succeeded else 0
            return result.succeeded
        entry = await self._store.get(CONTROLLER)
        is_ours = entry is not None and decode_row(entry, ControllerRow) == row
        self._revision = entry.mod_revision if entry is not None and is_ours else 0
        return is_ours

    async def write(self, compares: Sequence[Compare], ops: Sequence[Op]) -> TxnResult:
        """A transaction that counts only while this node is the controller. Raises Fenced."""
        if not self._revision:
            raise Fenced(f"node {self._node} is not the controller")
        fence = Compare(CONTROLLER, "mod_revision", "==", self._revision)
        result = await self._store.txn((fence, *compares), ops)
        if not result.succeeded:
            entry = await self._store.get(CONTROLLER)
            if entry is None or entry.mod_revision != self._revision:
                self._revision = 0
                raise Fenced(f"node {self._node} is no longer the controller")
        return result
