"""Writes to `~groups`: all rows of one pass of the loop for a shard are one batch, in order.

Rules: `done` is called once, in the order of the puts, with None when the rows are durable (I4) or
with the error. A hundred commits that wait together cost one write. Each shard has a journal of its
own, so the loss of one shard fails no write for another. Rows that a journal has not written when
its shard is lost are never written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.errors import Closed, NotLeader, NotOwner, OnelogError, Timeout, again
from onelog.broker.kept import KeptRow, KeptTable
from onelog.protocols.kafka.errors import ErrorCode

Done = Callable[[OnelogError | None], None]

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Rows that are collected before they are written within the pass."""


LOST: Final = (NotOwner, NotLeader, Timeout)
"""Errors of a write after which another node owns the rows. After a Timeout it is open whether the
write counts."""


def write_code(error: OnelogError) -> ErrorCode:
    """What a client hears when its rows could not be written."""
    if isinstance(error, LOST):
        return ErrorCode.not_coordinator
    return ErrorCode.coordinator_not_available


class Journals:
    """The journals of the shards that this node owns."""

    def __init__(self, table: KeptTable, shard_of: Callable[[bytes], int]) -> None:
        self._table = table
        self._shard_of = shard_of
        self._by_shard: dict[int, Journal] = {}

    def open(self, shard: int) -> None:
        """Rows of a shard may be written from now on."""
        self._by_shard[shard] = Journal(self._table)

    def lose(self, shard: int) -> None:
        """Another node writes the rows of a shard: what is not written yet is refused."""
        journal = self._by_shard.pop(shard, None)
        if journal is not None:
            journal.refuse(_lost())

    def put(self, name: str, rows: Sequence[KeptRow], done: Done) -> None:
        """Write rows of a group soon."""
        journal = self._by_shard.get(self._shard_of(name.encode()))
        if journal is None:
            done(_lost())
        else:
            journal.put(rows, done)

    def flush(self) -> None:
        """Write what is collected."""
        for journal in self._by_shard.values():
            journal.flush()


def _lost() -> NotOwner:
    return NotOwner("another node owns this group now")


class Journal:
    """Collects rows of one shard, and writes them when the pass is over."""

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

    def refuse(self, error: OnelogError) -> None:
        """Write none of the collected rows."""
        done, self._done = self._done, []
        self._rows, self._size_bytes = [], 0
        self._tell(done, again(error))

    def _tell(self, done: list[Done], error: OnelogError | None) -> None:
        self._table.troubles.tell("group-answer", done, error)


def _error_of(future: asyncio.Future[None]) -> OnelogError | None:
    if future.cancelled():
        return Closed("the broker stops")
    error = future.exception()
    assert error is None or isinstance(error, OnelogError), error
    return error
