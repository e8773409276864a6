"""The consumers of one queue: what a queue asks of them, and which of them gets the next message.

Rules: the highest priority goes first, and consumers of the same priority take turns. Only a
consumer with room gets a message. An exclusive consumer is alone. With a single active consumer,
the first one gets everything until it leaves. A message that a consumer can never have goes to
another one, and the queue gives it up when none can have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar
from zlib import crc32

from onelog.base.errors import NotAuthorized
from onelog.record.headers import PUBLISHER, find_header

if TYPE_CHECKING:
    from onelog.broker import Record
    from onelog.queues.window import Data


class Delivery(NamedTuple):
    """A message that goes out."""

    place: int
    """Its place in the queue, which settles it."""
    record: Record
    redelivered: bool
    headers: dict[str, Any]
    """Headers that are added to its own."""


class Consumer(Protocol):
    """Takes messages from a queue. A protocol implements it, and the queue calls it.

    A class that has this one as its base inherits the usual values of attributes that it does not
    set. A consumer settles its messages by `ack`, `reject` and `requeue` of the queue, and calls
    the queue's `wake` when it has room again.
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
    """Its other arguments, by AMQP's names."""

    @property
    def unacked(self) -> int:
        """Messages that it holds and has not settled."""

    @property
    def room(self) -> int:
        """How many messages it may be sent now; asked once for a run."""

    @property
    def room_in_turn(self) -> int:
        """How many it may be sent when its queue has its turn, which may be a moment later."""
        return self.room

    @property
    def shares_prefetch(self) -> bool:
        """Whether one bound counts for it and other consumers together."""
        return False

    def take(self, delivery: Delivery) -> bool:
        """Take a message; False: it can never have this one, which goes to another."""

    def take_run(self, place: int, count: int, data: Data) -> int:
        """Take messages that follow each other in `data`, as far as they are plain. Returns how
        many.

        The others come one by one.
        """
        del place, count, data
        return 0

    def queue_gone(self) -> None:
        """The queue was deleted, and sends nothing more."""


class Strategy(StrEnum):
    """Which consumer gets the next message."""

    ROUND_ROBIN = "round_robin"
    LEAST_IN_FLIGHT = "least_in_flight"
    STICKY = "sticky"
    """The same consumer as long as it has room."""
    HASH_TOPIC = "hash_topic"
    HASH_CLIENT = "hash_client"
    """Chosen by the client that published."""


C = TypeVar("C", bound=Consumer)


class Consumers(Generic[C]):
    """All consumers of one queue."""

    __slots__ = ("_by_priority", "_single_active", "_strategy", "all")

    def __init__(
        self, *, single_active: bool = False, strategy: Strategy = Strategy.ROUND_ROBIN
    ) -> None:
        self._single_active = single_active
        self._strategy = strategy
        self._by_priority: dict[int, deque[C]] = {}
        """In each line, the first one is the next."""
        self.all: list[C] = []
        """In the order in which they came; always the same list."""

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[C]:
        return iter(self.all)

    @property
    def is_single(self) -> bool:
        """Whether one consumer gets everything."""
        return len(self.all) == 1 or self._single_active

    @property
    def only(self) -> C | None:
        """The one consumer there is; None: there is none, or more."""
        return self.all[0] if len(self.all) == 1 else None

    def add(self, consumer: C, queue: str) -> None:
        """Add a consumer. Raises NotAuthorized, naming the queue."""
        if self.all and (consumer.exclusive or self.all[0].exclusive):
            raise NotAuthorized(f"{queue} in exclusive use")
        self.all.append(consumer)
        self._by_priority.setdefault(consumer.priority, deque()).append(consumer)

    def remove(self, consumer: C) -> None:
        """Remove a consumer."""
        if consumer in self.all:
            self.all.remove(consumer)
            line = self._by_priority[consumer.priority]
            line.remove(consumer)
            if not line:
                del self._by_priority[consumer.priority]

    def have_room(self, count: int) -> bool:
        """Whether so many messages could go out at once, or as soon as the queue has its turn."""
        for consumer in self.all:
            count -= max(consumer.room_in_turn, 0)
            if count <= 0:
                return True
            if self._single_active:
                return False
        return False

    def tell_gone(self) -> None:
        """Tell everybody that the queue is gone."""
        for consumer in list(self.all):
            consumer.queue_gone()

    def next_ready(self) -> C | None:
        """The consumer for the next message; None: no consumer has room."""
        if self._single_active or len(self.all) == 1:
            first = self.all[0] if self.all else None
            return first if first is not None and first.room > 0 else None
        for priority in sorted(self._by_priority, reverse=True):
            line = self._by_priority[priority]
            for _ in range(len(line)):
                consumer = line[0]
                line.rotate(-1)
                if consumer.room > 0:
                    return consumer
        return None

    def give(self, delivery: Delivery) -> C | Literal[False] | None:
        """Give a message to a consumer that has room and can have it. Returns the consumer.

        None: a consumer that has no room now may have it. False: none can ever have it.
        """
        refused = 0
        for consumer in self._candidates(delivery.record):
            if consumer.room > 0:
                if consumer.take(delivery):
                    self._served(consumer)
                    return consumer
                refused += 1
        return False if refused == len(self.all) else None

    def _candidates(self, record: Record) -> Iterable[C]:
        """The consumers, the preferred one first."""
        if self._single_active:
            return self.all[:1]
        if self._strategy is Strategy.HASH_TOPIC:
            return self._from(crc32(record.topic.encode()))
        if self._strategy is Strategy.HASH_CLIENT:
            return self._from(crc32(find_header(record.headers, PUBLISHER) or b""))
        if len(self._by_priority) == 1:
            (line,) = self._by_priority.values()
            found = list(line)
        else:
            lines = sorted(self._by_priority, reverse=True)
            found = [row for priority in lines for row in self._by_priority[priority]]
        if self._strategy is Strategy.LEAST_IN_FLIGHT:
            found.sort(key=lambda row: (-row.priority, row.unacked))
        return found

    def _from(self, number: int) -> list[C]:
        """All consumers in the order in which they came, starting at a number."""
        first = number % len(self.all) if self.all else 0
        return self.all[first:] + self.all[:first]

    def _served(self, consumer: C) -> None:
        """A consumer got a message: by some strategies the next one goes to another."""
        line = self._by_priority[consumer.priority]
        line.rotate(-line.index(consumer))
        if self._strategy is not Strategy.STICKY:
            line.rotate(-1)
