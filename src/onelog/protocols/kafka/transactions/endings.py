"""Transactions that are being ended: their outcome is durable, and their markers are being written.

Rules: an ending is tried again, with growing pauses, until all its markers are written. An ending
that a stop of the broker interrupts goes on at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from onelog.base import faults
from onelog.base.errors import OnelogError
from onelog.observe import get_logger
from onelog.protocols.kafka.transactions.completion import Completion
from onelog.protocols.kafka.transactions.ids import CallLater, Transaction
from onelog.protocols.kafka.transactions.state import Facts, State

PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0

_log = get_logger("kafka")


class Endings:
    """Writes markers, each transaction in a task of its own."""

    def __init__(
        self,
        completion: Completion,
        call_later: CallLater,
        finish: Callable[[Transaction, Facts], None],
    ) -> None:
        self._completion = completion
        self._call_later = call_later
        self._finish = finish
        """Called when all markers of a transaction are written. Raises OnelogError."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.commits = 0
        self.aborts = 0

    def begin(self, transaction: Transaction, *, recovered: bool) -> None:
        """End a transaction; `recovered`: the broker may have died while it was being ended."""
        task = asyncio.get_running_loop().create_task(self._end(transaction, recovered))
        transaction.ending = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end(self, transaction: Transaction, recovered: bool) -> None:
        facts = transaction.durable
        faults.hit("kafka.txn.prepared")
        work = self._completion.begin(facts, recovered=recovered)
        pause_s = PAUSE_MIN_S
        while True:
            try:
                await work.run()
                faults.hit("kafka.txn.marked")
                self._finish(transaction, facts)
            except OnelogError as error:
                _log.error(
                    "a transaction waits for its markers",
                    transactional_id=transaction.id,
                    state=str(facts.state),
                    error=str(error),
                )
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            else:
                break
        if facts.state is State.PREPARE_COMMIT:
            self.commits += 1
        else:
            self.aborts += 1

    async def _pause(self, seconds: float) -> None:
        over = asyncio.Event()
        timer = self._call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()
