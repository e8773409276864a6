"""Publishing to an exchange and getting from a queue, one request at a time.

Rules: a publish is the publish of AMQP with `mandatory` and a confirm: it is answered when it is
durable. It counts for the quotas of its user, and is refused while one is in debt: there is no
connection that could be held back. Messages that a request gets are requeued, acknowledged or
rejected when the answer is made, even when the client is gone by then. The messages of one request
are bounded.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final, Literal

import msgspec
from pamqp import commands

from onelog.base.errors import Conflict, InvalidRequest
from onelog.broker import Cold, Principal
from onelog.protocols.amqp.hub import Hub
from onelog.protocols.amqp.management.values import checked_table, jsonable
from onelog.protocols.amqp.mapping import to_properties
from onelog.protocols.amqp.properties import Properties
from onelog.protocols.amqp.publishing import check_properties, extra_keys, lead_to_topic, prepare
from onelog.queues.addresses import address_of
from onelog.queues.claims import check_further_keys
from onelog.queues.consumers import Delivery
from onelog.queues.queue import Queue
from onelog.queues.vhosts import VirtualHost
from onelog.record.tables import encode_table

Row = dict[str, Any]
AckMode = Literal[
    "ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"
]
Encoding = Literal["auto", "base64"]

LISTENER: Final = "amqp_management"
"""The listener of the management API, as quotas name it."""
COUNT_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024
"""Messages and bytes of one answer; further messages stay in the queue."""
TURN: Final = 64
"""Messages that are got before others have their turn."""


async def publish(
    hub: Hub,
    vhost: VirtualHost,
    exchange: str,
    routing_key: str,
    properties: Properties,
    body: bytes,
    who: tuple[str, Principal],
) -> bool:
    """Publish a message. Returns whether a queue took it. `who`: the login name, and its peer."""
    limit = hub.limits.message_bytes
    if len(body) > limit:
        raise InvalidRequest(f"message size {len(body)} is larger than configured max size {limit}")
    method = commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True)
    lead_to_topic(method, vhost.name)
    vhost.exchange_to_publish(method.exchange)
    login_name, principal = who
    check_properties(properties, login_name, principal.name)
    waiting = vhost.streams.make_ready(method.exchange)
    if waiting is not None:
        await waiting
    further = extra_keys(properties.table())
    check_further_keys(hub.broker.authorizer, principal, vhost.name, method.exchange, further)
    outgoing = prepare(vhost, method, properties, body)
    if outgoing.message is None:  # no door will ask for the right
        key = (method.routing_key,)
        check_further_keys(hub.broker.authorizer, principal, vhost.name, method.exchange, key)
    hub.broker.client_quotas.charge("amqp", principal.name, LISTENER, 1, len(body))
    hub.counters.published += 1
    if outgoing.message is not None:
        published = await hub.broker.publish(outgoing.message, principal=principal)
        await asyncio.sleep(0)  # the queues take it in that pass; one of them may refuse it
        if hub.queues.follower.take_refusal(published):
            raise InvalidRequest("rejected Unable to publish message. Check queue limits.")
    return outgoing.returned is None


def properties_of(given: Row) -> Properties:
    """Properties from JSON; unknown names are ignored, as in RabbitMQ."""
    known = {name: value for name, value in given.items() if name in Properties.__struct_fields__}
    headers = known.pop("headers", None)
    found = msgspec.convert(known, type=Properties)
    if headers:
        found.headers = encode_table(checked_table(headers))
    return found


async def get(
    queue: Queue, count: int, mode: AckMode, encoding: Encoding, truncate: int | None
) -> list[Row]:
    """Up to `count` messages from the head of a queue."""
    if queue.owner is not None:
        raise Conflict(f"queue '{queue.name}' in vhost '{queue.vhost.name}' is exclusive")
    if queue.settings.type == "stream":
        raise InvalidRequest(f"basic.get is not supported by stream queues: '{queue.name}'")
    taken: list[Delivery] = []
    rows: list[Row] = []
    size = 0
    try:
        while len(rows) < min(count, COUNT_MAX) and size < BYTES_MAX:
            try:
                delivery = queue.get()
            except Cold:
                await queue.window.wait()
                continue
            if delivery is None:
                break
            taken.append(delivery)
            rows.append(_row(delivery, queue.ready.size, encoding, truncate))
            size += len(rows[-1]["payload"])
            if len(rows) % TURN == 0:
                await asyncio.sleep(0)
    finally:
        if not queue.is_deleted:
            _settle(queue, [row.place for row in taken], mode)
    return rows


def _settle(queue: Queue, places: list[int], mode: AckMode) -> None:
    if mode.endswith("requeue_true"):
        queue.requeue(places)
        return
    settle = queue.ack if mode.startswith("ack") else queue.reject
    for place in places:
        settle(place)


def _row(delivery: Delivery, left: int, encoding: Encoding, truncate: int | None) -> Row:
    record = delivery.record
    address = address_of(record.topic)
    body = bytes(record.value or b"")
    shown = body if truncate is None else body[:truncate]
    payload, form = _payload(shown, encoding)
    return {
        "payload_bytes": len(body),
        "redelivered": delivery.redelivered,
        "exchange": jsonable(address.exchange),
        "routing_key": jsonable(address.routing_key),
        "message_count": left,
        "properties": _properties(delivery),
        "payload": payload,
        "payload_encoding": form,
    }


def _payload(body: bytes, encoding: Encoding) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), "base64"


def _properties(delivery: Delivery) -> Row | list[Any]:
    found = to_properties(delivery.record)
    row = {
        name: jsonable(getattr(found, name))
        for name in Properties.__struct_fields__
        if name != "headers" and getattr(found, name) is not None
    }
    headers = {**found.table(), **delivery.headers}
    if headers:
        row["headers"] = jsonable(headers)
    return row or []  # RabbitMQ writes an empty object as a list here
