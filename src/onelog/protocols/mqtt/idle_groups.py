"""Since when share groups have had no members, so that their idle time goes on while the broker is
down.

Rules: a group without members has a row in the internal stream `~shares`, which is made with the
first row. Rows change with every first and last member, too often for the metadata store, where an
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

    async def open(self) -> dict[str, int]:
        """Since when each group has been without members, in ms, as far as that is kept."""
        entries = (await self._broker.store.range(_OLD_PREFIX)).entries
        old = {entry.key.removeprefix(_OLD_PREFIX): int(entry.value) for entry in entries}
        if not old and self._broker.streams.find(STREAM) is None:
            return {}
        kept = {key.decode(): int(value) for key, value in (await self._opened()).rows()}
        if old:
            await self.note(old)
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
                self._table = await self._broker.open_kept(STREAM)
        return self._table
