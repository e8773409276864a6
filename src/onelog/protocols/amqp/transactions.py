"""tx: publishes and acknowledgements of a channel that take effect together, or not at all.

Rules: until tx.commit nothing is written and nothing is settled. A commit first writes down what it
will do, durably and in one batch (`~amqp-transactions`); then it does it, and then forgets it.
After a crash in between it is done again from what was written down: messages by an idempotent
producer, so that none is written twice, and acknowledgements, which may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from onelog.broker import Message

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.protocols.amqp.publishing import Outgoing


class Settlement(msgspec.Struct, array_like=True, frozen=True):
    """One acknowledgement: what it does to a place of a queue."""

    queue: str
    place: tuple[str, int, int]
    kind: str


class Intent(msgspec.Struct, array_like=True, frozen=True):
    """What a commit will do."""

    vhost: str
    producer_id: int
    messages: list[Message]
    settlements: list[Settlement]


class Transaction:
    """What a channel has done since tx.select, tx.commit or tx.rollback."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[Outgoing] = []
        self._settlements: list[tuple[str, list[int]]] = []

    def add_publish(self, outgoing: Outgoing) -> None:
        """A publish waits for the commit."""
        self._publishes.append(outgoing)

    def add_settlement(self, kind: str, tags: list[int]) -> None:
        """An acknowledgement waits for the commit; `kind` is ack, requeue or reject."""
        self._settlements.append((kind, tags))

    async def commit(self) -> None:
        """Do all of it, atomically; returns when that is durable."""
        publishes, self._publishes = self._publishes, []
        settlements, self._settlements = self._settlements, []
        channel = self._channel
        consuming = channel.consuming
        rows: list[Settlement] = [
            row for kind, tags in settlements for row in consuming.described(kind, tags)
        ]
        messages = [row.message for row in publishes if row.message is not None]
        for outgoing in publishes:
            channel.publishing.send_return(outgoing)
        if messages:
            await channel.connection.hub.intents.commit(channel.vhost.name, messages, rows)
        for kind, tags in settlements:
            _SETTLE[kind](consuming, tags)

    def rollback(self) -> None:
        """Do none of it: publishes are forgotten, what was acknowledged is still held."""
        self._publishes.clear()
        self._settlements.clear()


_SETTLE: dict[str, Any] = {
    "ack": lambda consuming, tags: consuming.ack(tags),
    "requeue": lambda consuming, tags: consuming.reject(tags, requeue=True),
    "reject": lambda consuming, tags: consuming.reject(tags, requeue=False),
}
