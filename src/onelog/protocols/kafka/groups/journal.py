"""Writes to `~groups`: all rows of one pass of the loop are one batch, in order.

Rules: `done` is called once, in the order of the puts, with None when the rows are durable (I4) or
with the error. A hundred commits that wait together cost one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.errors import Closed, OnelogError
from onelog.broker.kept import KeptRow, KeptTable

Done = Callable[[OnelogError | None], None]

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Rows that are collected before they are written within the pass."""


class Journal:
    """Collects rows, and writes them when the pass is over."""

    def __init__(self, table: KeptTable) -> None:
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._rows: list[KeptRow] = []
        self._done: list[Done] = []
        self._size_bytes = 0
        self._scheduled = False
        self.batches = 0

    def put(self, rows: Sequence[KeptRow], done: Done) -> None:
        """Write rows soon. The rows of one call are in one batch: all of them or none."""
        size_bytes = sum(len(key) + len(value or b"") for key, value in rows)
        if self._rows and self._size_bytes + size_bytes > BATCH_BYTES:
            self.flush()
        self._rows += rows
        self._done.append(done)
        self._size_bytes += size_bytes
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pass_over)

    def _pass_over(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write the collected rows."""
        rows, self._rows = self._rows, []
        done, self._done = self._done, []
        self._size_bytes = 0
        if not done:
            return
        self.batches += 1
        try:
            written = self._table.put(rows)
        except OnelogError as error:
            self._tell(done, error)
            return
        written.add_done_callback(lambda future: self._tell(done, _error_of(future)))

    def _tell(self, done: list[Done], error: OnelogError | None) -> None:
        self._table.troubles.tell("group-answer", done, error)


def _error_of(future: asyncio.Future[None]) -> OnelogError | None:
    if future.cancelled():
        return Closed("the broker stops")
    error = future.exception()
    assert error is None or isinstance(error, OnelogError), error
    return error
