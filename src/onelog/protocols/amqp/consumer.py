"""A consumer of a channel: messages that a queue hands out become basic.deliver
(`queues/consumers.py`).

Rules: plain messages that follow each other are one kernel call and one write. The channel holds
messages that are to be acknowledged (`consuming.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from onelog.kernel import AmqpConsumerEnd, encode_deliveries, encode_delivery
from onelog.protocols.amqp import deliveries
from onelog.queues.consumers import Delivery
from onelog.queues.ready import OFFSET_MASK
from onelog.queues.window import Data

if TYPE_CHECKING:
    from onelog.protocols.amqp.consuming import Consuming
    from onelog.queues.queue import Queue

RUN_BYTES: Final = 256 * 1024
"""After so many bytes of deliveries it is checked again whether the peer keeps up."""


class ChannelConsumer(AmqpConsumerEnd):
    """One consumer of a channel."""

    __slots__ = ("arguments", "exclusive", "priority", "tag")

    owner: Consuming
    queue: Queue

    def __init__(
        self,
        owner: Consuming,
        tag: str,
        queue: Queue,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        priority: int,
        arguments: dict[str, Any],
    ) -> None:
        self.owner = owner
        self.tag = tag
        self.wire_tag = tag.encode("utf-8", "surrogateescape")
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.priority = priority
        self.arguments: Mapping[str, Any] = arguments
        self.unacked = 0
        self.is_plain = type(self) is ChannelConsumer  # others do more than send

    @property
    def room(self) -> int:
        """How many messages it may be sent now."""
        room = self.owner.room_for(self.queue, no_ack=self.no_ack)
        if self.no_ack or not self.prefetch:
            return room
        return min(room, self.prefetch - self.unacked)

    @property
    def room_in_turn(self) -> int:
        """How many it may be sent when its queue has its turn, which may be a moment later."""
        room = self.owner.room_for(None, no_ack=self.no_ack)
        if self.no_ack or not self.prefetch:
            return room
        return min(room, self.prefetch - self.unacked)

    @property
    def shares_prefetch(self) -> bool:
        """Whether a prefetch counts for the whole channel."""
        return self.owner.channel_prefetch > 0

    def take(self, delivery: Delivery) -> bool:
        """Send it a message."""
        owner = self.owner
        tag = owner.take_tag()
        if not self.no_ack:
            owner.hold(tag, 1, self.queue, delivery.place, self)
        connection = owner.connection
        exchange, key = deliveries.address(delivery.record)
        connection.write(
            [
                encode_delivery(
                    owner.channel.number,
                    self.wire_tag,
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
        return True

    def take_run(self, place: int, count: int, data: Data) -> int:
        """Send messages that follow each other in `data`, as far as they are plain. Returns how
        many."""
        owner = self.owner
        connection = owner.connection
        offset = place & OFFSET_MASK
        chosen = (
            owner.channel.number,
            self.wire_tag,
            owner.next_tag,
            connection.frame_bytes_max,
            connection.envelopes,
            RUN_BYTES,
        )
        frames, sent = encode_deliveries(data, offset, count, *chosen)
        if not sent:
            envelope = deliveries.envelope(self.queue.window.record_in(place, data))
            if envelope is None:
                return 0
            connection.envelopes.add(*envelope)
            frames, sent = encode_deliveries(data, offset, count, *chosen)
        if not self.no_ack and sent:
            owner.hold(owner.next_tag, sent, self.queue, place, self)
        owner.next_tag += sent
        connection.write_one(frames)
        return sent

    def queue_gone(self) -> None:
        """Its queue was deleted."""
        self.owner.queue_gone(self)
