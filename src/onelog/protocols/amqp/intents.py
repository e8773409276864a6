"""Commits of tx: written down first, then done, then forgotten; done again after a crash.

Rules: an intent is one row of `~amqp-transactions`. Its messages are written by a producer of its
own, with sequence numbers, so that doing it again writes none twice (`append_once`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.errors import OnelogError
from onelog.broker import LOCAL, Broker, KeptTable, Message
from onelog.broker.producer_ids import ProducerIds
from onelog.protocols.amqp.transactions import Intent, Settlement

if TYPE_CHECKING:
    from onelog.log.partition import Partition

STREAM: Final = "~amqp-transactions"


class Intents:
    """All of them. Make one with `Intents.open`."""

    def __init__(self, broker: Broker, table: KeptTable, producer_ids: ProducerIds) -> None:
        self._broker = broker
        self._table = table
        self._producer_ids = producer_ids

    @classmethod
    async def open(cls, broker: Broker, settle: Callable[[str, Settlement], None]) -> Intents:
        """Finish what a crash interrupted; `settle` does one acknowledgement again."""
        table = await broker.open_kept(STREAM)
        producer_ids = ProducerIds(broker.store)
        await producer_ids.open()
        intents = cls(broker, table, producer_ids)
        for key, value in table.rows():
            intent = msgspec.msgpack.decode(value, type=Intent)
            await intents._write(intent.producer_id, intent.messages)
            for row in intent.settlements:
                settle(intent.vhost, row)
            await table.put([(key, None)])
        return intents

    async def commit(
        self, vhost: str, messages: Sequence[Message], settlements: Sequence[Settlement]
    ) -> None:
        """Write messages and note acknowledgements, all or none; returns when it is durable."""
        producer_id = self._producer_ids.take()
        key = b"%d" % producer_id
        intent = Intent(vhost, producer_id, list(messages), list(settlements))
        await self._table.put([(key, msgspec.msgpack.encode(intent))])
        await self._write(producer_id, messages)
        await self._table.put([(key, None)])

    async def _write(self, producer_id: int, messages: Sequence[Message]) -> None:
        loop, publisher = asyncio.get_running_loop(), self._broker.publisher
        sequences: dict[Partition, int] = {}
        waiting: list[asyncio.Future[None]] = []
        for message in messages:
            stream, target = publisher.admit(message, LOCAL)
            sequence = sequences.get(target, 0)
            sequences[target] = sequence + 1
            future: asyncio.Future[None] = loop.create_future()
            waiting.append(future)

            def done(error: OnelogError | None, future: asyncio.Future[None] = future) -> None:
                if future.done():
                    return
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

            publisher.append_once(stream, target, message, (producer_id, 0, sequence), done)
        await asyncio.gather(*waiting)

    async def close(self) -> None:
        """Fetch no more producer ids."""
        await self._producer_ids.close()
