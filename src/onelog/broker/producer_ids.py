"""Producer ids: numbers that are never given twice, taken from the metadata store in blocks.

Rules: a block is written down before its first number is used, so a crash wastes numbers and never
repeats one. The next block is fetched before the current one ends; taking a number never waits.
"""

from __future__ import annotations

import asyncio
from typing import Final

from onelog.base.errors import OnelogError, Unavailable
from onelog.metadata.store import Compare, MetadataStore, Put

KEY: Final = "producers/next"
BLOCK: Final = 1_000
_TRIES: Final = 10


class ProducerIds:
    """Hands out producer ids for this node."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._blocks: list[range] = []
        self._fetching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take the first block."""
        await self._fetch()

    def take(self) -> int:
        """A new id. Raises Unavailable when the store gives none."""
        if self._blocks and self._next >= self._blocks[0].stop:
            del self._blocks[0]
        if not self._blocks:
            self._fetch_soon()
            raise Unavailable("the metadata store gives no producer ids now; try again")
        block = self._blocks[0]
        number = self._next = max(self._next, block.start)
        self._next += 1
        if len(self._blocks) == 1 and block.stop - number < BLOCK // 2:
            self._fetch_soon()
        return number

    def _fetch_soon(self) -> None:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_quietly())

    async def _fetch_quietly(self) -> None:
        try:
            await self._fetch()
        except OnelogError:
            return  # `take` tries again when it has none left

    async def _fetch(self) -> None:
        for _ in range(_TRIES):
            entry = await self._store.get(KEY)
            start = 0 if entry is None else int(entry.value)
            version = 0 if entry is None else entry.version
            result = await self._store.txn(
                [Compare(KEY, "version", "==", version)], [Put(KEY, b"%d" % (start + BLOCK))]
            )
            if result.succeeded:
                self._blocks.append(range(start, start + BLOCK))
                return
        raise Unavailable(f"the key {KEY} changes all the time; try again")

    async def close(self) -> None:
        """Stop fetching."""
        if self._fetching is not None:
            await self._fetching
