"""Publishing on a channel: checks, one write, returns, confirms.

Rules:
- A message is written once, to the topic of its exchange and key (I1), whether a queue takes it
  or not; only what the default exchange would send to a queue that is not there is dropped.
- `mandatory` without a queue is returned, before its confirm. A confirm says that the message is
  durable (I4); a nack that a queue refused it (`x-overflow: reject-publish`) or it was not written.
- Where the disk is full or a quota is used up, publishes wait, and their publisher is blocked.
- Confirms count publishes of the channel from 1, and go out in their order, many in one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from onelog.base.errors import OnelogError, QuotaExceeded, StorageFull
from onelog.broker import Message, Published
from onelog.protocols.amqp.addresses import message_topic, topic_named
from onelog.protocols.amqp.errors import AmqpError, Reply, amqp_error
from onelog.protocols.amqp.frames import make_method
from onelog.protocols.amqp.mapping import to_message
from onelog.protocols.amqp.properties import (
    Properties,
    decode_properties,
    encode_properties,
)
from onelog.protocols.amqp.replies import PREFIX, named_reply
from onelog.protocols.amqp.tables import change_table

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.protocols.amqp.vhosts import VirtualHost

_ACK, _NACK = 1, 2
_PASSING: Final = (StorageFull, QuotaExceeded)
"""Errors that a publisher waits out."""
RETRY_S: Final = 1.0
_EXPIRATION_DIGITS_MAX: Final = 10


class Outgoing:
    """A publish that was checked: what is written, and what the publisher is told."""

    __slots__ = ("message", "returned")

    def __init__(self, message: Message | None, returned: Any) -> None:
        self.message = message
        self.returned = returned
        """The return of a mandatory message that no queue takes: method, properties, body."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        body = self.message.value if self.message is not None else None
        return len(body or b"") + (len(self.returned[2]) if self.returned else 0)


class Publishing:
    """The publishes of one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.confirms = False
        self._next_tag = 1
        self._outcomes: deque[int] = deque()
        """Per publish that is not confirmed yet, in order: how it went; 0: not known."""
        self._first_tag = 1
        self._confirming = False
        self._closed = False
        self.published = 0
        self._unwritten = 0
        self._delayed: deque[tuple[Message, int]] = deque()
        """Publishes that wait for room on the disk or in a quota, in order."""
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def confirmed(self) -> int:
        """Publishes that were confirmed."""
        return self._first_tag - 1

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their confirm."""
        return len(self._outcomes)

    def written(self) -> Awaitable[None] | None:
        """What to wait for until every publish so far is in its queues; None: nothing."""
        if not self._unwritten:
            return None
        future: asyncio.Future[None] = self._channel.connection.hub.loop.create_future()
        self._waiters.append(future)
        return future

    def _one_written(self) -> None:
        self._unwritten -= 1
        if not self._unwritten:
            waiters, self._waiters = self._waiters, []
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    def select_confirms(self) -> None:
        """confirm.select."""
        self.confirms = True

    def publish(
        self, method: Any, properties: bytes, body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        """One publish; a coroutine when it has to wait for something."""
        channel = self._channel
        found = decode_properties(properties)
        lead_to_topic(method, channel.vhost.name)
        exchange = channel.vhost.exchange_to_publish(method)
        principal = channel.connection.principal
        assert principal is not None
        check_properties(found, channel.connection.login_name, principal.name)
        if method.immediate:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "immediate=true")
        named_reply(channel, found)
        if not exchange and method.routing_key.startswith(PREFIX):
            self._answer(method, found, body)
            return None
        waiting = channel.vhost.streams.make_ready(exchange)
        if waiting is not None:
            return self._publish_later(waiting, method, found, body)
        self._publish_now(method, found, body)
        return None

    def _answer(self, method: Any, found: Properties, body: bytes) -> None:
        """An answer goes straight to who asked (direct reply-to), or back."""
        consumer = self._channel.vhost.replies.find(method.routing_key)
        if consumer is not None:
            consumer.deliver(method.routing_key, found, body)
        returned = (method, found, body) if consumer is None and method.mandatory else None
        self.send(Outgoing(None, returned))

    async def _publish_later(
        self, waiting: Coroutine[Any, Any, None], method: Any, found: Properties, body: bytes
    ) -> None:
        await waiting
        self._publish_now(method, found, body)

    def _publish_now(self, method: Any, found: Properties, body: bytes) -> None:
        outgoing = prepare(self._channel.vhost, method, found, body)
        transaction = self._channel.transaction
        if transaction is not None:
            transaction.add_publish(outgoing)
        else:
            self.send(outgoing)

    # -- writing and confirming

    def send(self, outgoing: Outgoing) -> None:
        """Write a publish, return it if it has to be, and confirm it when it is durable."""
        self.send_return(outgoing)
        number = self._begin_confirm() if self.confirms else 0
        channel = self._channel
        self.published += 1
        channel.connection.hub.counters.published += 1
        if outgoing.message is None:
            channel.connection.hub.counters.dropped += outgoing.returned is None
            self._outcome(number, _ACK)
            return
        self._unwritten += 1
        if self._delayed:
            self._delayed.append((outgoing.message, number))  # those before it wait, too
        else:
            self._write(outgoing.message, number)

    def _write(self, message: Message, number: int) -> None:
        def done(published: list[Published] | None, error: OnelogError | None) -> None:
            if isinstance(error, _PASSING):
                self._delay(message, number, error)
            else:
                self._written(number, published, error)

        connection = self._channel.connection
        assert connection.principal is not None
        try:
            connection.hub.broker.publisher.publish_soon(
                [message], done, principal=connection.principal
            )
        except _PASSING as error:
            self._delay(message, number, error)
        except OnelogError:
            self._one_written()
            self._outcome(number, _NACK)
            raise

    # -- no room

    def _delay(self, message: Message, number: int, error: OnelogError) -> None:
        """There is no room now: the publisher is blocked, and its message tried again later."""
        if self._closed:
            self._one_written()
            return
        if not self._delayed:
            self._channel.connection.hub.loop.call_later(RETRY_S, self._try_again)
        self._delayed.append((message, number))
        self._channel.connection.block(str(error))

    def _try_again(self) -> None:
        delayed, self._delayed = self._delayed, deque()
        for message, number in delayed:
            if self._closed:
                self._one_written()
            elif self._delayed:
                self._delayed.append((message, number))
            else:
                self._write_again(message, number)
        if not self._delayed:
            # Whether there is room is known when they are written.
            self._channel.connection.hub.loop.call_later(RETRY_S, self._unblock)

    def _write_again(self, message: Message, number: int) -> None:
        try:
            self._write(message, number)
        except OnelogError as error:
            self._channel.fail(amqp_error(error))

    def _unblock(self) -> None:
        if not self._delayed:
            self._channel.connection.unblock()

    def send_return(self, outgoing: Outgoing) -> None:
        """Give a mandatory message back that no queue takes."""
        if outgoing.returned is None:
            return
        self._channel.connection.hub.counters.returned += 1
        method, properties, body = outgoing.returned
        self._channel.send_content(
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

    def _begin_confirm(self) -> int:
        number = self._next_tag
        self._next_tag += 1
        self._outcomes.append(0)
        return number

    def _written(
        self, number: int, published: list[Published] | None, error: OnelogError | None
    ) -> None:
        if error is not None or published is None:
            self._one_written()
            self._outcome(number, _NACK)
        else:
            # The queues take it in this pass, too; one of them may refuse it.
            hub = self._channel.connection.hub
            hub.loop.call_soon(self._took, number, published[0])

    def _took(self, number: int, published: Published) -> None:
        refused = self._channel.connection.hub.take_refusal(published)
        self._one_written()
        self._outcome(number, _NACK if refused else _ACK)

    def _outcome(self, number: int, outcome: int) -> None:
        if not number or self._closed:
            return
        self._outcomes[number - self._first_tag] = outcome
        if not self._confirming:
            self._confirming = True
            self._channel.connection.hub.loop.call_soon(self._confirm)

    def _confirm(self) -> None:
        """Tell what is known, from the oldest on, in as few methods as possible."""
        self._confirming = False
        outcomes = self._outcomes
        while outcomes and outcomes[0] and not self._closed:
            outcome, count = outcomes[0], 0
            while outcomes and outcomes[0] == outcome:
                outcomes.popleft()
                count += 1
            self._first_tag += count
            self._channel.connection.hub.counters.confirmed += count
            kind = commands.Basic.Ack if outcome == _ACK else commands.Basic.Nack
            self._channel.send(kind(delivery_tag=self._first_tag - 1, multiple=count > 1))

    def close(self) -> None:
        """The channel is over; nobody is told any more."""
        self._closed = True
        self._outcomes.clear()


def prepare(vhost: VirtualHost, method: Any, found: Properties, body: bytes) -> Outgoing:
    """What is written of a publish, and whether it is returned."""
    table = found.table()
    extra = _extra_keys(table)
    if "BCC" in table:
        table = {name: value for name, value in table.items() if name != "BCC"}
        found.headers = change_table(found.headers, {}, ("BCC",))
    queues = vhost.router.route(method.exchange, method.routing_key, table)
    for key in extra:
        queues |= vhost.router.route(method.exchange, key, table)
    returned = None
    if method.mandatory and not queues:
        returned = (method, found, body)
    topic = message_topic(vhost.name, method.exchange, method.routing_key)
    if not method.exchange and not queues:
        return Outgoing(None, returned)  # nobody could ever read it
    if found.expiration is not None:
        vhost.hub.saw_expiry = True
    now_ms = vhost.hub.clock.now_ms()
    return Outgoing(to_message(topic, found, body, now_ms, table, extra), returned)


def lead_to_topic(method: Any, vhost: str) -> None:
    """Send an answer to the topic that its key names, where no queue could have that name."""
    address = topic_named(vhost, method.exchange, method.routing_key)
    if address is not None:
        method.exchange, method.routing_key = address.exchange, address.routing_key
        method.mandatory = False  # who waits for it may be no queue


def check_properties(found: Properties, name: str, user: str) -> None:
    """Refuse properties that say what cannot be; a login has the name it gave and the user's."""
    if found.user_id is not None and found.user_id not in (name, user):
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"user_id property set to '{found.user_id}' but authenticated user was '{name}'",
        )
    text = found.expiration
    if text is not None and (not text.isdigit() or len(text) > _EXPIRATION_DIGITS_MAX):
        raise AmqpError(Reply.PRECONDITION_FAILED, f"invalid expiration '{text}'")


def _extra_keys(table: dict[str, Any]) -> tuple[str, ...]:
    """Routing keys beside the first: the headers CC and BCC."""
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
