"""What a channel consumes: its consumers, prefetch, deliveries and their acknowledgement.

Rules:
- Delivery tags count from 1 per channel. An acknowledgement of a tag that is not outstanding is
  PRECONDITION_FAILED; 0 with `multiple` means all outstanding ones, even if there are none.
- `basic.qos` with global=false counts for each later consumer alone. With global=true it counts for
  the whole channel, at once, and the queues share it in turn (`queues/turns.py`). Messages of a
  consumer without acknowledgements do not count, but such a consumer waits while the channel's
  prefetch is used up.
- When the channel ends, its unacknowledged messages go back to their queues, in order.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from onelog.kernel import ConsumingEnd
from onelog.protocols.amqp import deliveries
from onelog.protocols.amqp.consumer import ChannelConsumer
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.protocols.amqp.frames import make_method
from onelog.protocols.amqp.held import HeldRuns, UnsettledRun
from onelog.queues.consumers import Delivery
from onelog.queues.queue import Queue
from onelog.queues.turns import Turns
from onelog.security.quotas.entities import Limit
from onelog.security.quotas.seat import CountExceeded

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.protocols.amqp.connection import Connection

_NO_BOUND: Final = 1 << 30


class Consuming(ConsumingEnd):
    """The consumers of one channel."""

    connection: Connection
    _held: HeldRuns
    _late: asyncio.TimerHandle | None

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        """Deleted when the channel is over: a commit that still settles messages needs only the
        connection."""
        self.connection = channel.connection
        self.number = channel.number
        self.consumers: dict[str, ChannelConsumer] = {}
        self._held = HeldRuns()
        self.next_tag = 1
        self._prefetch = 0
        self._channel_prefetch = 0
        self._is_flowing = True
        self._counted = 0
        self._aside = 0
        self._is_closed = False
        self._late = None
        self._turns = Turns(channel.connection.hub.loop)

    @property
    def unacked(self) -> int:
        """Messages that were sent and are not acknowledged."""
        return self._held.size

    @property
    def delivered(self) -> int:
        """Messages that were sent so far."""
        return self.next_tag - 1

    @property
    def prefetch(self) -> int:
        """How many messages the next consumer may hold."""
        return self._prefetch

    @property
    def channel_prefetch(self) -> int:
        """How many messages all its consumers may hold together; 0: no bound."""
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
        """How many messages that need an acknowledgement may be sent on this channel now."""
        return self.room_for(None, no_ack=False)

    def room_for(self, queue: Queue | None, *, no_ack: bool) -> int:
        """How many messages of a queue may be sent to one of its consumers here now.

        None: the room for a queue that has its turn.
        """
        connection = self.connection
        if not connection.is_writable or not self._is_flowing:
            return 0
        room = connection.unacked_max - self._held.size - self._aside
        if self._channel_prefetch:
            room = min(room, self._channel_prefetch - self._counted)
        if no_ack and room > 0:
            room = _NO_BOUND  # they do not count, but wait while the prefetch is used up
        if queue is not None and self._turns.is_due:
            room = self._turns.room(queue, room, self.delivered)
        return room

    def may_deliver(self) -> None:
        """There may be room again."""
        self._turns.begin(self)

    # -- consumers

    def consume(self, queue: Queue, method: Any) -> str:
        """basic.consume. Returns the consumer's tag."""
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if tag in self.consumers:
            raise AmqpError(Reply.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        arguments = dict(method.arguments or {})
        priority = arguments.get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise AmqpError(
                Reply.PRECONDITION_FAILED, f"invalid arg 'x-priority' for consumer '{tag}'"
            )
        consumer = self.connection.hub.new_consumer(
            self,
            tag,
            queue,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            prefetch=self._prefetch,
            priority=priority,
            arguments=arguments,
        )
        self._count(1, tag)
        try:
            queue.add_consumer(consumer)
        except BaseException:
            self._count(-1)
            raise
        self.consumers[tag] = consumer
        self._turns.add(queue)
        return str(tag)

    def _count(self, more: int, tag: str = "") -> None:
        """Count consumers in the quotas of the user, or such that are gone."""
        seat = self.connection.seat
        if seat is None:
            return
        if more < 0:
            seat.keep(Limit.SUBSCRIPTIONS, more)
            return
        try:
            seat.take(Limit.SUBSCRIPTIONS, more)
        except CountExceeded as error:
            raise AmqpError(
                Reply.NOT_ALLOWED,
                f"consumer limit ({error.most}) is reached, so '{tag}' is refused",
            ) from None

    def cancel(self, tag: str) -> None:
        """basic.cancel: the channel keeps the consumer's unacknowledged messages."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self._count(-1)
            self._turns.remove(consumer.queue)
            consumer.queue.remove_consumer(consumer)

    def queue_gone(self, consumer: ChannelConsumer) -> None:
        """A queue was deleted: send basic.cancel to a client that understands it."""
        if self.consumers.get(consumer.tag) is not consumer:
            return  # it was cancelled meanwhile
        del self.consumers[consumer.tag]
        self._count(-1)
        self._turns.remove(consumer.queue)
        if self.connection.is_able("consumer_cancel_notify"):
            self.channel.send(commands.Basic.Cancel(consumer_tag=consumer.tag, nowait=True))

    # -- deliveries

    def _send(self, method: Any, delivery: Delivery) -> None:
        body = delivery.record.value or b""
        connection = self.connection
        properties = deliveries.properties(
            delivery, connection.hub.clock.now_ms(), connection.frame_bytes_max
        )
        self.channel.send_content(method, properties, body)

    def hold(
        self, tag: int, count: int, queue: Queue, place: int, consumer: ChannelConsumer | None
    ) -> None:
        """Hold messages that went out and are to be acknowledged."""
        loop = self.connection.hub.loop
        self._held.add(UnsettledRun(tag, count, queue, place, consumer, loop.time()))
        if consumer is not None:
            consumer.unacked += count
            self._counted += count
        if self._late is None:
            self.watch_late()

    def watch_late(self) -> None:
        """Look after a while whether the oldest message is acknowledged."""
        hub = self.connection.hub
        timeout_s = hub.limits.ack_timeout_ms / 1000
        self._late = hub.loop.call_later(timeout_s, self._check_late)

    def _check_late(self) -> None:
        """Close the channel if its oldest message was not acknowledged in time."""
        self._late = None
        oldest = self._held.oldest
        if oldest is None:
            return
        hub = self.connection.hub
        timeout_ms = hub.limits.ack_timeout_ms
        left_s = oldest.since + timeout_ms / 1000 - hub.loop.time()
        if left_s > 0:
            self._late = hub.loop.call_later(left_s, self._check_late)
            return
        self.channel.fail(
            AmqpError(
                Reply.PRECONDITION_FAILED,
                f"delivery acknowledgement on channel {self.channel.number} timed out. Timeout"
                f" value used: {timeout_ms} ms",
            )
        )

    def get(self, queue: Queue, *, no_ack: bool) -> None:
        """basic.get. Raises AmqpError when the channel holds too much; or Cold."""
        limit = self.connection.unacked_max
        if not no_ack and self._held.size + self._aside >= limit:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"a channel holds at most {limit} messages that are not acknowledged",
            )
        delivery = queue.get()
        if delivery is None:
            self.channel.send(commands.Basic.GetEmpty())
            return
        tag = self.take_tag()
        if not no_ack:
            self.hold(tag, 1, queue, delivery.place, None)
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
        traces, record = self.connection.hub.broker.traces, delivery.record
        if traces is not None:
            about = {"messaging.onelog.queue": queue.name}
            traces.delivered("amqp", record.topic, record.headers, traces.now_ns(), about)
        if no_ack:
            queue.got_no_ack += 1
            queue.ack(delivery.place)

    def take_tag(self) -> int:
        """The next delivery tag."""
        tag = self.next_tag
        self.next_tag += 1
        return tag

    # -- acknowledgements

    def take(self, tag: int, *, multiple: bool) -> list[UnsettledRun]:
        """Remove and return the runs that an acknowledgement covers. Raises AmqpError."""
        try:
            if not multiple:
                return [self._held.take(tag)]
            return self._held.take_upto(tag) if tag else self._held.take_all()
        except KeyError:
            raise _unknown_tag(tag) from None

    def take_plain_ack(self, tag: int, *, multiple: bool) -> bool:
        """basic.ack of one whole run, the common case. Returns False when it is not that."""
        run = self._held.take_oldest(tag, multiple=multiple)
        if run is None:
            return False
        self.ack([run])
        return True

    def ack(self, runs: list[UnsettledRun]) -> None:
        """Settle these messages."""
        count = 0
        for run in runs:
            self._let_go(run)
            count += run.count
            if not run.queue.is_deleted:
                run.queue.ack_run(run.place, run.count)
        self._room_made(count)

    def _let_go(self, run: UnsettledRun) -> None:
        if run.consumer is not None:
            run.consumer.unacked -= run.count
            self._counted -= run.count

    def reject(self, runs: list[UnsettledRun], *, requeue: bool) -> None:
        """The client rejects these messages, for itself (requeue) or for everybody."""
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
        """basic.recover(requeue=true): deliver all unacknowledged messages again."""
        self.reject(self._held.take_all(), requeue=True)

    # -- acknowledgements that wait for a commit

    def set_aside(self, runs: list[UnsettledRun]) -> None:
        """A transaction settles these or gives them back: until then they count for the
        prefetch."""
        self._aside += sum(run.count for run in runs)

    def take_aside(self, runs: list[UnsettledRun]) -> None:
        """The transaction is over for these messages."""
        self._aside -= sum(run.count for run in runs)

    def hold_again(self, runs: list[UnsettledRun]) -> None:
        """Hold them as before. A channel that is over holds nothing."""
        if self._is_closed:
            self.reject(runs, requeue=True)
        else:
            self._held.put_back(runs)

    def _room_made(self, count: int) -> None:
        """Messages were settled. Their own queues were woken; when all queues waited, wake all."""
        limit = self.connection.unacked_max
        if self._channel_prefetch or self._held.size + self._aside + count >= limit:
            self.may_deliver()

    def close(self) -> None:
        """The channel is over."""
        if self._late is not None:
            self._late.cancel()
        consumers, self.consumers = list(self.consumers.values()), {}
        if consumers:
            self._count(-len(consumers))
        for consumer in consumers:
            self._turns.remove(consumer.queue)
        self._is_closed = True
        # First no consumer of this channel takes more, then its messages go back.
        for consumer in consumers:
            consumer.queue.consumers.remove(consumer)
        self.recover()
        for consumer in consumers:
            if not consumer.queue.is_deleted:
                consumer.queue.remove_consumer(consumer)
        del self.channel  # it refers to us: otherwise both would wait for the cycle collector


def _unknown_tag(tag: int) -> AmqpError:
    return AmqpError(Reply.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
