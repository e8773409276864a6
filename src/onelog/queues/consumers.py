"""The consumers of one queue: what a queue asks of them, and which of them gets the next message.

Rules: higher priorities first, among equals in turn, only one that has room. An exclusive consumer
is alone. With a single active consumer the first one gets everything until it leaves. A message
that a consumer can never have goes to another, and is given up when none can have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onelog.base.errors import NotAuthorized
from onelog.queues.settings import QueueSettings

if TYPE_CHECKING:
    from onelog.broker import Record
    from onelog.queues.queue import Queue
    from onelog.queues.window import Data


class Delivery(NamedTuple):
    """A message that goes out."""

    queue: Queue
    place: int
    record: Record
    redelivered: bool
    headers: dict[str, Any]
    """What its headers get beside their own."""


class Consumer(Protocol):
    """One that takes messages from a queue. A protocol implements it, and the queue calls it.

    A class that names this one as its base has the usual answers of attributes that it does not
    set. A consumer settles what it took by the queue's `ack_run`, `reject` and `requeue`.
    """

    tag: str
    """Its name, for people."""
    no_ack: bool = False
    """Whether a message is settled when it is sent."""
    exclusive: bool = False
    priority: int = 0
    prefetch: int = 0
    """Messages that it may hold at once; 0: no bound of its own."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """What it asked for beside these, as AMQP names it."""

    @property
    def room(self) -> int:
        """How many messages it may be sent now; asked once for a run."""

    @property
    def room_in_turn(self) -> int:
        """How many it may be sent when its queue has its turn, which may be a moment later."""
        return self.room

    @property
    def shares_prefetch(self) -> bool:
        """Whether a bound counts for it and for other consumers together."""
        return False

    def take(self, delivery: Delivery) -> bool:
        """Take a message; False: it can never have this one, which goes to another."""

    def take_run(self, place: int, count: int, data: Data) -> int:
        """Take messages that follow each other in `data`, as far as they are plain; how many.

        Those that are left come one by one.
        """
        del place, count, data
        return 0

    def queue_gone(self) -> None:
        """The queue was deleted: it sends nothing more."""


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
        """One more. Raises NotAuthorized."""
        if self._order and (consumer.exclusive or self._order[0].exclusive):
            raise NotAuthorized(f"queue '{queue}' in vhost '{vhost}' in exclusive use")
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

    def offer(self, delivery: Delivery, refused_by: Consumer) -> Consumer | None:
        """Offer a message to the others; the one that took it, None when none can have it."""
        for consumer in self._order:
            if consumer is not refused_by and consumer.room > 0 and consumer.take(delivery):
                return consumer
        return None
