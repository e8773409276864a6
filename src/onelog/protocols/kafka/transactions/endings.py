"""Transactions that are being ended: their outcome is durable, and their markers are being written.

Rules: an ending is tried again, with growing pauses, until all its markers are written. An ending
that a stop of the broker interrupts goes on at the next start; after an election, the next owner of
the transactional id ends the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from onelog.base import faults
from onelog.base.errors import NotLeader, OnelogError, Timeout
from onelog.observe import get_logger
from onelog.protocols.kafka.transactions.completion import Completion, Work
from onelog.protocols.kafka.transactions.ids import CallLater, Transaction
from onelog.protocols.kafka.transactions.participants import Decider
from onelog.protocols.kafka.transactions.state import Facts, State

PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
ELECTION_S: Final = 8.0
"""Until pauses are so long, a leader that changes meanwhile is no fault."""

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

    def begin(self, transaction: Transaction, decider: Decider, *, recovered: bool) -> None:
        """End a transaction; `recovered`: the broker may have died while it was being ended."""
        work = self._end(transaction, decider, recovered)
        task = asyncio.get_running_loop().create_task(work)
        transaction.ending = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop all of them."""
        await _stop(self._tasks)

    @staticmethod
    async def drop(transactions: Iterable[Transaction]) -> None:
        """Another node ends these."""
        await _stop([row.ending for row in transactions if row.ending is not None])

    async def _end(self, transaction: Transaction, decider: Decider, recovered: bool) -> None:
        facts = transaction.durable
        faults.hit("kafka.txn.prepared")
        work: Work | None = None
        pause_s = PAUSE_MIN_S
        while True:
            try:
                if work is None:
                    work = await self._completion.begin(facts, decider, recovered=recovered)
                await work.run()
                faults.hit("kafka.txn.marked")
                self._finish(transaction, facts)
            except OnelogError as error:
                is_election = isinstance(error, NotLeader | Timeout) and pause_s < ELECTION_S
                tell = _log.info if is_election else _log.error
                tell(
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


async def _stop(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
