"""Where rows of partitions are written and read: a metadata store, whose answers may be lost."""

from __future__ import annotations

from typing import Protocol

from onelog.base.errors import NotFound, OnelogError
from onelog.cluster.membership import RowOutcome
from onelog.cluster.rows import PartitionChange, ReplicaSet, decode_row, row_key
from onelog.metadata.store import MetadataStore
from onelog.storage.engine import PartitionKey


class RowStore(Protocol):
    """Where the rows of partitions stand."""

    async def write(self, change: PartitionChange) -> tuple[RowOutcome, int]:
        """Write a row. Returns what became of it and, if it is done, the new revision."""
        ...

    async def read(self, partition: PartitionKey) -> tuple[ReplicaSet, int]:
        """The row as it is now, and its revision. Raises OnelogError."""
        ...


class MetadataRows:
    """The rows in a metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def write(self, change: PartitionChange) -> tuple[RowOutcome, int]:
        """See `RowStore`."""
        compares, puts = change.transaction()
        try:
            result = await self._store.txn(compares, puts)
        except OnelogError:
            # Also where nothing was changed: the change is tried again as it is.
            return RowOutcome.UNKNOWN, 0
        return (RowOutcome.DONE if result.succeeded else RowOutcome.REFUSED), result.revision

    async def read(self, partition: PartitionKey) -> tuple[ReplicaSet, int]:
        """See `RowStore`."""
        entry = await self._store.get(row_key(partition))
        if entry is None:
            raise NotFound(f"there is no row of {partition}: its stream is gone")
        return decode_row(entry.value), entry.mod_revision
