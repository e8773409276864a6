"""The consumers of one queue: who gets the next message.

Rules: higher priorities first, among equals in turn, only who has room. An exclusive consumer is
alone. With a single active consumer the first one gets everything until it leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.protocols.amqp.queues.settings import QueueSettings

if TYPE_CHECKING:
    from onelog.broker import Record
    from onelog.protocols.amqp.consuming import Consuming
    from onelog.protocols.amqp.queues.queue import Queue


class Delivery(NamedTuple):
    """A message that goes out."""

    queue: Queue
    place: int
    record: Record
    redelivered: bool
    headers: dict[str, Any]
    """What its headers get beside their own."""


class Consumer:
    """One consumer of a channel."""

    __slots__ = (
        "arguments",
        "exclusive",
        "no_ack",
        "owner",
        "prefetch",
        "priority",
        "queue",
        "tag",
        "unacked",
        "wire_tag",
    )

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
        """Messages that it may hold at once; 0: no bound of its own."""
        self.priority = priority
        self.arguments = arguments
        self.unacked = 0

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

    def deliver(self, delivery: Delivery) -> None:
        """Send it a message."""
        self.owner.deliver(self, delivery)


class Consumers:
    """All of them."""

    def __init__(self, settings: QueueSettings) -> None:
        self._single_active = settings.single_active_consumer
        self._by_priority: dict[int, deque[Consumer]] = {}
        self._order: list[Consumer] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._order)

    @property
    def is_single(self) -> bool:
        """Whether one consumer gets everything."""
        return len(self._order) == 1 or self._single_active

    @property
    def only(self) -> Consumer | None:
        """The one consumer there is; None: there is none, or more."""
        return self._order[0] if len(self._order) == 1 else None

    def add(self, consumer: Consumer, queue: str, vhost: str) -> None:
        """One more. Raises AmqpError."""
        if self._order and (consumer.exclusive or self._order[0].exclusive):
            raise AmqpError(
                Reply.ACCESS_REFUSED, f"queue '{queue}' in vhost '{vhost}' in exclusive use"
            )
        self._order.append(consumer)
        self._by_priority.setdefault(consumer.priority, deque()).append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """One less."""
        if consumer in self._order:
            self._order.remove(consumer)
            line = self._by_priority[consumer.priority]
            line.remove(consumer)
            if not line:
                del self._by_priority[consumer.priority]

    def have_room(self, count: int) -> bool:
        """Whether so many messages could go out at once, or as soon as the queue has its turn."""
        for consumer in self._order:
            count -= max(consumer.room_in_turn, 0)
            if count <= 0:
                return True
            if self._single_active:
                return False
        return False

    def next_ready(self) -> Consumer | None:
        """Who gets the next message; None when nobody has room."""
        if self._single_active or len(self._order) == 1:
            first = self._order[0] if self._order else None
            return first if first is not None and first.room > 0 else None
        for priority in sorted(self._by_priority, reverse=True):
            line = self._by_priority[priority]
            for _ in range(len(line)):
                consumer = line[0]
                line.rotate(-1)
                if consumer.room > 0:
                    return consumer
        return None
