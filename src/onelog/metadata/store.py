"""What every metadata store gives: keys with revisions, compare-and-set, leases, watches.

The model is etcd's v3, so that one contract suite holds the embedded store and etcd to the same:
- Every successful write transaction gets the next revision of the whole store.
- A key remembers `create_revision`, `mod_revision` and `version` (1 at creation).
- A lease dies when it is not kept alive; its keys are deleted in one revision.
- A watch delivers every change after its start revision, in order, once, in whole revisions.
- A mutation has three outcomes. An answer means that it is durable (I4). `OutcomeUnknown` means
  that it was made, or will be made, or not: only a compare of revisions shows which. Any other
  error, such as `Unavailable`, means that nothing was changed and nothing will be changed (I9).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """One key as it was at some revision."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


class Compare(msgspec.Struct, frozen=True):
    """A condition of a transaction. A missing key has version, create and mod revision 0."""

    key: str
    target: Literal["value", "version", "create_revision", "mod_revision"]
    op: Literal["==", "!=", "<", ">"]
    operand: bytes | int


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Write a key, attached to a lease if it is not 0."""

    key: str
    value: bytes
    lease: int = 0


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Delete one key, or with `prefix` every key that starts with it."""

    key: str
    prefix: bool = False


Op = Put | Delete


class TxnResult(msgspec.Struct, frozen=True):
    """The result of a transaction: whether the compares held, and the store's revision after it."""

    succeeded: bool
    revision: int


class Event(msgspec.Struct, frozen=True):
    """One change. A delete's `entry` has the old value, and its own revision as mod_revision."""

    kind: Literal["put", "delete"]
    entry: Entry


class Range(msgspec.Struct, frozen=True):
    """Keys in order and the revision at which they were read: a watch goes on from there without a
    gap."""

    entries: tuple[Entry, ...]
    revision: int


class Watch(Protocol):
    """A running watch: an async iterator of whole revisions. `close` ends it."""

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        """Iterate over changes, one tuple per revision."""
        ...

    def close(self) -> None:
        """End the watch; the iteration stops."""
        ...


class MetadataStore(Protocol):
    """The store."""

    @property
    def reconcile_s(self) -> float:
        """How often a reader compares what its watch told with all keys; 0: never, for this
        store's watch cannot lose a change."""
        ...

    async def get(self, key: str) -> Entry | None:
        """One key, or None."""
        ...

    async def range(self, prefix: str, limit: int = 0) -> Range:
        """Every key that starts with `prefix`, in key order (limit 0: all)."""
        ...

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """If all compares hold, apply `then`, otherwise `otherwise`; atomically."""
        ...

    async def write(self, ops: Sequence[Op]) -> None:
        """Apply any number of operations, in their order; later calls of any kind come after them.

        A transaction is bounded in operations and bytes, so a store may do this in parts: after a
        crash or an error perhaps only the first parts took effect. The caller orders them so that
        the next reader of the rows can see that, and complete what is missing.
        """
        ...

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write one key. Returns the new revision."""
        ...

    async def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete a key or a prefix. Returns how many keys were deleted."""
        ...

    async def grant(self, ttl_s: float) -> int:
        """A new lease."""
        ...

    async def keep_alive(self, lease: int) -> None:
        """Restart the lease's time. Raises NotFound when it is gone."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys."""
        ...

    async def watch(self, prefix: str, from_revision: int = 0) -> Watch:
        """Changes to keys under `prefix` with mod revision >= `from_revision` (0: from now on).

        Raises OffsetOutOfRange, here or in the iteration, when the store no longer has that
        history: reload, then watch.
        """
        ...

    async def snapshot(self, path: Path) -> int:
        """Write all of the store into a new file, from which a store can be opened. Returns the
        revision that it holds."""
        ...

    async def close(self) -> None:
        """Close everything. Idempotent."""
        ...
