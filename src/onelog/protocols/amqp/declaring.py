"""Exchanges, queues and bindings: what their methods do.

Rules: rights are asked for before anything is looked up. Who makes something is kept with it: what
it brings is judged as that user (`queues/makers.py`). An empty queue name is the last queue
declared on the channel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pamqp import commands

from onelog.broker import Action
from onelog.protocols.amqp.errors import AmqpError, Reply, amqp_error
from onelog.protocols.amqp.frames import make_method
from onelog.protocols.amqp.permissions import (
    may,
    may_bind,
    may_consume,
    may_see,
    may_send_dead_letters,
)
from onelog.queues.errors import NotDeclared
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord
from onelog.queues.settings import QueueRecord

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.queues.queue import Queue


# -- exchanges


async def exchange_declare(channel: Channel, method: Any) -> None:
    """Make an exchange, or check that it exists."""
    record = ExchangeRecord(
        name=method.exchange,
        type=method.exchange_type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=dict(method.arguments or {}),
        maker=channel.connection.principal,
    )
    if not method.passive:
        may(channel, Action.CREATE, "exchange", record.name)
        if record.alternate is not None:
            may(channel, Action.PUBLISH, "exchange", record.alternate)
    await channel.vhost.declare_exchange(record, passive=method.passive)
    if not method.nowait:
        channel.send(commands.Exchange.DeclareOk())


async def exchange_delete(channel: Channel, method: Any) -> None:
    """Delete an exchange."""
    may(channel, Action.DELETE, "exchange", method.exchange)
    await channel.vhost.delete_exchange(method.exchange, if_unused=method.if_unused)
    if not method.nowait:
        channel.send(commands.Exchange.DeleteOk())


def _exchange_binding(channel: Channel, method: Any) -> Binding:
    """The binding that a client may make or end. Raises AmqpError or NotDeclared."""
    ends = (method.source, method.destination)
    if not all(ends):
        raise AmqpError(Reply.ACCESS_REFUSED, "operation not permitted on the default exchange")
    binding = Binding(
        source=method.source,
        destination=Destination("exchange", method.destination),
        routing_key=method.routing_key,
        arguments=dict(method.arguments or {}),
        maker=channel.connection.principal,
    )
    may_bind(channel, binding)
    for name in ends:
        channel.vhost.exchange(name)
    return binding


async def exchange_bind(channel: Channel, method: Any) -> None:
    """Bind an exchange to another one."""
    binding = _exchange_binding(channel, method)
    await channel.vhost.bind(binding)
    if not method.nowait:
        channel.send(commands.Exchange.BindOk())


async def exchange_unbind(channel: Channel, method: Any) -> None:
    """Remove that binding; no error when an end of it does not exist."""
    with _not_there():
        binding = _exchange_binding(channel, method)
        await channel.vhost.unbind(binding)
    if not method.nowait:
        channel.send(commands.Exchange.UnbindOk())


@contextlib.contextmanager
def _not_there() -> Iterator[None]:
    """Ignore that an end of a binding does not exist."""
    try:
        yield
    except (AmqpError, NotDeclared) as error:
        if amqp_error(error).code is not Reply.NOT_FOUND:
            raise


# -- queues


def _queue_name(channel: Channel, name: str) -> str:
    name = name or channel.last_queue
    if not name:
        raise AmqpError(Reply.NOT_FOUND, "no previously declared queue")
    return name


def queue_to_have(channel: Channel, name: str) -> Queue:
    """A queue that a client may consume. Its right is asked first, as RabbitMQ does: who has none
    does not learn whether the queue is there."""
    name = _queue_name(channel, name)
    may_consume(channel, name)
    return channel.vhost.queue(name, channel.connection)


async def queue_declare(channel: Channel, method: Any) -> None:
    """Make a queue, or check that it exists."""
    if method.passive and channel.vhost.replies.find(method.queue) is not None:
        if not method.nowait:
            _declared(channel, method.queue, 0, 1)
        return
    seat = channel.connection.seat
    record = QueueRecord(
        name=method.queue,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=dict(method.arguments or {}),
        maker=channel.connection.principal,
        client=None if seat is None else seat.client or None,
        listener=channel.connection.peer.listener,
    )
    if method.passive:
        may_see(channel, record.name)  # the answer counts messages and consumers
    else:
        _may_declare(channel, record)
    queue = await channel.vhost.declare_queue(record, channel.connection, passive=method.passive)
    channel.last_queue = queue.name
    if not method.nowait:
        _declared(channel, queue.name, queue.ready.size, len(queue.consumers))


def _may_declare(channel: Channel, record: QueueRecord) -> None:
    may(channel, Action.CREATE, "queue", record.name)
    dead_letters = record.arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letters, str):
        may_consume(channel, record.name)
        key = record.arguments.get("x-dead-letter-routing-key")
        may_send_dead_letters(channel, dead_letters, key if isinstance(key, str) else None)


def _declared(channel: Channel, name: str, messages: int, consumers: int) -> None:
    channel.send(
        make_method(
            commands.Queue.DeclareOk,
            queue=name,
            message_count=messages,
            consumer_count=consumers,
        )
    )


def _queue_binding(channel: Channel, method: Any) -> Binding:
    """The binding that a client may make or end. Raises AmqpError or NotDeclared."""
    name = _queue_name(channel, method.queue)
    key = method.routing_key
    if not method.queue and not key:
        key = name  # 1.7.2.3: both empty mean the last queue, and its name as key
    binding = Binding(
        source=method.exchange,
        destination=Destination("queue", name),
        routing_key=key,
        arguments=dict(method.arguments or {}),
        maker=channel.connection.principal,
    )
    may_bind(channel, binding)
    channel.vhost.queue(name, channel.connection)
    channel.vhost.exchange(method.exchange)
    return binding


async def queue_bind(channel: Channel, method: Any) -> None:
    """Bind a queue to an exchange."""
    binding = _queue_binding(channel, method)
    await channel.vhost.bind(binding)
    if not method.nowait:
        channel.send(commands.Queue.BindOk())


async def queue_unbind(channel: Channel, method: Any) -> None:
    """Remove that binding; no error when an end of it does not exist."""
    with _not_there():
        binding = _queue_binding(channel, method)
        await channel.vhost.unbind(binding)
    channel.send(commands.Queue.UnbindOk())


def queue_purge(channel: Channel, method: Any) -> None:
    """Settle all waiting messages."""
    queue = queue_to_have(channel, method.queue)
    count = queue.purge()
    if not method.nowait:
        channel.send(commands.Queue.PurgeOk(message_count=count))


async def queue_delete(channel: Channel, method: Any) -> None:
    """Delete a queue; no error when it does not exist."""
    vhost, name = channel.vhost, method.queue or channel.last_queue
    may(channel, Action.DELETE, "queue", name)
    count = 0
    if name in vhost.queues and name not in vhost.rows.leaving:
        queue = vhost.queue(name, channel.connection)
        count = await vhost.delete_queue(
            queue, if_unused=method.if_unused, if_empty=method.if_empty
        )
    if not method.nowait:
        channel.send(commands.Queue.DeleteOk(message_count=count))
