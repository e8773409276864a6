"""tx: publishes and acknowledgements of a channel that take effect together, or not at all.

Rules: until tx.commit nothing is written and nothing is settled. A commit first writes down what it
will do, durably and in one batch (`~amqp-transactions`); then it does it, and then forgets it.
After a crash in between it is done again from what was written down: messages by an idempotent
producer, so that none is written twice, and acknowledgements, which may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from onelog.broker import Message
from onelog.protocols.amqp.errors import AmqpError, Reply

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.protocols.amqp.publishing import Outgoing

PUBLISHES_MAX: Final = 100_000
"""Publishes and acknowledgements of one transaction, each; and bytes of its messages."""
BYTES_MAX: Final = 64 * 1024 * 1024


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
        self._bytes = 0

    def add_publish(self, outgoing: Outgoing) -> None:
        """A publish waits for the commit. Raises AmqpError when there are too many."""
        self._bytes += outgoing.size_bytes
        if len(self._publishes) >= PUBLISHES_MAX or self._bytes > BYTES_MAX:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"a transaction has at most {PUBLISHES_MAX} publishes and {BYTES_MAX} bytes",
            )
        self._publishes.append(outgoing)

    def add_settlement(self, kind: str, tags: list[int]) -> None:
        """An acknowledgement waits for the commit; `kind` is ack, requeue or reject."""
        if len(self._settlements) >= PUBLISHES_MAX:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"a transaction has at most {PUBLISHES_MAX} acknowledgements",
            )
        self._settlements.append((kind, tags))

    @property
    def waiting(self) -> tuple[int, int]:
        """Publishes and acknowledgements that wait for the commit."""
        return len(self._publishes), sum(len(tags) for _kind, tags in self._settlements)

    async def commit(self) -> None:
        """Do all of it, atomically; returns when that is durable."""
        publishes, settlements = self._publishes, self._settlements
        self.rollback()
        channel = self._channel
        hub, principal = channel.connection.hub, channel.connection.principal
        assert principal is not None
        rows = [
            row
            for kind, tags in settlements
            for row in channel.consuming.described(kind, tags)
            if kind != "requeue"
        ]
        messages = [row.message for row in publishes if row.message is not None]

        def settle() -> None:
            # A channel that ended meanwhile has given back what it held.
            held = {tag for _kind, tags in settlements for tag in tags}
            if held and not all(map(channel.consuming.holds, held)):
                hub.settle_again(channel.vhost.name, rows)
                return
            for kind, tags in settlements:
                if kind == "ack":
                    channel.consuming.ack(tags)
                else:
                    channel.consuming.reject(tags, requeue=kind == "requeue")

        await hub.intents.commit(channel.vhost.name, principal, messages, rows, settle)
        for outgoing in publishes:
            channel.publishing.send_return(outgoing)

    def rollback(self) -> None:
        """Do none of it: publishes are forgotten, what was acknowledged is still held."""
        self._publishes, self._settlements, self._bytes = [], [], 0
