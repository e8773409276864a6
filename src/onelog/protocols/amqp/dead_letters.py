"""Dead letters: messages that a queue gives up, published to its dead-letter exchange.

Rules (RabbitMQ, dlx):
- `x-death` has one entry per queue and reason, the newest first, with a count; what led to the
  first death stays in `x-first-death-*`. A dead letter does not expire again.
- A message that would come back to a queue by expiry or length alone, without anybody rejecting
  it, goes round for ever: it is dropped there.
- A message is settled in its queue only after it is durable where it went (at least once).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError
from onelog.broker import Published, Record
from onelog.observe import get_logger
from onelog.protocols.amqp.addresses import address_of, message_topic
from onelog.protocols.amqp.mapping import to_message, to_properties
from onelog.protocols.amqp.properties import Properties, encode_table

if TYPE_CHECKING:
    from onelog.protocols.amqp.queues.queue import Queue
    from onelog.protocols.amqp.vhosts import VirtualHost

_log = get_logger("amqp")

RETRY_S: Final = 1.0


class DeadLetters:
    """The way of dead letters in one virtual host."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost

    def send(self, queue: Queue, place: int, record: Record, reason: str) -> None:
        """Publish a message to its queue's dead-letter exchange, then settle it there."""
        exchange = queue.settings.dead_letter_exchange
        assert exchange is not None
        if self._vhost.router.find(exchange) is None:
            queue.settled_elsewhere(place)  # as RabbitMQ: it is dropped
            return
        self._vhost.hub.run(self._send(queue, place, record, reason, exchange))

    async def _send(
        self, queue: Queue, place: int, record: Record, reason: str, exchange: str
    ) -> None:
        vhost = self._vhost
        address = address_of(record.topic)
        properties = to_properties(record)
        table = properties.table()
        keys = [address.routing_key, *table.get("CC", [])]
        key = queue.settings.dead_letter_routing_key
        table = _with_death(table, queue, reason, address.exchange, keys, properties, vhost)
        properties.expiration = None
        if key is not None:
            table.pop("CC", None)
        properties.headers = encode_table(table)
        chosen = key if key is not None else address.routing_key
        targets = vhost.router.route(exchange, chosen, table)
        if targets and all(_goes_round(table, name, reason) for name in targets):
            queue.settled_elsewhere(place)
            return
        waiting = vhost.streams.make_ready(exchange)
        if waiting is not None:
            await waiting
        now_ms = vhost.hub.clock.now_ms()
        message = to_message(
            message_topic(vhost.name, exchange, chosen), properties, record.value or b"", now_ms,
            table,
        )  # fmt: skip

        def done(_published: list[Published] | None, error: OnelogError | None) -> None:
            if error is None:
                vhost.hub.counters.dead_lettered += 1
                queue.settled_elsewhere(place)
            else:
                _log.warning("a dead letter could not be written", queue=queue.name, why=str(error))
                vhost.hub.loop.call_later(RETRY_S, self.send, queue, place, record, reason)

        try:
            vhost.hub.broker.publisher.publish_soon([message], done)
        except OnelogError as error:
            done(None, error)


def _with_death(
    table: dict[str, Any],
    queue: Queue,
    reason: str,
    exchange: str,
    keys: list[str],
    properties: Properties,
    vhost: VirtualHost,
) -> dict[str, Any]:
    """The headers with this death in them."""
    deaths = [row for row in table.get("x-death", []) if isinstance(row, dict)]
    entry: dict[str, Any] | None = None
    for row in deaths:
        if row.get("queue") == queue.name and row.get("reason") == reason:
            entry = row
    now = datetime.datetime.fromtimestamp(vhost.hub.clock.now_ms() // 1000, datetime.UTC)
    if entry is None:
        entry = {
            "count": 0,
            "reason": reason,
            "queue": queue.name,
            "time": now,
            "exchange": exchange,
            "routing-keys": keys,
        }
        if properties.expiration is not None:
            entry["original-expiration"] = properties.expiration
    else:
        deaths.remove(entry)
    entry["count"] = int(entry.get("count", 0)) + 1
    first = {
        "x-first-death-exchange": exchange,
        "x-first-death-queue": queue.name,
        "x-first-death-reason": reason,
    }
    found = {**first, **table} if "x-first-death-queue" not in table else dict(table)
    found["x-death"] = [entry, *deaths]
    found |= {
        "x-last-death-exchange": exchange,
        "x-last-death-queue": queue.name,
        "x-last-death-reason": reason,
    }
    return found


def _goes_round(table: dict[str, Any], queue: str, reason: str) -> bool:
    """Whether a message came to a queue before, and nobody rejected it since."""
    deaths = table["x-death"]
    return (
        reason != "rejected"
        and any(row.get("queue") == queue for row in deaths)
        and all(row.get("reason") != "rejected" for row in deaths)
    )
