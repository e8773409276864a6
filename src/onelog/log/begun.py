"""Which partitions have ever held durable records, so that a lost partition is not taken for a new
one.

Rules:
- A partition that has begun never ends at offset 0 again. One that does has lost its files: that is
  damage (I9, ADR 14). A partition that never began lost nothing, and its files may be created anew.
- A row in the metadata store is written once per partition, soon after its first sync. For data of
  older versions it is written when the partition is first opened. The store lies apart from the
  partition's files.
- Records become durable before the row is written, so that a crash never leaves a row too many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from onelog.base.ids import PartitionId
from onelog.metadata.store import Delete, MetadataStore, Put
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

BEGUN: Final = "begun/"
FAILED: Final = "partition-begun"
"""Incidents: the row that says that a partition holds records could not be written."""


class Begun:
    """The partitions that must not be empty."""

    def __init__(self, store: MetadataStore, troubles: Troubles) -> None:
        self._store = store
        self._troubles = troubles
        self._known: set[PartitionKey] = set()
        self._pending: set[PartitionKey] = set()
        self._writing: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read the rows of the metadata store."""
        entries = (await self._store.range(BEGUN)).entries
        self._known = {_key_of(entry.key) for entry in entries}

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._known

    def note(self, keys: Iterable[PartitionKey]) -> None:
        """These partitions hold durable records. One task soon writes all rows that were noted by
        then."""
        self._pending.update(key for key in keys if key not in self._known)
        if self._pending and self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def settle(self) -> None:
        """Wait until every row that was noted is written, or its write has failed."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        try:
            while self._pending:
                keys = sorted(self._pending)
                await self._store.write([Put(_row_of(key), b"") for key in keys])
                self._known.update(keys)
                self._pending.difference_update(keys)
        except Exception as error:  # noqa: BLE001 - told; nobody waits for it
            # Pending rows are tried again with the next `note` and at the next start.
            self._troubles.note(FAILED, "metadata", error)
        finally:
            self._writing = None

    async def forget(self, stream_id: str) -> None:
        """A stream was deleted on purpose: its partitions may be gone."""
        self._pending = {key for key in self._pending if key.stream_id != stream_id}
        await self.settle()
        gone = {key for key in self._known if key.stream_id == stream_id}
        if gone:
            self._known -= gone
            await self._store.delete(f"{BEGUN}{stream_id}/", prefix=True)

    async def forget_one(self, key: PartitionKey) -> None:
        """A partition is about to be emptied on purpose."""
        self._pending.discard(key)
        await self.settle()
        if key in self._known:
            self._known.discard(key)
            await self._store.delete(_row_of(key))

    async def forget_strangers(self, known: set[PartitionKey]) -> None:
        """Forget partitions of streams that no longer exist."""
        strangers = self._known - known
        if strangers:
            await self._store.write([Delete(_row_of(key)) for key in sorted(strangers)])
            self._known -= strangers


def _row_of(key: PartitionKey) -> str:
    return f"{BEGUN}{key.stream_id}/{int(key.partition)}"


def _key_of(row: str) -> PartitionKey:
    stream_id, _, number = row.removeprefix(BEGUN).rpartition("/")
    return PartitionKey(stream_id, PartitionId(int(number)))
