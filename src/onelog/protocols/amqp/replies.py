"""Direct reply-to: answers that go straight to the channel that asked, past every queue.

Rules (RabbitMQ, direct-reply-to): a channel consumes from the pseudo queue `amq.rabbitmq.reply-to`
without acknowledging, and publishes requests with that as `reply_to`; they carry the name of the
channel instead. An answer to that name is sent to the channel and is not written anywhere: delivery
is at most once, also to a client that does not read. An answer of another protocol is in the log,
under the topic of that name, and comes to the channel from there (`queues/following.py`).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from pamqp import commands

from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.protocols.amqp.frames import make_method
from onelog.protocols.amqp.mapping import to_properties
from onelog.protocols.amqp.properties import Properties, encode_properties
from onelog.queues.replies import REPLY_PREFIX, REPLY_TO

if TYPE_CHECKING:
    from onelog.broker import Record
    from onelog.protocols.amqp.channel import Channel
    from onelog.queues.vhosts import VirtualHost


def consume_replies(channel: Channel, method: Any) -> ReplyConsumer:
    """basic.consume of the pseudo queue. Raises AmqpError."""
    if not method.no_ack:
        raise AmqpError(Reply.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.replies is not None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "reply consumer already set")
    tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
    consumer = ReplyConsumer(channel, f"{REPLY_PREFIX}{secrets.token_urlsafe(24)}", tag)
    channel.replies = consumer
    channel.vhost.replies.add(consumer)
    return consumer


def find_reply_consumer(vhost: VirtualHost, name: str) -> ReplyConsumer | None:
    """The channel that waits for an answer to this name."""
    found = vhost.replies.find(name)
    return found if isinstance(found, ReplyConsumer) else None


class ReplyConsumer:
    """A channel that waits for answers."""

    def __init__(self, channel: Channel, name: str, tag: str) -> None:
        self._channel = channel
        self.name = name
        self.tag = tag

    def take_answer(self, name: str, record: Record) -> None:
        """Send an answer that another protocol wrote."""
        now_ms = self._channel.connection.hub.clock.now_ms()
        self.deliver(name, to_properties(record, now_ms), record.value or b"")

    def deliver(self, routing_key: str, properties: Properties, body: bytes) -> None:
        """Send an answer."""
        channel = self._channel
        if not channel.connection.is_writable:
            return
        method = make_method(
            commands.Basic.Deliver,
            consumer_tag=self.tag,
            delivery_tag=channel.consuming.take_tag(),
            redelivered=False,
            exchange="",
            routing_key=routing_key,
        )
        channel.send_content(method, encode_properties(properties), body)


def named_reply(channel: Channel, properties: Properties) -> None:
    """Replace `reply_to` of a request by the channel's name. Raises AmqpError."""
    if properties.reply_to != REPLY_TO:
        return
    if channel.replies is None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "fast reply consumer does not exist")
    properties.reply_to = channel.replies.name
