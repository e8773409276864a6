"""One channel: its methods in order, the contents of publishes, its deliveries and its end.

Rules:
- A method whose work has to wait holds the channel: later frames on the channel wait, bounded in
  bytes. They also wait while the peer does not read its answers.
- A method that looks at queues or bindings, or ends the channel, waits until earlier publishes are
  in their queues. A method that looks into a queue also waits for the dead letters that are being
  written to it. So the methods of one channel take effect in their order.
- A publish is its method, a content header and the body frames; anything else between is an
  UNEXPECTED_FRAME (4.2.6). A body is bounded before it is collected.
- A soft error closes the channel: everything the peer sends on it is ignored until its close-ok.
  Messages that were not acknowledged go back to their queues, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from onelog.base.errors import OnelogError
from onelog.kernel import ChannelEnd
from onelog.protocols.amqp import frames
from onelog.protocols.amqp.consuming import Consuming
from onelog.protocols.amqp.errors import BUG, AmqpError, Reply, amqp_error
from onelog.protocols.amqp.frames import Ack, ContentHead, Event, Frame, Publish
from onelog.protocols.amqp.handlers import AFTER_PUBLISHES, HANDLERS, Work, letters_before
from onelog.protocols.amqp.publishing import Publishing
from onelog.protocols.amqp.reading import ROWS_PER_PASS
from onelog.protocols.amqp.replies import ReplyConsumer
from onelog.protocols.amqp.transactions import Transaction

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection
    from onelog.queues.vhosts import VirtualHost


_LINE_ENDS: Final = frozenset("\r\n")
_CLOSE: Final = commands.Channel.Close.index.to_bytes(4, "big")
BODIES_MAX: Final = 8
"""How many bodies of the largest size may be incomplete on all channels of a connection
together."""
_EVENT_BYTES: Final = 256
"""Memory of a waiting frame beside its bytes."""


class Channel(ChannelEnd):
    """A conversation inside a connection."""

    publishing: Publishing
    consuming: Consuming
    transaction: Transaction | None
    _waiting: deque[Event]

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.publishing = Publishing(self)
        self.consuming = Consuming(self)
        self.replies: ReplyConsumer | None = None
        """Set while the channel waits for answers (direct reply-to)."""
        self.transaction = None
        self.last_queue = ""
        """The queue that an empty name means: the last one declared here."""
        self._closing = False
        self._busy = False
        self._idle: asyncio.Event | None = None
        self._waiting = deque()
        self._waiting_bytes = 0
        self._is_due = False
        """Whether the next pass of the loop takes more waiting frames."""
        self._publish = None
        self._head: ContentHead | None = None
        self._body = bytearray()
        self._body_left = 0
        connection.hub.counters.channels_opened += 1

    @property
    def vhost(self) -> VirtualHost:
        """The virtual host of its names."""
        vhost = self.connection.vhost
        assert vhost is not None, "a channel needs an open connection"
        return vhost

    # -- frames

    def take(self, event: Event) -> None:
        """Take an event of this channel, now or when its turn comes."""
        if self._busy or self._waiting or self.connection.is_stuffed:
            if isinstance(event, Frame):
                # The buffer belongs to the connection: a frame that waits needs its own bytes.
                event = Frame(event.kind, event.channel, memoryview(bytes(event.payload)))
            if not self._waiting:
                self.connection.input.forget()  # the next events wait for their turn
            self._waiting.append(event)
            self._waits(event.size_bytes + _EVENT_BYTES)
            return
        self._take(event)

    def _waits(self, size_bytes: int) -> None:
        self._waiting_bytes += size_bytes
        self.connection.waiting.add(size_bytes)

    def _take(self, event: Event) -> None:
        method: Any = None
        try:
            if isinstance(event, Publish):
                method = event
                self._take_publish(event)
            elif isinstance(event, Ack):
                method = event
                self._take_ack(event)
            elif event.kind == frames.METHOD:
                method = frames.decode_method(event.payload)
                self._take_method(method)
            elif not self._closing:
                self._take_content(event)
        except OnelogError as error:
            self.fail(amqp_error(error), method)

    def _take_publish(self, publish: Publish) -> None:
        if self._closing:
            return
        if self._publish is not None:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "a publish where a content was expected")
        self._check_size(len(publish.body))
        work = self.publishing.publish(publish, publish.properties, publish.body)
        if work is not None:
            self._hold(work, publish)

    def _take_ack(self, ack: Ack) -> None:
        if self._closing:
            return
        if self._publish is not None:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "an ack where a content was expected")
        work = HANDLERS[commands.Basic.Ack](self, ack)
        if work is not None:
            self._hold(work, ack)

    def _take_content(self, frame: Frame) -> None:
        if frame.kind == frames.HEADER:
            self._take_head(frame)
        else:
            self._take_body(frame)

    def _take_method(self, method: Any) -> None:
        if isinstance(method, commands.Channel.CloseOk):
            self.connection.forget_channel(self.number)
            return
        if self._closing:
            if isinstance(method, commands.Channel.Close):
                self._close()
            return
        if self._publish is not None:
            raise AmqpError(Reply.UNEXPECTED_FRAME, f"{method.name} where a content was expected")
        if isinstance(method, commands.Basic.Publish):
            self._publish = method
            self.connection.input.forget()  # until the body is complete, nothing else is published
            return
        if method.name.startswith(("Queue.", "Exchange.")):
            _strip_names(method)
        if type(method) in AFTER_PUBLISHES:
            waiting = self.publishing.written() or letters_before(self, method)
            if waiting is not None:
                self._hold(self._handle_later(waiting, method), method)
                return
        work = self._handle(method)
        if work is not None:
            self._hold(work, method)

    def _handle(self, method: Any) -> Work:
        if isinstance(method, commands.Channel.Close):
            self._close()
            return None
        handler = HANDLERS.get(type(method))
        if handler is None:
            raise AmqpError(Reply.COMMAND_INVALID, f"{method.name} is not for a server")
        return handler(self, method)

    async def _handle_later(self, waiting: Awaitable[None], method: Any) -> None:
        await waiting
        letters = letters_before(self, method)
        if letters is not None:
            await letters
        if not self._closing:
            work = self._handle(method)
            if work is not None:
                await work

    def _close(self) -> None:
        self.lost()
        self.send(commands.Channel.CloseOk())
        self.connection.forget_channel(self.number)

    def _hold(self, work: Coroutine[Any, Any, None], method: Any) -> None:
        self._busy = True
        self.connection.input.forget()  # the next events wait for their turn

        async def finish() -> None:
            try:
                await work
            except OnelogError as error:
                self.fail(amqp_error(error), method)
            except Exception as error:  # noqa: BLE001 - a bug ends one connection
                self.connection.hub.broker.troubles.note(BUG, method.name, error)
                self.connection.fail(AmqpError(Reply.INTERNAL_ERROR, str(error)), method)
            finally:
                self._busy = False
            self.go_on()

        task = self.connection.run(finish())
        task.add_done_callback(lambda _task: work.close())  # it may be cancelled before it began

    async def quiet(self) -> None:
        """Return when all events are handled and all publishes are in their queues."""
        while not self._closing:
            waiting = self.publishing.written()
            if self._busy or self._waiting:
                self._idle = asyncio.Event()
                await self._idle.wait()
            elif waiting is not None:
                await waiting
            else:
                return

    def go_on(self) -> None:
        """Take events that waited for their turn, or for the peer to read."""
        if self._is_due:
            return  # in the next pass
        left = ROWS_PER_PASS
        while self._waiting and not self._busy and not self.connection.is_stuffed:
            if not left:
                self._is_due = True
                self.connection.hub.loop.call_soon(self._go_on_now)
                break
            left -= 1
            event = self._waiting.popleft()
            self._waits(-event.size_bytes - _EVENT_BYTES)
            self._take(event)
        if self._waiting:
            self.connection.input.forget()
        elif not self._busy and self._idle is not None:
            self._idle.set()

    def _go_on_now(self) -> None:
        """Other connections had their turn."""
        self._is_due = False
        self.go_on()

    # -- contents

    def _take_head(self, frame: Frame) -> None:
        if self._publish is None or self._head is not None:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "a content header without a publish")
        head = frames.decode_content_head(frame.payload)
        self._check_size(head.body_bytes)
        self._head, self._body_left = head, head.body_bytes
        if not head.body_bytes:
            self._content_done(b"")

    def _check_size(self, body_bytes: int) -> None:
        limit = self.connection.hub.limits.message_bytes
        if body_bytes > limit:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"message size {body_bytes} is larger than configured max size {limit}",
            )

    def _take_body(self, frame: Frame) -> None:
        if self._head is None or len(frame.payload) > self._body_left:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "a content body that no header announced")
        self._body_left -= len(frame.payload)
        if not self._body_left and not self._body:
            self._content_done(bytes(frame.payload))
            return
        self._body += frame.payload
        self._bound_bodies(len(frame.payload))
        if not self._body_left:
            self._content_done(bytes(self._body))

    def _content_done(self, body: bytes) -> None:
        method, head = self._publish, self._head
        assert head is not None
        self._forget_content()
        work = self.publishing.publish(method, head.properties, body)
        if work is not None:
            self._hold(work, method)

    def _forget_content(self) -> None:
        self.connection.body_bytes -= len(self._body)
        self._publish, self._head, self._body = None, None, bytearray()

    def _bound_bodies(self, more_bytes: int) -> None:
        """A peer that begins a body on every channel and ends none must not fill the memory.

        Reading no more would not help: the ends of the bodies come the same way.
        """
        connection = self.connection
        connection.body_bytes += more_bytes
        limit = BODIES_MAX * connection.hub.limits.message_bytes
        if connection.body_bytes > limit:
            raise AmqpError(
                Reply.RESOURCE_ERROR, f"bodies that are not complete have more than {limit} bytes"
            )

    # -- sending

    def send(self, method: Any) -> None:
        """Send a method on this channel."""
        self.connection.send(self.number, method)

    def send_content(self, method: Any, properties: bytes, body: bytes | memoryview) -> None:
        """Send a method with its content."""
        pieces: list[bytes | memoryview] = [frames.encode_method(self.number, method)]
        pieces += frames.encode_content(
            self.number, properties, body, self.connection.frame_bytes_max
        )
        self.connection.write(pieces)

    def may_deliver(self) -> None:
        """The peer reads again: consumers may be sent more messages."""
        self.consuming.may_deliver()

    # -- the end

    def fail(self, error: AmqpError, method: Any = None) -> None:
        """Close the channel, or with a hard error the connection."""
        if error.hard:
            self.connection.fail(error, method)
            return
        if self._closing:
            return
        self.connection.hub.counters.channel_errors += 1
        is_crossed = any(map(_is_close, self._waiting))
        self.lost()
        index = method.index if method is not None else 0
        self.send(
            commands.Channel.Close(
                reply_code=int(error.code),
                reply_text=error.reply_text,
                class_id=index >> 16,
                method_id=index & 0xFFFF,
            )
        )
        if is_crossed:  # the peer closed it before it knew: both closes are answered
            self._close()

    def lost(self) -> None:
        """The channel is over: its unacknowledged messages go back, and it accepts nothing more.
        Idempotent."""
        if self._closing:
            return
        self._closing = True
        self.connection.input.forget()
        self.connection.hub.counters.channels_closed += 1
        self._waiting.clear()
        self._waits(-self._waiting_bytes)
        self._forget_content()
        if self.transaction is not None:
            self.transaction.rollback()
            self.transaction = None
        self.consuming.close()
        self.publishing.close()
        self.stop_replies()

    def stop_replies(self) -> None:
        """Stop waiting for answers."""
        if self.replies is not None:
            self.vhost.replies.remove(self.replies)
            self.replies = None


def _is_close(event: Event) -> bool:
    return isinstance(event, Frame) and event.kind == frames.METHOD and event.payload[:4] == _CLOSE


def _strip_names(method: Any) -> None:
    """Remove line ends from names, as RabbitMQ does: the names often come from files."""
    for field in ("queue", "exchange", "source", "destination"):
        name = getattr(method, field, None)
        if name and not _LINE_ENDS.isdisjoint(name):
            setattr(method, field, name.replace("\r", "").replace("\n", ""))
