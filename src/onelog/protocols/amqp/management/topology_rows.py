"""Virtual hosts, exchanges, queues and bindings as RabbitMQ's management API writes them.

Rules: field names are RabbitMQ's. Fields that only make sense for Erlang are left out, and unknown
values are not made up (docs/reference/amqp-management.md lists both).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote_plus, unquote_plus

from onelog.broker import Broker
from onelog.protocols.amqp.management.rates import Rates
from onelog.protocols.amqp.management.values import jsonable
from onelog.queues.addresses import QUEUES_STREAM, capture_of
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord
from onelog.queues.hub import QUEUE_COUNTERS
from onelog.queues.queue import Queue
from onelog.queues.vhosts import VirtualHost

Row = dict[str, Any]

_PLACE_BYTES: Final = 8
"""Memory of a waiting message; the message itself is in the log."""
_BUILT_IN_BY: Final = "rmq-internal"
TURN: Final = 1000
"""Queues that are counted before others have their turn."""


def exchange_row(broker: Broker, vhost: VirtualHost, record: ExchangeRecord, rates: Rates) -> Row:
    """An exchange."""
    row: Row = {
        "name": record.name,
        "vhost": vhost.name,
        "type": record.type,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "internal": record.internal,
        "arguments": jsonable(record.arguments),
        "user_who_performed_action": _BUILT_IN_BY if is_built_in(record.name) else "",
    }
    published = published_to(broker, vhost.name, record.name)
    if published:
        values = {"publish_in": published}
        row["message_stats"] = rates.detailed(vhost, f"exchange {record.name}", values)
    return row


def is_built_in(exchange: str) -> bool:
    """Whether an exchange is one that every virtual host has."""
    return not exchange or exchange.startswith("amq.")


def published_to(broker: Broker, vhost: str, exchange: str) -> int:
    """How many messages an exchange was ever sent: the end of its stream."""
    own = capture_of(vhost, exchange) if exchange else (QUEUES_STREAM, "")
    if own is None or (not exchange and vhost != "/"):
        return 0  # its messages lie among others
    stream = broker.streams.find(own[0])
    return 0 if stream is None else sum(row.high_watermark for row in stream.partitions)


def queue_row(queue: Queue, node: str, rates: Rates) -> Row:
    """A queue."""
    record, ready, unacked = queue.record, queue.ready.size, queue.unacked
    consumers = list(queue.consumers)
    capacity = float(any(consumer.room > 0 for consumer in consumers))
    exclusive = next((row.tag for row in consumers if row.exclusive), None)
    single = consumers[0].tag if consumers and queue.settings.single_active_consumer else None
    messages = ready + unacked
    row: Row = {
        "name": record.name,
        "vhost": queue.vhost.name,
        "type": queue.settings.type,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "exclusive": record.exclusive,
        "arguments": jsonable(record.arguments),
        "node": node,
        "state": "running",
        "policy": None,
        "operator_policy": None,
        "effective_policy_definition": {},
        "consumers": len(consumers),
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        "exclusive_consumer_tag": exclusive,
        "single_active_consumer_tag": single,
        "memory": messages * _PLACE_BYTES,
        "messages_ram": 0,
        "messages_ready_ram": 0,
        "messages_unacknowledged_ram": 0,
        "messages_paged_out": messages,
        "messages_persistent": messages if record.durable else 0,
        "recoverable_slaves": None,
        **_messages(rates, queue, ready, unacked),
    }
    if queue.settings.type != "classic":
        row |= {"leader": node, "members": [node], "online": [node]}
    counted = stats_of({name: getattr(queue, name) for name in QUEUE_COUNTERS})
    if any(counted.values()):
        row["message_stats"] = rates.detailed(queue, "stats", counted)
    return row


def _messages(rates: Rates, owner: object, ready: int, unacked: int) -> Row:
    values = {
        "messages": ready + unacked,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
    }
    return rates.detailed(owner, "messages", values)


def stats_of(counted: Mapping[str, int]) -> dict[str, int]:
    """The counts of queues, as RabbitMQ names them."""
    no_ack = counted["delivered_no_ack"]
    return {
        "publish": counted["published"],
        "deliver": counted["delivered"] - counted["got"] - no_ack,
        "deliver_no_ack": no_ack,
        "get": counted["got"] - counted["got_no_ack"],
        "get_no_ack": counted["got_no_ack"],
        "get_empty": counted["got_nothing"],
        "deliver_get": counted["delivered"],
        "redeliver": counted["redelivered"],
        "ack": counted["acked"] - no_ack - counted["got_no_ack"],
    }


class Total:
    """The numbers of many queues together."""

    def __init__(self, counted: Mapping[str, int]) -> None:
        self.counted = dict(counted)
        self.ready = 0
        self.unacked = 0
        self.consumers = 0
        self.queues = 0

    async def add(self, queues: Iterable[Queue]) -> Total:
        """Add queues, some at a time."""
        for queue in queues:
            self.queues += 1
            self.ready += queue.ready.size
            self.unacked += queue.unacked
            self.consumers += len(queue.consumers)
            for name in QUEUE_COUNTERS:
                self.counted[name] += getattr(queue, name)
            if self.queues % TURN == 0:
                await asyncio.sleep(0)
        return self

    def messages(self, rates: Rates, owner: object) -> Row:
        """How many wait, and how many are with consumers."""
        return _messages(rates, owner, self.ready, self.unacked)


def binding_row(vhost: str, binding: Binding) -> Row:
    """A binding."""
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind,
        "routing_key": binding.routing_key,
        "arguments": jsonable(binding.arguments),
        "properties_key": properties_key(binding),
    }


def properties_key(binding: Binding) -> str:
    """Distinguishes the bindings between two ends; the last part of a path."""
    key = quote_plus(binding.routing_key).replace("~", "%7E")
    if not binding.arguments:
        return key or "~"
    digest = sha256(repr(binding.identity).encode()).digest()[:6]
    return f"{key}~{base64.urlsafe_b64encode(digest).decode()}"


def is_named(binding: Binding, key: str) -> bool:
    """Whether a path means this binding, however often its last part was escaped."""
    own = properties_key(binding)
    return key in (own, unquote_plus(own))


def default_bindings(vhost: VirtualHost) -> Iterator[Binding]:
    """The implicit binding of each queue to the default exchange."""
    for name in sorted(vhost.queues):
        yield Binding(source="", destination=Destination("queue", name), routing_key=name)


def sorted_bindings(vhost: VirtualHost) -> list[Binding]:
    """Every binding that a client made, in RabbitMQ's order."""
    return sorted(
        vhost.router.bindings(),
        key=lambda row: (row.source, row.destination.name, row.routing_key, properties_key(row)),
    )
