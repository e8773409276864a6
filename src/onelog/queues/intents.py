"""Commits of tx: each is written as an intent, then carried out, then forgotten; repeated after a
crash.

Rules: an intent is one row of `~amqp-transactions`. Its messages are written by a producer of its
own, with sequence numbers, so that a repetition writes none twice (`put_once`). Once an intent is
written it is carried out, even when its connection ends. When the disk is full, it is tried again
until there is room; so it is while a partition has no leader, or too few replicas. On several nodes
all rows lie in the shard of the queues, and the next owner finishes what an earlier one left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base import faults
from onelog.base.errors import NotLeader, OnelogError, StorageFull, Timeout, Unavailable
from onelog.base.futures import settle
from onelog.broker import LOCAL, Broker, KeptTable, Message, Principal
from onelog.broker.producer_ids import ProducerIds
from onelog.observe import get_logger

if TYPE_CHECKING:
    from onelog.broker import PartitionHandle

_log = get_logger("amqp")

STREAM: Final = "~amqp-transactions"
FAILED: Final = "amqp-commit"
"""Incidents: a commit failed."""
RETRY_S: Final = 1.0
_PASSING: Final = (NotLeader, Timeout, Unavailable)
"""What an election or a lost link leads to: a try is repeated, and writes nothing twice."""


_TOGETHER: Final = b""
"""The name that owns all rows."""


def _together(_key: bytes) -> bytes:
    return _TOGETHER


class Settlement(msgspec.Struct, array_like=True, frozen=True):
    """One acknowledgement: its effect on a place of a queue."""

    queue: str
    place: tuple[str, int, int]
    kind: str


class Intent(msgspec.Struct, array_like=True, frozen=True):
    """What a commit will do."""

    vhost: str
    producer_id: int
    messages: list[Message]
    settlements: list[Settlement]


Settle = Callable[[str, Sequence[Settlement]], None]
SaveQueues = Callable[[str, Sequence[Settlement]], Awaitable[None]]


class Intents:
    """All intents. Make one with `Intents.open`."""

    def __init__(self, broker: Broker, table: KeptTable, producer_ids: ProducerIds) -> None:
        self._broker = broker
        self._table = table
        self._producer_ids = producer_ids
        self._running: set[asyncio.Task[None]] = set()
        self.save_queues: SaveQueues

    @classmethod
    async def open(cls, broker: Broker, settle: Settle, save_queues: SaveQueues) -> Intents:
        """Finish commits that a crash interrupted; `settle` repeats acknowledgements."""
        if broker.shards.is_elected:
            table = await broker.make_kept(STREAM, _together)
            rows = list((await table.load(broker.shards.of(_TOGETHER))).items())
        else:
            table = await broker.open_kept(STREAM)
            rows = list(table.rows())
        producer_ids = ProducerIds(broker.store)
        await producer_ids.open()
        intents = cls(broker, table, producer_ids)
        intents.save_queues = save_queues
        for key, value in rows:
            intent = msgspec.msgpack.decode(value, type=Intent)
            await intents._write_again(intent)
            settle(intent.vhost, intent.settlements)
            await save_queues(intent.vhost, intent.settlements)
            await table.put([(key, None)])
        return intents

    async def commit(
        self,
        vhost: str,
        principal: Principal,
        messages: Sequence[Message],
        settlements: Sequence[Settlement],
        settle: Callable[[], None],
        undo: Callable[[], None],
    ) -> None:
        """Write messages and settle, all or none. Returns when it is durable.

        Raises, with nothing done, when a message may not be published. The caller may be cancelled:
        the commit is finished all the same, and `undo` is called if it fails.
        """
        try:
            for message in messages:
                self._broker.publisher.admit(message, principal)
        except OnelogError:
            undo()
            raise
        task = asyncio.get_running_loop().create_task(
            self._commit(vhost, messages, settlements, settle, undo)
        )
        self._running.add(task)
        task.add_done_callback(self._done)
        await asyncio.shield(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # the caller gets the error, too, if it still waits
            self._broker.troubles.note(FAILED, STREAM, error)

    async def _commit(
        self,
        vhost: str,
        messages: Sequence[Message],
        settlements: Sequence[Settlement],
        settle: Callable[[], None],
        undo: Callable[[], None],
    ) -> None:
        if not messages:
            settle()
            await self.save_queues(vhost, settlements)
            return
        try:
            producer_id = self._producer_ids.take()
            key = b"%d" % producer_id
            intent = Intent(vhost, producer_id, list(messages), list(settlements))
            await self._table.put([(key, msgspec.msgpack.encode(intent))])
            faults.hit("amqp.tx_intended")
            await self._write_at_last(producer_id, messages)
            faults.hit("amqp.tx_written")
        except OnelogError:
            undo()
            raise
        settle()
        if settlements:
            await self.save_queues(vhost, settlements)
        faults.hit("amqp.tx_settled")
        await self._table.put([(key, None)])

    async def _write_again(self, intent: Intent) -> None:
        while True:
            try:
                await self._write(intent.producer_id, intent.messages)
            except _PASSING as error:
                _log.warning("a commit waits for a partition", why=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _write_at_last(self, producer_id: int, messages: Sequence[Message]) -> None:
        while True:
            try:
                await self._write(producer_id, messages)
            except (StorageFull, *_PASSING) as error:
                _log.warning("a commit waits for a partition", why=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _write(self, producer_id: int, messages: Sequence[Message]) -> None:
        loop, publisher = asyncio.get_running_loop(), self._broker.publisher
        sequences: dict[PartitionHandle, int] = {}
        waiting: list[asyncio.Future[None]] = []
        for message in messages:
            home = publisher.admit(message, LOCAL)
            target = home[1]
            sequence = sequences.get(target, 0)
            sequences[target] = sequence + 1
            future: asyncio.Future[None] = loop.create_future()
            waiting.append(future)
            place = (producer_id, 0, sequence)
            try:
                publisher.put_once(home, message, place, partial(settle, future))
            except OnelogError as error:
                settle(future, error)
        # All of them: no part of this try is under way when the next one begins.
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def close(self) -> None:
        """Wait for running commits, and stop fetching producer ids."""
        if self._running:
            await asyncio.wait(self._running, timeout=2 * RETRY_S)
        await self._producer_ids.close()
