"""tx: publishes and acknowledgements of a channel that take effect together, or not at all.

Rules:
- Until tx.commit nothing is written and nothing is settled. A message is routed, and its lifetime
  begins, with the commit; a mandatory one that no queue takes is returned before the answer.
- A message that was acknowledged is no longer held: it cannot be acknowledged again, and
  basic.recover skips it. It counts for the prefetch until the commit; a rollback or the channel's
  end gives it back.
- A commit first writes its intent, durably and in one batch (`~amqp-transactions`); then it carries
  the intent out, and then forgets it. After a crash in between the next start carries it out again:
  messages by an idempotent producer, so that none is written twice, and acknowledgements, which may
  be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.protocols.amqp.permissions import may_look_for
from onelog.protocols.amqp.properties import Properties
from onelog.protocols.amqp.publishing import prepare
from onelog.queues.intents import Settlement

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.protocols.amqp.held import UnsettledRun

PUBLISHES_MAX: Final = 100_000
"""Publishes of one transaction, and bytes of its messages and their properties."""
BYTES_MAX: Final = 64 * 1024 * 1024

Waiting = tuple[Any, Properties, bytes]
"""A publish that was checked: its method, properties and body."""


class Transaction:
    """The work of a channel since tx.select, tx.commit or tx.rollback."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[Waiting] = []
        self._settlements: list[tuple[str, list[UnsettledRun]]] = []
        self._bytes = 0

    def add_publish(self, publish: Waiting, size_bytes: int) -> None:
        """A publish waits for the commit. Raises AmqpError when there are too many."""
        if len(self._publishes) >= PUBLISHES_MAX or self._bytes + size_bytes > BYTES_MAX:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"a transaction has at most {PUBLISHES_MAX} publishes and {BYTES_MAX} bytes",
            )
        self._bytes += size_bytes
        self._publishes.append(publish)

    def add_settlement(self, kind: str, runs: list[UnsettledRun]) -> None:
        """An acknowledgement waits for the commit; `kind` is ack, requeue or reject."""
        if runs:
            self._channel.consuming.set_aside(runs)
            self._settlements.append((kind, runs))

    @property
    def waiting(self) -> tuple[int, int]:
        """Publishes and acknowledgements that wait for the commit."""
        settled = sum(run.count for _kind, runs in self._settlements for run in runs)
        return len(self._publishes), settled

    async def commit(self) -> None:
        """Carry out everything, atomically. Returns when that is durable.

        Routes and lifetimes are decided now. Messages that a commit settles belong to the commit: a
        channel that ends meanwhile does not give them back.
        """
        channel = self._channel
        hub, consuming = channel.connection.hub, channel.consuming
        principal = channel.connection.principal
        assert principal is not None
        for exchange in {method.exchange for method, _properties, _body in self._publishes}:
            waiting = channel.vhost.streams.make_ready(exchange)
            if waiting is not None:
                await waiting  # the exchange was made anew meanwhile
        for method, properties, _body in self._publishes:
            channel.publishing.check_keys(method.exchange, properties)  # by the rules of now
        publishes = [prepare(channel.vhost, *row) for row in self._publishes]
        for (method, _properties, _body), outgoing in zip(self._publishes, publishes, strict=True):
            if outgoing.message is None:  # the door asks for the right of the others
                may_look_for(channel, method.exchange, method.routing_key)
        settlements, self._settlements = self._settlements, []
        self.rollback()
        rows = [
            Settlement(run.queue.name, (*key, offset), kind)
            for kind, runs in settlements
            if kind != "requeue"
            for run in runs
            for key, offset in map(hub.queues.place, run.places)
        ]
        messages = [row.message for row in publishes if row.message is not None]

        def settle() -> None:
            for kind, runs in settlements:
                consuming.take_aside(runs)
                if kind == "ack":
                    consuming.ack(runs)
                else:
                    consuming.reject(runs, requeue=kind == "requeue")

        def undo() -> None:
            self._hold_again(settlements)

        await hub.queues.intents.commit(channel.vhost.name, principal, messages, rows, settle, undo)
        for outgoing in publishes:
            channel.publishing.send_return(outgoing)

    def rollback(self) -> None:
        """Forget the publishes, and hold the acknowledged messages as before."""
        settlements, self._settlements = self._settlements, []
        self._publishes, self._bytes = [], 0
        self._hold_again(settlements)

    def _hold_again(self, settlements: list[tuple[str, list[UnsettledRun]]]) -> None:
        consuming = self._channel.consuming
        runs = [run for _kind, some in settlements for run in some]
        consuming.take_aside(runs)
        consuming.hold_again(runs)
