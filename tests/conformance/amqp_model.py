"""A small model of AMQP's queues and one channel: what may be delivered, and what has to be.

Rules: a queue is a line of messages by the order they came. The model does what a client does and
takes every delivery that it is shown: it must be the head of its queue, with room for it. When
nobody has room for what waits, the broker has to be silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(order=True)
class Waiting:
    """A message of a queue."""

    number: int
    text: str = field(compare=False)
    redelivered: bool = field(default=False, compare=False)


@dataclass
class Consumer:
    queue: str
    prefetch: int
    no_ack: bool
    held: int = 0


@dataclass
class Held:
    queue: ModelQueue
    message: Waiting
    consumer: Consumer | None


class ModelQueue:
    """The messages of one queue that wait."""

    def __init__(self) -> None:
        self.ready: list[Waiting] = []
        self.is_deleted = False

    def put_back(self, message: Waiting) -> None:
        if not self.is_deleted:
            message.redelivered = True
            self.ready = sorted([*self.ready, message])


class Model:
    """Queues, and a channel that consumes, gets, settles and perhaps commits."""

    def __init__(self, queues: list[str], channel_prefetch: int, *, is_tx: bool) -> None:
        self.queues = {name: ModelQueue() for name in queues}
        self.consumers: dict[str, Consumer] = {}
        self.held: dict[int, Held] = {}
        self.channel_prefetch = channel_prefetch
        self.is_tx = is_tx
        self.published: list[tuple[str, str]] = []
        self.settled: list[tuple[str, dict[int, Held]]] = []
        self.next_tag = 1
        self.last = 0
        self.counted = 0

    # -- messages in

    def publish(self, queue: str, text: str, *, in_tx: bool = False) -> None:
        if in_tx:
            self.published.append((queue, text))
        else:
            self.last += 1
            self.queues[queue].ready.append(Waiting(self.last, text))

    # -- messages out

    def room(self, consumer: Consumer) -> bool:
        if self.channel_prefetch and self.counted >= self.channel_prefetch:
            return False
        return consumer.no_ack or not consumer.prefetch or consumer.held < consumer.prefetch

    def awaited(self) -> bool:
        """Whether something has to be delivered."""
        return any(
            self.queues[row.queue].ready and self.room(row) for row in self.consumers.values()
        )

    def delivered(self, tag: int, consumer_tag: str, text: str, *, redelivered: bool) -> None:
        consumer = self.consumers[consumer_tag]
        assert self.room(consumer), f"{text} beyond the prefetch of {consumer}"
        self._take(tag, consumer.queue, text, redelivered, consumer, no_ack=consumer.no_ack)

    def got(self, tag: int, queue: str, text: str, *, redelivered: bool, no_ack: bool) -> None:
        self._take(tag, queue, text, redelivered, None, no_ack=no_ack)

    def _take(
        self,
        tag: int,
        queue: str,
        text: str,
        redelivered: bool,
        consumer: Consumer | None,
        *,
        no_ack: bool,
    ) -> None:
        line = self.queues[queue]
        message = line.ready.pop(0)
        assert (tag, text, redelivered) == (self.next_tag, message.text, message.redelivered)
        self.next_tag += 1
        if not no_ack:
            self.held[tag] = Held(line, message, consumer)
            if consumer is not None:
                consumer.held += 1
                self.counted += 1

    # -- settling

    def settle(self, kind: str, tag: int, *, multiple: bool) -> None:
        """ack, requeue or reject; with a transaction when it commits."""
        tags = [row for row in self.held if tag == 0 or row <= tag] if multiple else [tag]
        found = {row: self.held.pop(row) for row in tags}
        if self.is_tx:
            self.settled.append((kind, found))
        else:
            self._settle(kind, found)

    def _settle(self, kind: str, found: dict[int, Held]) -> None:
        for row in found.values():
            if row.consumer is not None:
                row.consumer.held -= 1
                self.counted -= 1
            if kind == "requeue":
                row.queue.put_back(row.message)

    def recover(self) -> None:
        found, self.held = self.held, {}
        self._settle("requeue", found)

    def commit_publishes(self) -> None:
        published, self.published = self.published, []
        for queue, text in published:
            self.publish(queue, text)

    def commit_settlements(self) -> None:
        settled, self.settled = self.settled, []
        for kind, found in settled:
            self._settle(kind, found)

    def rollback(self) -> None:
        for _kind, found in self.settled:
            self.held.update(found)
        self.held = dict(sorted(self.held.items()))
        self.published, self.settled = [], []

    # -- queues

    def purge(self, queue: str) -> int:
        line = self.queues[queue]
        count, line.ready = len(line.ready), []
        return count

    def delete(self, queue: str) -> int:
        """It is deleted, and made again."""
        line = self.queues[queue]
        line.is_deleted = True
        self.queues[queue] = ModelQueue()
        return len(line.ready)

    def close(self) -> None:
        """The channel ends, and another one begins."""
        self.rollback()
        self.recover()
        self.consumers.clear()
        self.next_tag, self.counted = 1, 0
