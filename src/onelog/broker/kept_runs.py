"""Rows of a kept table that come while earlier ones are being made durable: one batch for all.

Rules: a row that comes alone is written at once. Those that come before it is durable are written
together when it is: a sync of the partition under way would not have served them either, so that
nobody waits for longer. Rows of a shard are written in the order in which they came. A batch has
`BYTES_MAX`, plus at most one more row. Everybody who waits gets the answer of his batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from onelog.base.futures import settle
from onelog.broker.kept import KeptRow

BYTES_MAX: Final = 256 * 1024
"""Bytes of keys and values: some thousand sessions."""

_Put = Callable[[Sequence[KeptRow]], "asyncio.Future[None]"]


class KeptRuns:
    """The writes of one table; `put` is that of the table."""

    __slots__ = ("_put", "_waiting")

    def __init__(self, put: _Put) -> None:
        self._put = put
        self._waiting: dict[int, list[tuple[KeptRow, asyncio.Future[None]]]] = {}
        """What waits in each shard that has a batch under way."""

    def put(self, shard: int, key: bytes, value: bytes | None) -> asyncio.Future[None]:
        """Write a row of a shard. The future is done when it is durable; it, or this call, raises
        as `KeptTable.put` does."""
        waiting = self._waiting.get(shard)
        if waiting is not None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(((key, value), future))
            return future
        put = self._put(((key, value),))
        self._waiting[shard] = []
        put.add_done_callback(partial(self._written, shard, ()))
        return put

    def _written(
        self,
        shard: int,
        answered: Sequence[asyncio.Future[None]],
        put: asyncio.Future[None],
    ) -> None:
        """A batch is durable, or has failed: tell those who wait, and write what came meanwhile."""
        error = None if put.cancelled() else put.exception()
        for future in answered:
            settle(future, error)
        while rows := _cut(self._waiting[shard]):
            futures = [future for _row, future in rows]
            try:
                next_put = self._put([row for row, _future in rows])
            except Exception as failed:  # noqa: BLE001 - only those who wait for these rows get it
                for future in futures:
                    settle(future, failed)
                continue
            next_put.add_done_callback(partial(self._written, shard, futures))
            return
        del self._waiting[shard]


def _cut(
    waiting: list[tuple[KeptRow, asyncio.Future[None]]],
) -> list[tuple[KeptRow, asyncio.Future[None]]]:
    """Take the rows of the next batch out of those that wait."""
    size = number = 0
    for (key, value), _future in waiting:
        number += 1
        size += len(key) + len(value or b"")
        if size > BYTES_MAX:
            break
    rows = waiting[:number]
    del waiting[:number]
    return rows
