"""The table of methods: what each does. `channel.py` handles Basic.Publish and the close of a
channel, `declaring.py` exchanges, queues and bindings.

Rules: a handler answers at once, or returns a coroutine that holds the channel until it has
answered. A method with `nowait` gets no answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from onelog.broker import Cold
from onelog.protocols.amqp import declaring
from onelog.protocols.amqp.declaring import queue_to_have
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.protocols.amqp.replies import consume_replies
from onelog.protocols.amqp.transactions import Transaction
from onelog.queues.replies import REPLY_TO

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.queues.queue import Queue

Work = Coroutine[Any, Any, None] | None
Handler = Callable[["Channel", Any], Work]


# -- channel


def channel_open(channel: Channel, method: Any) -> Work:
    """channel.open on a channel that is open: an error."""
    del method
    raise AmqpError(
        Reply.CHANNEL_ERROR, f"second 'channel.open' seen on channel {channel.number}", hard=True
    )


def channel_flow(channel: Channel, method: Any) -> Work:
    """The client wants deliveries to stop, or to go on."""
    channel.consuming.set_flow(active=method.active)
    channel.send(commands.Channel.FlowOk(active=method.active))
    return None


def ignore(channel: Channel, method: Any) -> Work:
    """Nothing to do."""
    del channel, method
    return None


# -- basic


def basic_qos(channel: Channel, method: Any) -> Work:
    """Set how many messages the client takes before it acknowledges."""
    if method.prefetch_size:
        raise AmqpError(Reply.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    channel.consuming.set_prefetch(method.prefetch_count, whole_channel=method.global_)
    channel.send(commands.Basic.QosOk())
    return None


def basic_consume(channel: Channel, method: Any) -> Work:
    """Begin to consume."""
    if method.queue == REPLY_TO:
        return _wait_for_replies(channel, method)
    queue = queue_to_have(channel, method.queue)
    try:
        _consume(channel, queue, method)
    except Cold:
        return _consume_later(channel, queue, method)
    return None


def _consume(channel: Channel, queue: Queue, method: Any) -> None:
    # The answer goes first: deliveries begin with the next pass of the loop.
    tag = channel.consuming.consume(queue, method)
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(consumer_tag=tag))


async def _consume_later(channel: Channel, queue: Queue, method: Any) -> None:
    """Where a stream is read from has to be looked for, and that is not in memory."""
    while True:
        await queue.window.wait()
        queue = queue_to_have(channel, method.queue)  # it may be gone
        try:
            return _consume(channel, queue, method)
        except Cold:
            continue


async def _wait_for_replies(channel: Channel, method: Any) -> None:
    waiting = channel.vhost.streams.make_ready("")
    if waiting is not None:
        await waiting  # answers of other protocols go there
    consumer = consume_replies(channel, method)
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(consumer_tag=consumer.tag))


def basic_cancel(channel: Channel, method: Any) -> Work:
    """Stop consuming."""
    if channel.replies is not None and channel.replies.tag == method.consumer_tag:
        channel.stop_replies()
    channel.consuming.cancel(method.consumer_tag)
    if not method.nowait:
        channel.send(commands.Basic.CancelOk(consumer_tag=method.consumer_tag))
    return None


def basic_get(channel: Channel, method: Any) -> Work:
    """Get one message, now."""
    queue = queue_to_have(channel, method.queue)
    if queue.settings.type == "stream":
        raise AmqpError(Reply.NOT_IMPLEMENTED, "basic.get is not supported by stream queues")
    try:
        channel.consuming.get(queue, no_ack=method.no_ack)
    except Cold:
        return _get_later(channel, queue, method)
    return None


async def _get_later(channel: Channel, queue: Queue, method: Any) -> None:
    """The message is not in memory."""
    while True:
        await queue.window.wait()
        queue = queue_to_have(channel, method.queue)  # it may be gone
        try:
            return channel.consuming.get(queue, no_ack=method.no_ack)
        except Cold:
            continue


def basic_ack(channel: Channel, method: Any) -> Work:
    """Acknowledge messages."""
    runs = channel.consuming.take(method.delivery_tag, multiple=method.multiple)
    if channel.transaction is not None:
        channel.transaction.add_settlement("ack", runs)
    else:
        channel.consuming.ack(runs)
    return None


def basic_nack(channel: Channel, method: Any) -> Work:
    """Reject messages."""
    _refuse(channel, method, multiple=method.multiple)
    return None


def basic_reject(channel: Channel, method: Any) -> Work:
    """Reject a message."""
    _refuse(channel, method, multiple=False)
    return None


def _refuse(channel: Channel, method: Any, *, multiple: bool) -> None:
    runs = channel.consuming.take(method.delivery_tag, multiple=multiple)
    if channel.transaction is not None:
        channel.transaction.add_settlement("requeue" if method.requeue else "reject", runs)
    else:
        channel.consuming.reject(runs, requeue=method.requeue)


def basic_recover(channel: Channel, method: Any) -> Work:
    """Deliver all unacknowledged messages again."""
    if not method.requeue:
        raise AmqpError(Reply.NOT_IMPLEMENTED, "requeue=false")
    channel.consuming.recover()
    channel.send(commands.Basic.RecoverOk())
    return None


def basic_recover_async(channel: Channel, method: Any) -> Work:
    """The same without an answer (deprecated)."""
    if not method.requeue:
        raise AmqpError(Reply.NOT_IMPLEMENTED, "requeue=false")
    channel.consuming.recover()
    return None


# -- confirms and transactions


def confirm_select(channel: Channel, method: Any) -> Work:
    """Confirm publishes from now on."""
    if channel.transaction is not None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.publishing.select_confirms()
    if not method.nowait:
        channel.send(commands.Confirm.SelectOk())
    return None


def tx_select(channel: Channel, method: Any) -> Work:
    """Publishes and acknowledgements wait for a commit."""
    del method
    if channel.publishing.confirms:
        raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    channel.transaction = channel.transaction or Transaction(channel)
    channel.connection.input.forget()  # each publish has to wait for the commit
    channel.send(commands.Tx.SelectOk())
    return None


def _transaction(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "channel is not transactional")
    return channel.transaction


async def tx_commit(channel: Channel, method: Any) -> None:
    """Carry out everything since the last commit, all of it."""
    del method
    await _transaction(channel).commit()
    channel.send(commands.Tx.CommitOk())


def tx_rollback(channel: Channel, method: Any) -> Work:
    """Carry out none of it."""
    del method
    _transaction(channel).rollback()
    channel.send(commands.Tx.RollbackOk())
    return None


HANDLERS: Final[dict[type[Any], Handler]] = {
    commands.Channel.Open: channel_open,
    commands.Channel.Flow: channel_flow,
    commands.Channel.FlowOk: ignore,
    commands.Exchange.Declare: declaring.exchange_declare,
    commands.Exchange.Delete: declaring.exchange_delete,
    commands.Exchange.Bind: declaring.exchange_bind,
    commands.Exchange.Unbind: declaring.exchange_unbind,
    commands.Queue.Declare: declaring.queue_declare,
    commands.Queue.Bind: declaring.queue_bind,
    commands.Queue.Unbind: declaring.queue_unbind,
    commands.Queue.Purge: declaring.queue_purge,
    commands.Queue.Delete: declaring.queue_delete,
    commands.Basic.Qos: basic_qos,
    commands.Basic.Consume: basic_consume,
    commands.Basic.Cancel: basic_cancel,
    commands.Basic.CancelOk: ignore,
    commands.Basic.Get: basic_get,
    commands.Basic.Ack: basic_ack,
    commands.Basic.Nack: basic_nack,
    commands.Basic.Reject: basic_reject,
    commands.Basic.Recover: basic_recover,
    commands.Basic.RecoverAsync: basic_recover_async,
    commands.Confirm.Select: confirm_select,
    commands.Tx.Select: tx_select,
    commands.Tx.Commit: tx_commit,
    commands.Tx.Rollback: tx_rollback,
}
"""The handler of each method."""

AFTER_PUBLISHES: Final[frozenset[type[Any]]] = frozenset(
    {
        commands.Channel.Close,
        commands.Exchange.Declare,
        commands.Exchange.Delete,
        commands.Exchange.Bind,
        commands.Exchange.Unbind,
        commands.Queue.Declare,
        commands.Queue.Bind,
        commands.Queue.Unbind,
        commands.Queue.Purge,
        commands.Queue.Delete,
        commands.Basic.Get,
        commands.Tx.Commit,
    }
)
"""Methods that have to see the effect of earlier publishes of their channel."""

_LOOKING: Final = (
    commands.Queue.Declare,
    commands.Queue.Purge,
    commands.Queue.Delete,
    commands.Basic.Get,
)


def letters_before(channel: Channel, method: Any) -> Awaitable[None] | None:
    """Wait for this until a method sees every dead letter so far; None: there is none."""
    if not isinstance(method, _LOOKING):
        return None
    name = method.queue or channel.last_queue
    queue = channel.vhost.queues.get(name)
    if queue is None or (isinstance(method, commands.Basic.Get) and queue.ready.size):
        return None  # a message waits, and basic.get takes that one
    return channel.vhost.dead_letters.coming.to(name)
