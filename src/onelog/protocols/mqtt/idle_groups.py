"""Since when share groups have had no members, so that their idle time goes on while the broker is
down.

Rules: a group without members has a row in the internal stream `~shares`, which is made with the
first row, or before elections give this node a shard. A row lies in the shard of its group's
cursor. Rows change with every first and last member, too often for the metadata store, where an
older version kept them. A start takes those over, and deletes them in the store when they are
durable in the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from onelog.broker import Broker, KeptTable

STREAM: Final = "~shares"
_OLD_PREFIX: Final = "mqtt/shares/"


class IdleGroups:
    """The rows of `~shares`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table: KeptTable | None = None
        self._opening = asyncio.Lock()
        self._old: dict[str, int] = {}
        """Rows of the metadata store that are not in the stream yet."""

    async def open(self, *, made_now: bool) -> None:
        """Find out where rows are kept. `made_now`: the stream is made at once."""
        entries = (await self._broker.store.range(_OLD_PREFIX)).entries
        self._old = {entry.key.removeprefix(_OLD_PREFIX): int(entry.value) for entry in entries}
        if made_now:
            await self._opened()

    async def take(self, shard: int) -> dict[str, int]:
        """Since when each group of a shard has been without members, in ms, as far as that is
        kept."""
        if not self._old and self._broker.streams.find(STREAM) is None:
            return {}
        rows = await (await self._opened()).load(shard)
        kept = {key.decode(): int(value) for key, value in rows.items()}
        shard_of = self._broker.cursors.shard_of
        old = {name: ms for name, ms in self._old.items() if shard_of(name) == shard}
        await self.note(old)
        for name in old:
            del self._old[name]
        if old and not self._old:
            await self._broker.store.delete(_OLD_PREFIX, prefix=True)
        return kept | old

    async def note(self, since_ms: Mapping[str, int]) -> None:
        """These groups have been without members since then."""
        if since_ms:
            table = self._table or await self._opened()
            await table.put([(name.encode(), b"%d" % ms) for name, ms in since_ms.items()])

    async def forget(self, name: str) -> None:
        """A group has a member, or is gone."""
        table = self._table or await self._opened()
        await table.put([(name.encode(), None)])

    async def _opened(self) -> KeptTable:
        async with self._opening:
            if self._table is None:
                self._table = await self._broker.make_kept(STREAM, _owner_of)
        return self._table


def _owner_of(key: bytes) -> bytes:
    """The name that owns a group, as its cursor's name says."""
    return key.partition(b"/")[2]
