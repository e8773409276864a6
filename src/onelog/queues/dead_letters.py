"""Dead letters: messages that a queue gives up, published to its dead-letter exchange.

Rules (RabbitMQ, dlx):
- `x-death` has one entry per queue and reason, the newest first, with a count; `x-first-death-*`
  keeps the first death. A dead letter does not expire again.
- A queue that the message was in before does not get it again, unless a consumer rejected it since:
  otherwise it would go round for ever. Other queues behind the exchange get it.
- The right to send dead letters is that of who declared the queue (`makers.py`). If that user has
  it no more, a letter is dropped, as if the exchange were not there, and reported.
- A message is settled in its queue only after its dead letter is durable (at least once). If the
  letter cannot be written now, the message is read again later, and not held in memory until then.
  If no letter can be made of a message, it stays where it is: it is not handed out, and not lost
  either.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from onelog.base.errors import NotAuthorized, OnelogError
from onelog.broker import LOCAL, Notice, Record
from onelog.queues.addresses import address_of, message_topic
from onelog.queues.coming import Coming
from onelog.queues.headers import extra_keys_of

if TYPE_CHECKING:
    from onelog.broker import Message
    from onelog.queues.queue import Queue
    from onelog.queues.vhosts import VirtualHost

TROUBLE: Final = "amqp-dead-letter"
RETRY_S: Final = 1.0
REJECTED: Final = "rejected"
Done = Callable[[OnelogError | None], None]
"""Called with the outcome of writing a letter."""
COUNT_MAX: Final = (1 << 63) - 1
"""The largest value of a field. A message may come with any count, because its publisher wrote
it."""


class Letter(Protocol):
    """A dead message, opened by the protocol that knows what its headers mean."""

    @property
    def table(self) -> dict[str, Any]:
        """Its headers."""

    @property
    def lifetime(self) -> str | None:
        """The lifetime that it was sent with, as text."""

    def write(
        self,
        topic: str,
        changes: dict[str, Any],
        drop: tuple[str, ...],
        now_ms: int,
        further: tuple[str, ...],
        left_out: tuple[str, ...],
    ) -> Message:
        """The message to publish: with changed headers, and without its lifetime.

        `further` are its keys beside the first, `left_out` the queues that must not get it.
        """


OpenLetter = Callable[[Record], Letter]


class DeadLetters:
    """Publishes the dead letters of one virtual host."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost
        self.coming = Coming(vhost.hub.loop)

    def send(self, queue: Queue, place: int, record: Record, reason: str) -> None:
        """Publish a message to its queue's dead-letter exchange, then settle it in the queue."""
        exchange = queue.settings.dead_letter_exchange
        assert exchange is not None
        if self._vhost.router.find(exchange) is None:
            queue.settled_elsewhere(place)  # as RabbitMQ: it is dropped
            return
        try:
            message, targets = self._letter(queue, record, reason, exchange)
        except NotAuthorized as error:
            self._note(queue, place, error)
            queue.settled_elsewhere(place)
            return
        except Exception as error:  # noqa: BLE001 - whoever wrote it: one message is left out
            self._note(queue, place, error)
            return
        if not targets:
            queue.settled_elsewhere(place)  # no queue would get it
            return
        number = self.coming.begin(targets)

        def done(error: OnelogError | None) -> None:
            self.coming.end(number, targets)
            if error is None:
                self._vhost.hub.counters.dead_lettered += 1
                queue.settled_elsewhere(place)
            else:
                self._note(queue, place, error)
                self._vhost.hub.loop.call_later(RETRY_S, queue.give_up, place, reason)

        if self._vhost.streams.is_ready(exchange):
            self._write(message, done)
        else:
            self._vhost.hub.run(self._write_later(exchange, message, done))

    def _note(self, queue: Queue, place: int, error: Exception) -> None:
        key, offset = self._vhost.hub.place(place)
        troubles = self._vhost.hub.broker.troubles
        troubles.note(TROUBLE, queue.name, error, stream=key[0], offset=offset)

    async def _write_later(self, exchange: str, message: Message, done: Done) -> None:
        try:
            await self._vhost.streams.make(exchange)
        except OnelogError as error:
            done(error)
        else:
            self._write(message, done)

    def _write(self, message: Message, done: Done) -> None:
        try:
            self._vhost.hub.broker.publisher.publish((message,), Notice(done), principal=LOCAL)
        except OnelogError as error:
            done(error)

    def _letter(
        self, queue: Queue, record: Record, reason: str, exchange: str
    ) -> tuple[Message, frozenset[str]]:
        """The message to publish, and the queues that get it."""
        vhost = self._vhost
        address = address_of(record.topic)
        letter = vhost.hub.open_letter(record)
        table = letter.table
        now_ms = vhost.hub.clock.now_ms()
        death: dict[str, Any] = {
            "reason": reason,
            "queue": queue.name,
            "time": datetime.datetime.fromtimestamp(now_ms // 1000, datetime.UTC),
            "exchange": address.exchange,
            "routing-keys": [address.routing_key, *_texts(table.get("CC"))],
        }
        if letter.lifetime is not None:
            death["original-expiration"] = letter.lifetime
        changes = _with_death(table, death)
        key = queue.settings.dead_letter_routing_key
        keys = [address.routing_key, *extra_keys_of(record)] if key is None else [key]
        keys = self._allowed(queue, exchange, keys)
        drop = () if key is None else ("CC",)
        seen = {name: row for name, row in (table | changes).items() if name not in drop}
        targets = vhost.router.route(exchange, keys[0], seen, tuple(keys[1:]))
        cyclic = {name for name in targets if _goes_round(changes["x-death"], name, reason)}
        topic = message_topic(vhost.name, exchange, keys[0])
        further, left_out = tuple(keys[1:]), tuple(sorted(cyclic))
        return letter.write(topic, changes, drop, now_ms, further, left_out), targets - cyclic

    def _allowed(self, queue: Queue, exchange: str, keys: list[str]) -> list[str]:
        """Those keys that who declared the queue may send letters to. Raises NotAuthorized."""
        maker, may_bury = queue.record.maker, self._vhost.makers.may_bury
        found = [key for key in keys if may_bury(maker, queue.name, exchange, key)]
        if not found:
            assert maker is not None, "then nothing is judged"
            raise NotAuthorized(
                f"{maker.name}, who declared the queue '{queue.name}', may no longer send its dead"
                f" letters to the exchange '{exchange}'; they are dropped"
            )
        return found


def _texts(value: Any) -> list[str]:
    return [row for row in value if isinstance(row, str)] if isinstance(value, list) else []


def _with_death(table: dict[str, Any], death: dict[str, Any]) -> dict[str, Any]:
    """The header fields that describe this death."""
    deaths = _deaths(table.get("x-death"))
    kind = _kind(death)
    entry = {"count": 1, **death}
    for row in deaths:
        if _kind(row) == kind:
            # The entry keeps the time of its first death, and counts further ones.
            entry = {**row, "count": min(_count(row) + 1, COUNT_MAX)}
    others = [row for row in deaths if _kind(row) != kind]
    changes: dict[str, Any] = {"x-death": [entry, *others]}
    parts = ("reason", "queue", "exchange")
    if "x-death" not in table:
        changes |= {f"x-first-death-{part}": death[part] for part in parts}
    return changes | {f"x-last-death-{part}": death[part] for part in parts}


def _deaths(told: Any) -> list[dict[str, Any]]:
    """The deaths that a message's headers name, one per queue and reason.

    Old brokers wrote an entry for each death, without a count.
    """
    rows = [row for row in told if isinstance(row, dict)] if isinstance(told, list) else []
    kinds = Counter(map(_kind, rows))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        kind = _kind(row)
        if kind not in found:
            is_counted = "count" in row or len(rows) == 1
            found[kind] = row if is_counted else {"count": kinds[kind], **row}
    return list(found.values())


def _kind(death: dict[str, Any]) -> tuple[str, str]:
    return str(death.get("queue")), str(death.get("reason"))


def _count(death: dict[str, Any]) -> int:
    known = death.get("count")
    return known if isinstance(known, int) else 0


def _goes_round(deaths: list[dict[str, Any]], queue: str, reason: str) -> bool:
    """Whether a message was in a queue before, and no consumer has rejected it since."""
    if reason == REJECTED:
        return False
    for row in deaths:
        if row.get("reason") == REJECTED:
            return False
        if row.get("queue") == queue:
            return True
    return False
