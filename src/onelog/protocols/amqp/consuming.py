"""What a channel consumes: its consumers, prefetch, deliveries and their acknowledgement.

Rules:
- Delivery tags count from 1 per channel. An acknowledgement of a tag that is not outstanding is
  PRECONDITION_FAILED; 0 with `multiple` means all there are, also when there are none.
- `basic.qos` with global=false counts for consumers that come later, each for itself; with
  global=true for the whole channel, at once, and its queues share it in turn (`turns.py`). Who
  does not acknowledge counts for nothing, and waits where the channel's prefetch is used up.
- When the channel ends, what it holds goes back to its queues, in order.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from onelog.kernel import encode_deliveries, encode_delivery
from onelog.protocols.amqp import deliveries
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.protocols.amqp.frames import make_method
from onelog.protocols.amqp.held import Held, HeldRuns
from onelog.protocols.amqp.queues.consumers import Consumer, Delivery
from onelog.protocols.amqp.queues.queue import Queue
from onelog.protocols.amqp.queues.ready import OFFSET_MASK
from onelog.protocols.amqp.queues.window import Data
from onelog.protocols.amqp.turns import Turns

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel

_NO_BOUND: Final = 1 << 30
RUN_BYTES: Final = 256 * 1024
"""Bytes of deliveries after which it is seen anew whether the peer keeps up."""


class Consuming:
    """The consumers of one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        """Not there when it is over: what a commit still settles needs the connection only."""
        self._connection = channel.connection
        self.consumers: dict[str, Consumer] = {}
        self._held = HeldRuns()
        self._next_tag = 1
        self._prefetch = 0
        self._channel_prefetch = 0
        self._is_flowing = True
        self._counted = 0
        self._aside = 0
        """Messages whose acknowledgement waits for a commit."""
        self._is_closed = False
        self._late: asyncio.TimerHandle | None = None
        self._turns = Turns(channel.connection.hub.loop)

    @property
    def unacked(self) -> int:
        """Messages that were sent and are not acknowledged."""
        return self._held.size

    @property
    def channel(self) -> Channel:
        """The channel whose consumers these are."""
        return self._channel

    @property
    def delivered(self) -> int:
        """Messages that were ever sent."""
        return self._next_tag - 1

    @property
    def prefetch(self) -> int:
        """What the next consumer may hold."""
        return self._prefetch

    @property
    def channel_prefetch(self) -> int:
        """What all its consumers may hold together; 0: no bound."""
        return self._channel_prefetch

    def set_prefetch(self, count: int, *, whole_channel: bool) -> None:
        """basic.qos."""
        if whole_channel:
            self._channel_prefetch = count
            self.may_deliver()
        else:
            self._prefetch = count

    def set_flow(self, *, active: bool) -> None:
        """channel.flow of the client: whether it wants deliveries."""
        self._is_flowing = active
        if active:
            self.may_deliver()

    @property
    def room(self) -> int:
        """How many messages that are to be acknowledged may be sent on this channel now."""
        return self.room_for(None, no_ack=False)

    def room_for(self, queue: Queue | None, *, no_ack: bool) -> int:
        """How many messages of a queue may be sent to one of its consumers here now.

        None: how many there may be for a queue that has its turn.
        """
        connection = self._connection
        if not connection.is_writable or not self._is_flowing:
            return 0
        room = connection.hub.limits.unacked - self._held.size - self._aside
        if self._channel_prefetch:
            room = min(room, self._channel_prefetch - self._counted)
        if no_ack and room > 0:
            room = _NO_BOUND  # they count for nothing, but wait where the prefetch is used up
        if queue is not None and self._turns.is_due:
            room = self._turns.room(queue, room, self.delivered)
        return room

    def may_deliver(self) -> None:
        """There may be room again."""
        self._turns.begin(self)

    # -- consumers

    def consume(self, queue: Queue, method: Any) -> str:
        """basic.consume; the consumer's tag."""
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if tag in self.consumers:
            raise AmqpError(Reply.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        arguments = dict(method.arguments or {})
        priority = arguments.get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise AmqpError(
                Reply.PRECONDITION_FAILED, f"invalid arg 'x-priority' for consumer '{tag}'"
            )
        consumer = Consumer(
            self,
            tag,
            queue,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            prefetch=self._prefetch,
            priority=priority,
            arguments=arguments,
        )
        queue.add_consumer(consumer)
        self.consumers[tag] = consumer
        self._turns.add(queue)
        return str(tag)

    def cancel(self, tag: str) -> None:
        """basic.cancel: what the consumer holds stays with the channel."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self._turns.remove(consumer.queue)
            consumer.queue.remove_consumer(consumer)

    def queue_gone(self, queue: Queue) -> None:
        """A queue was deleted: its consumers are told, where the client understands that."""
        told = self._connection.is_able("consumer_cancel_notify")
        for tag, consumer in list(self.consumers.items()):
            if consumer.queue is queue:
                del self.consumers[tag]
                self._turns.remove(queue)
                if told:
                    self._channel.send(commands.Basic.Cancel(consumer_tag=tag, nowait=True))

    # -- deliveries

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        """Send a message to a consumer."""
        tag = self._take_tags(1)
        if not consumer.no_ack:
            self._hold(tag, 1, delivery.queue, delivery.place, consumer)
        connection = self._connection
        exchange, key = deliveries.address(delivery.record)
        connection.write(
            [
                encode_delivery(
                    self._channel.number,
                    consumer.wire_tag,
                    tag,
                    delivery.redelivered,
                    exchange,
                    key,
                    deliveries.properties(
                        delivery, connection.hub.clock.now_ms(), connection.frame_bytes_max
                    ),
                    delivery.record.value or b"",
                    connection.frame_bytes_max,
                )
            ]
        )

    def deliver_run(self, consumer: Consumer, place: int, count: int, data: Data) -> int:
        """Send messages that follow each other in `data`, as far as they are plain; how many."""
        connection = self._connection
        offset = place & OFFSET_MASK
        chosen = (
            self._channel.number,
            consumer.wire_tag,
            self._next_tag,
            connection.frame_bytes_max,
            connection.hub.envelopes,
            RUN_BYTES,
        )
        frames, sent = encode_deliveries(data, offset, count, *chosen)
        if not sent:
            envelope = deliveries.envelope(consumer.queue.record_at(place))
            if envelope is None:
                return 0
            connection.hub.envelopes.add(*envelope)
            frames, sent = encode_deliveries(data, offset, count, *chosen)
        if not consumer.no_ack and sent:
            self._hold(self._next_tag, sent, consumer.queue, place, consumer)
        self._next_tag += sent
        connection.write_one(frames)
        return sent

    def _send(self, method: Any, delivery: Delivery) -> None:
        body = delivery.record.value or b""
        connection = self._connection
        properties = deliveries.properties(
            delivery, connection.hub.clock.now_ms(), connection.frame_bytes_max
        )
        self._channel.send_content(method, properties, body)

    def _hold(
        self, tag: int, count: int, queue: Queue, place: int, consumer: Consumer | None
    ) -> None:
        loop = self._connection.hub.loop
        self._held.add(Held(tag, count, queue, place, consumer, loop.time()))
        if consumer is not None:
            consumer.unacked += count
            self._counted += count
        if self._late is None:
            timeout_s = self._connection.hub.limits.ack_timeout_ms / 1000
            self._late = loop.call_later(timeout_s, self._check_late)

    def _check_late(self) -> None:
        """Close the channel if its oldest message was not acknowledged in time."""
        self._late = None
        oldest = self._held.oldest
        if oldest is None:
            return
        hub = self._connection.hub
        timeout_ms = hub.limits.ack_timeout_ms
        left_s = oldest.since + timeout_ms / 1000 - hub.loop.time()
        if left_s > 0:
            self._late = hub.loop.call_later(left_s, self._check_late)
            return
        self._channel.fail(
            AmqpError(
                Reply.PRECONDITION_FAILED,
                f"delivery acknowledgement on channel {self._channel.number} timed out. Timeout"
                f" value used: {timeout_ms} ms",
            )
        )

    def get(self, queue: Queue, *, no_ack: bool) -> None:
        """basic.get. Raises AmqpError when the channel holds too much."""
        limit = self._connection.hub.limits.unacked
        if not no_ack and self._held.size + self._aside >= limit:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"a channel holds at most {limit} messages that are not acknowledged",
            )
        delivery = queue.get()
        if delivery is None:
            self._channel.send(commands.Basic.GetEmpty())
            return
        tag = self._take_tags(1)
        if not no_ack:
            self._hold(tag, 1, delivery.queue, delivery.place, None)
        exchange, key = deliveries.address(delivery.record)
        method = make_method(
            commands.Basic.GetOk,
            delivery_tag=tag,
            redelivered=delivery.redelivered,
            exchange=exchange.decode(errors="ignore"),
            routing_key=key.decode(errors="ignore"),
            message_count=queue.ready.size,
        )
        self._send(method, delivery)
        if no_ack:
            queue.got_no_ack += 1
            queue.ack(delivery.place)

    def take_tag(self) -> int:
        """The next delivery tag."""
        return self._take_tags(1)

    def _take_tags(self, count: int) -> int:
        tag = self._next_tag
        self._next_tag += count
        return tag

    # -- acknowledgements

    def take(self, tag: int, *, multiple: bool) -> list[Held]:
        """What an acknowledgement means: the channel holds it no more. Raises AmqpError."""
        try:
            if not multiple:
                return [self._held.take(tag)]
            return self._held.take_upto(tag) if tag else self._held.take_all()
        except KeyError:
            raise _unknown_tag(tag) from None

    def take_plain_ack(self, tag: int, *, multiple: bool) -> bool:
        """basic.ack of what went out together, the common case; False: it is not that."""
        run = self._held.take_oldest(tag, multiple=multiple)
        if run is None:
            return False
        self.ack([run])
        return True

    def ack(self, runs: list[Held]) -> None:
        """These messages are done with."""
        count = 0
        for run in runs:
            self._let_go(run)
            count += run.count
            if not run.queue.is_deleted:
                run.queue.ack_run(run.place, run.count)
        self._room_made(count)

    def _let_go(self, run: Held) -> None:
        if run.consumer is not None:
            run.consumer.unacked -= run.count
            self._counted -= run.count

    def reject(self, runs: list[Held], *, requeue: bool) -> None:
        """These messages are not wanted, here or at all."""
        count = 0
        by_queue: dict[Queue, list[int]] = {}
        for run in runs:
            self._let_go(run)
            count += run.count
            if not run.queue.is_deleted:
                by_queue.setdefault(run.queue, []).extend(run.places)
        for queue, places in by_queue.items():
            if requeue:
                queue.requeue(places)
            else:
                for place in places:
                    queue.reject(place)
        self._room_made(count)

    def recover(self) -> None:
        """basic.recover(requeue=true): everything unacknowledged comes again."""
        self.reject(self._held.take_all(), requeue=True)

    # -- acknowledgements that wait for a commit

    def set_aside(self, runs: list[Held]) -> None:
        """A transaction settles these, or gives them back: they still count for the prefetch."""
        self._aside += sum(run.count for run in runs)

    def take_aside(self, runs: list[Held]) -> None:
        """The transaction is over for these."""
        self._aside -= sum(run.count for run in runs)

    def hold_again(self, runs: list[Held]) -> None:
        """They are held as before; a channel that is over holds nothing."""
        if self._is_closed:
            self.reject(runs, requeue=True)
        else:
            self._held.put_back(runs)

    def _room_made(self, count: int) -> None:
        """A consumer's own queue was woken; where all of them waited, all are."""
        limit = self._connection.hub.limits.unacked
        if self._channel_prefetch or self._held.size + self._aside + count >= limit:
            self.may_deliver()

    def close(self) -> None:
        """The channel is over."""
        if self._late is not None:
            self._late.cancel()
        consumers, self.consumers = list(self.consumers.values()), {}
        for consumer in consumers:
            self._turns.remove(consumer.queue)
        self._is_closed = True
        # First nobody of this channel takes any more, then what it held goes back.
        for consumer in consumers:
            consumer.queue.consumers.remove(consumer)
        self.recover()
        for consumer in consumers:
            if not consumer.queue.is_deleted:
                consumer.queue.remove_consumer(consumer)
        del self._channel  # it holds us: neither would go before the cycle collector comes


def _unknown_tag(tag: int) -> AmqpError:
    return AmqpError(Reply.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
