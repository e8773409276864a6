"""Publishing on a channel: checks, one write, returns, confirms.

Rules:
- A message is written once, to the topic of its exchange and key (I1), whether a queue takes it or
  not. Only a message of the default exchange to a queue that does not exist is dropped.
- A `mandatory` message that no queue takes is returned, before its confirm. An ack says that the
  message is durable (I4); a nack says that a queue refused it (`x-overflow: reject-publish`) or
  that it was not written.
- A message whose partition has no leader, or of which nobody knows whether its leader wrote it, is
  nacked, and without confirms the connection is closed with 320, so that its loss is seen.
- When the disk is full or a quota is used up, publishes wait, and their publisher is blocked.
- Confirms count publishes of the channel from 1, and go out in their order, many in one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from onelog.base.errors import NotLeader, OnelogError, QuotaExceeded, StorageFull, Timeout
from onelog.broker import NOWHERE, Message
from onelog.broker.showing import note_written
from onelog.kernel import AmqpRoute, Confirms, PublishingEnd, PublishRun, Stage
from onelog.protocols.amqp.confirms import ACK, NACK
from onelog.protocols.amqp.errors import AmqpError, Reply, amqp_error
from onelog.protocols.amqp.frames import Publish, frames_of, make_method
from onelog.protocols.amqp.mapping import to_message
from onelog.protocols.amqp.owned import not_led
from onelog.protocols.amqp.permissions import may_look_for
from onelog.protocols.amqp.properties import (
    Properties,
    decode_properties,
    encode_properties,
)
from onelog.protocols.amqp.replies import find_reply_consumer, named_reply
from onelog.queues.addresses import message_topic, topic_named
from onelog.queues.claims import check_further_keys
from onelog.queues.errors import NotDeclared
from onelog.queues.replies import REPLY_PREFIX
from onelog.record.tables import change_table

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.protocols.amqp.connection import Connection
    from onelog.queues.vhosts import VirtualHost

_PASSING: Final = (StorageFull, QuotaExceeded)
"""Errors after which a publish waits and is tried again."""
RETRY_S: Final = 1.0
_EXPIRATION_DIGITS_MAX: Final = 10
_VARYING: Final = ("expiration", "correlation_id", "reply_to", "message_id", "timestamp")
"""Properties that differ from message to message, or that have to be checked."""
ROUTE_BYTES_MAX: Final = 256
"""Longer properties differ from message to message."""


class CheckedPublish:
    """A publish that was checked: the message to write, and the return to send."""

    __slots__ = ("message", "returned")

    def __init__(self, message: Message | None, returned: Any) -> None:
        self.message = message
        self.returned = returned
        """The return of a mandatory message that no queue takes: method, properties, body."""


Again = tuple[bytes, int, int]
"""Publishes as they came: the bytes, and the range in them."""


class Publishing(PublishingEnd):
    """The publishes of one channel."""

    connection: Connection

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        """Deleted when the channel is over: publishes that are being written need only the
        connection."""
        self.connection = channel.connection
        self.unwritten = channel.connection.unwritten
        self.turn = channel.connection.hub.publishes
        self.number = channel.number
        self._vhost = channel.vhost
        self.confirms = False
        self._confirms = Confirms()
        self._confirming = False
        self._closed = False
        self.published = 0
        self._unwritten = 0
        self._delayed: deque[tuple[Message, PublishRun]] = deque()
        """Publishes that wait for room on the disk or in a quota, in order."""
        self._waiters = []

    @property
    def confirmed(self) -> int:
        """Publishes that were confirmed."""
        return self._confirms.first_tag - 1

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their confirm."""
        return self._confirms.unconfirmed

    def written(self) -> Awaitable[None] | None:
        """Wait for this until every publish so far is in its queues; None: they all are."""
        if not self._unwritten:
            return None
        future: asyncio.Future[None] = self.connection.hub.loop.create_future()
        self._waiters.append(future)
        return future

    def select_confirms(self) -> None:
        """confirm.select."""
        self.confirms = True

    def publish(
        self, method: Any, properties: bytes, body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        """Handle one publish. Returns a coroutine when it has to wait."""
        channel = self.channel
        self._pace(1, len(properties) + len(body))
        found = decode_properties(properties)
        is_led = lead_to_topic(method, channel.vhost.name)
        try:
            exchange = channel.vhost.exchange_to_publish(method.exchange)
        except NotDeclared:
            may_look_for(channel, method.exchange, method.routing_key)
            raise
        principal = channel.connection.principal
        assert principal is not None
        check_properties(found, channel.connection.login_name, principal.name)
        if method.immediate:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "immediate=true")
        named_reply(channel, found)
        if not exchange and method.routing_key.startswith(REPLY_PREFIX):
            self._answer(method, found, body)
            return None
        if channel.transaction is not None:
            self.check_keys(exchange, found)  # an error is reported now, not with the commit
            channel.transaction.add_publish((method, found, body), len(properties) + len(body))
            return None
        if not channel.vhost.streams.is_ready(exchange):
            return self._publish_later(exchange, method, found, body)
        outgoing = self._publish_now(method, found, body)
        if isinstance(method, Publish) and not is_led:
            self._remember(method, properties, found, outgoing)
        return None

    def _remember(
        self, method: Publish, properties: bytes, found: Properties, outgoing: CheckedPublish
    ) -> None:
        """Let the kernel stage publishes like this one, if they need no further check."""
        channel, message = self.channel, outgoing.message
        if message is None or self._delayed:
            return
        if len(properties) > ROUTE_BYTES_MAX or any(
            getattr(found, name) is not None for name in _VARYING
        ):
            return
        if not channel.vhost.is_plain_way(method.exchange, method.routing_key, message.headers):
            return
        connection = channel.connection
        assert connection.principal is not None
        way = connection.hub.broker.publisher.route(message.topic, connection.principal)
        if way is not None:
            limit = min(way[1] - len(properties), connection.hub.limits.message_bytes)
            route = AmqpRoute(message.topic.encode(), way[0], limit, message.headers)
            connection.reading.add_route(method, properties, route)

    def _answer(self, method: Any, found: Properties, body: bytes) -> None:
        """Send an answer straight to the channel that asked (direct reply-to), or return it."""
        consumer = find_reply_consumer(self._vhost, method.routing_key)
        if consumer is not None:
            consumer.deliver(method.routing_key, found, body)
        returned = (method, found, body) if consumer is None and method.mandatory else None
        self.send(CheckedPublish(None, returned))

    async def _publish_later(
        self, exchange: str, method: Any, found: Properties, body: bytes
    ) -> None:
        await self._vhost.streams.make(exchange)
        self._publish_now(method, found, body)

    def check_keys(self, exchange: str, found: Properties) -> None:
        """Refuse further keys (CC, BCC) that are none, or that the publisher has no right for."""
        if found.headers is None or b"CC" not in found.headers:
            return  # almost always: nothing is decoded for it
        connection, keys = self.connection, extra_keys(found.table())
        assert connection.principal is not None
        authorizer = connection.hub.broker.authorizer
        check_further_keys(authorizer, connection.principal, self._vhost.name, exchange, keys)

    def _publish_now(self, method: Any, found: Properties, body: bytes) -> CheckedPublish:
        self.check_keys(method.exchange, found)
        outgoing = prepare(self._vhost, method, found, body)
        if outgoing.message is None and not self._closed:  # no door will ask for the right
            may_look_for(self.channel, method.exchange, method.routing_key)
        self.send(outgoing)
        return outgoing

    # -- writing and confirming

    def staged(self, count: int, stage: Stage, came_as: Again) -> None:
        """The kernel has staged publishes of this channel."""
        run = self._begin(count, came_as)
        self._pace(count, run.size_bytes)
        self._on_its_way(run)
        publisher = self.connection.hub.broker.publisher
        publisher.await_stage(stage, run, count)
        if publisher.is_metered:
            self._charge(count, run.size_bytes)

    def send(self, outgoing: CheckedPublish) -> None:
        """Write a publish, return it if no queue takes it, and confirm it when it is durable."""
        self.send_return(outgoing)
        run = self._begin(1, outgoing.message)
        if outgoing.message is None:
            self.connection.hub.counters.dropped += outgoing.returned is None
            run.outcome = ACK
            self.confirm()
            return
        self._on_its_way(run)
        written, topic = self.connection.written, outgoing.message.topic
        if topic not in written:
            note_written(written, topic)  # once: the kernel takes most of those that follow
        if self._delayed:
            self._delayed.append((outgoing.message, run))  # earlier ones wait, too
        else:
            self._write(outgoing.message, run)

    def _begin(self, count: int, came_as: Message | Again | None) -> PublishRun:
        run = PublishRun(self, count, came_as, _size_of(came_as), [NOWHERE])
        if self.confirms and not self._closed:
            self._confirms.add(run)
        self.published += count
        self.connection.hub.counters.published += count
        return run

    def _pace(self, count: int, size_bytes: int) -> None:
        """Count publishes as they come, also those that wait for a commit or go nowhere."""
        seat = self.connection.seat
        if seat is not None and seat.paces_publish:
            seat.publish(count, size_bytes)

    def _write(self, message: Message, run: PublishRun) -> None:
        connection = self.connection
        assert connection.principal is not None
        try:
            connection.hub.broker.publisher.publish((message,), run, principal=connection.principal)
        except _PASSING as error:
            self.delay(run, message, error)
        except NotLeader as error:
            self.failed(run, error)
        except OnelogError:
            self.written_out(run, NACK)
            self.confirm()
            raise

    def _on_its_way(self, run: PublishRun) -> None:
        self._unwritten += 1
        self.unwritten.add(run.size_bytes)

    def written_out(self, run: PublishRun, outcome: int) -> None:
        """The outcome of a run is known."""
        run.outcome = outcome
        self._unwritten -= 1
        self.unwritten.add(-run.size_bytes)
        if not self._unwritten:
            self.tell_waiters()

    def tell_waiters(self) -> None:
        """Every publish so far is in its queues."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def failed(self, run: PublishRun, error: OnelogError) -> None:
        """The messages of a run could not be written."""
        if isinstance(error, _PASSING) and run.came_as is not None:
            self.delay(run, run.came_as, error)
            return
        self.written_out(run, NACK)
        self.confirm()
        if isinstance(error, NotLeader | Timeout) and not self.confirms and not self._closed:
            self.connection.fail(not_led(self.connection, self._topic_of(run), error))

    def _topic_of(self, run: PublishRun) -> str:
        """The topic of a message that could not be written."""
        came_as = run.came_as
        if isinstance(came_as, Message):
            return came_as.topic
        data, start, end = came_as
        event = next(iter(frames_of(data[start:end])))
        assert isinstance(event, Publish)
        return message_topic(self._vhost.name, event.exchange, event.routing_key)

    def confirm(self) -> None:
        """Send confirms for known outcomes, at the end of this pass."""
        if self.confirms and not self._confirming and not self._closed:
            self._confirming = True
            self.connection.hub.loop.call_soon(self.confirm_now)

    def confirm_now(self) -> None:
        """Send confirms for known outcomes."""
        self._confirming = False
        if self.confirms and not self._closed:
            before = self._confirms.first_tag
            frames = self._confirms.take(self.channel.number)
            if frames:
                told = self._confirms.first_tag - before
                self.connection.hub.counters.confirmed += told
                self.connection.write_one(frames)

    # -- no room

    def _charge(self, count: int, size_bytes: int) -> None:
        """Count publishes that the kernel staged. A publisher that is over its quota is blocked."""
        connection = self.connection
        assert connection.principal is not None
        error = connection.hub.broker.publisher.charge(connection.principal, count, size_bytes)
        if error is not None:
            connection.input.forget()
            if not connection.lacks_room:
                connection.hub.loop.call_later(RETRY_S, self._look_again)
            connection.block(str(error))

    def _look_again(self) -> None:
        """Unblock the publisher if its quota has no debt any more."""
        connection = self.connection
        assert connection.principal is not None
        if self._closed:
            connection.unblock()
        elif connection.hub.broker.publisher.owes(connection.principal) is not None:
            connection.hub.loop.call_later(RETRY_S, self._look_again)
        elif not self._delayed:
            connection.unblock()

    def delay(self, run: PublishRun, came_as: Message | Again, error: OnelogError) -> None:
        """There is no room now: block the publisher, and try its messages again later."""
        if self._closed:
            self.written_out(run, NACK)
            return
        if not self._delayed:
            self.connection.hub.loop.call_later(RETRY_S, self._try_again)
        if isinstance(came_as, Message):
            self._delayed.append((came_as, run))
        else:
            self._delayed += self._apart(run, came_as)
        self.connection.input.forget()
        self.connection.block(str(error))

    def _apart(self, run: PublishRun, came_as: Again) -> list[tuple[Message, PublishRun]]:
        """The messages of a run that the kernel staged, one by one."""
        data, start, end = came_as
        rows, parts = [], []
        for event in frames_of(data[start:end]):
            assert isinstance(event, Publish)
            found = decode_properties(event.properties)
            message = prepare(self._vhost, event, found, event.body).message
            part = PublishRun(self, 1, message, _size_of(message), [NOWHERE])
            parts.append(part)
            if message is None:
                part.outcome = ACK  # its queue is gone meanwhile: nobody could ever read it
            else:
                rows.append((message, part))
                self._on_its_way(part)
        if self.confirms:
            self._confirms.replace(run, parts)
        self.written_out(run, ACK)  # its parts replace it
        return rows

    def _try_again(self) -> None:
        delayed, self._delayed = self._delayed, deque()
        for message, run in delayed:
            if self._closed:
                self.written_out(run, NACK)
            elif self._delayed:
                self._delayed.append((message, run))
            else:
                self._write_again(message, run)
        if not self._delayed:
            # Writing them shows whether there is room.
            self.connection.hub.loop.call_later(RETRY_S, self._unblock)

    def _write_again(self, message: Message, run: PublishRun) -> None:
        try:
            self._write(message, run)
        except OnelogError as error:
            self.channel.fail(amqp_error(error))

    def _unblock(self) -> None:
        if not self._delayed:
            self.connection.unblock()

    def send_return(self, outgoing: CheckedPublish) -> None:
        """Return a mandatory message that no queue takes."""
        if outgoing.returned is None or self._closed:
            return
        self.connection.hub.counters.returned += 1
        method, properties, body = outgoing.returned
        self.channel.send_content(
            make_method(
                commands.Basic.Return,
                reply_code=int(Reply.NO_ROUTE),
                reply_text="NO_ROUTE",
                exchange=method.exchange,
                routing_key=method.routing_key,
            ),
            encode_properties(properties),
            body,
        )

    def close(self) -> None:
        """The channel is over: no confirm is sent any more."""
        self._closed = True
        self._confirms.clear()
        del self.channel  # it refers to us: otherwise both would wait for the cycle collector


def _size_of(came_as: Message | Again | None) -> int:
    if came_as is None:
        return 0
    if isinstance(came_as, Message):
        return len(came_as.value or b"")
    _data, start, end = came_as
    return end - start


def prepare(vhost: VirtualHost, method: Any, found: Properties, body: bytes) -> CheckedPublish:
    """The message to write for a publish, and its return."""
    table = found.table()
    extra = extra_keys(table)
    if "BCC" in table:
        table = {name: value for name, value in table.items() if name != "BCC"}
        found.headers = change_table(found.headers, {}, ("BCC",))
    queues = vhost.router.route(method.exchange, method.routing_key, table, extra)
    returned = None
    if method.mandatory and not queues:
        returned = (method, found, body)
    topic = message_topic(vhost.name, method.exchange, method.routing_key)
    if not queues and (not method.exchange or vhost.router.find(method.exchange) is None):
        return CheckedPublish(None, returned)  # nobody could ever read it
    if found.expiration is not None:
        vhost.hub.saw_expiry = True
    now_ms = vhost.hub.clock.now_ms()
    return CheckedPublish(to_message(topic, found, body, now_ms, table, extra), returned)


def lead_to_topic(method: Any, vhost: str) -> bool:
    """Send an answer to the topic that its key names, if no queue could have that name."""
    address = topic_named(vhost, method.exchange, method.routing_key)
    if address is None:
        return False
    method.exchange, method.routing_key = address.exchange, address.routing_key
    method.mandatory = False  # the receiver may be no queue
    return True


def check_properties(found: Properties, name: str, user: str) -> None:
    """Refuse wrong properties. A `user_id` may be the login name or the user's name."""
    if found.user_id is not None and found.user_id not in (name, user):
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"user_id property set to '{found.user_id}' but authenticated user was '{name}'",
        )
    text = found.expiration
    if text is not None and (not text.isdigit() or len(text) > _EXPIRATION_DIGITS_MAX):
        raise AmqpError(Reply.PRECONDITION_FAILED, f"invalid expiration '{text}'")


def extra_keys(table: dict[str, Any]) -> tuple[str, ...]:
    """Routing keys beside the first, from the headers CC and BCC."""
    found: list[str] = []
    for name in ("CC", "BCC"):
        keys = table.get(name)
        if keys is None:
            continue
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise AmqpError(
                Reply.PRECONDITION_FAILED, f"the header {name} is an array of routing keys"
            )
        found += keys
    return tuple(found)
