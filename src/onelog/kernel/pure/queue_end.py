"""The ends of queues, interpreted: what the kernel needs to know to hand messages out and settle
them.

Rules: the compiled kernel has a short way for plain messages that just came, if nothing else has to
come first: the queue has one consumer, which has room for all of them, nothing waits, and they
follow each other in the partition from which the queue took messages before. These messages are *in
flight* until they are settled, or until somebody asks the cursor for its places. Here everything
takes the long way, which specifies it: `Queue.pass_on`, `Queue.ack_run` and the cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onelog.kernel.pure.amqp_delivery import topic_runs


class FlightCursor:
    """A cursor's messages that went out without waiting."""

    __slots__ = ("count", "flight_key", "is_marked", "on_change")

    count: int
    """Places that are not settled."""
    on_change: Callable[[], None]
    is_marked: bool
    """Whether `on_change` was called since the last save."""
    flight_key: tuple[str, int] | None
    """The partition whose messages may be in flight, which has places; None: no partition."""

    in_flight: bool = False
    """Whether there are messages that are not noted elsewhere."""

    def take_flight(self) -> list[tuple[int, int]]:
        """Runs of messages in flight: first offset and count, ascending. They are no more."""
        return []


class LineEnd:
    """The order of places of one priority."""

    __slots__ = ("is_mixed", "source", "taken")

    source: int
    """The partition of the newest place; -1: there was none."""
    taken: int
    """How many went out."""
    is_mixed: bool
    """Whether places came from several partitions."""


class ReadyEnd:
    """The places that wait."""

    __slots__ = ("lines", "size")

    size: int
    lines: list[Any]
    """One per priority."""


class ConsumerEnd:
    """A consumer that the kernel can send runs to."""

    __slots__ = ("is_plain", "no_ack")

    no_ack: bool
    is_plain: bool
    """Whether the kernel may send to it without a call of `take_run`."""


class QueueEnd:
    """The end of a queue where messages come and go."""

    __slots__ = (
        "_keys", "_line", "_pumping", "_ready", "acked", "cursor", "delivered", "is_deleted",
        "published", "unacked",
    )  # fmt: skip

    _ready: Any
    cursor: Any
    _keys: list[tuple[str, int]]
    """The partitions, by number."""
    _line: list[Any]
    """All consumers; always the same list."""
    _pumping: bool
    """Whether messages that wait will be handed out soon."""
    is_deleted: bool
    published: int
    delivered: int
    acked: int
    unacked: int

    def __init__(self) -> None:
        self._pumping = self.is_deleted = False
        self.published = self.delivered = self.acked = self.unacked = 0

    def pass_short(self, place: int, count: int, data: Any) -> int:
        """Send messages that just came to the one consumer: how many; 0: take the long way."""
        del place, count, data
        return 0


class QueueFeed:
    """What gives batches that became visible to queues."""

    def __init__(
        self,
        topics: dict[bytes, Any],
        resolve: Callable[[bytes], Any],
        stumbled: Callable[[Any, int, int, Exception], None],
        open_batches: Callable[[Any, Any, bytes | None], Any],
        take_run: Callable[[Any, tuple[Any, ...], int], None],
        hand_out: Callable[[Any, int], None],
    ) -> None:
        del stumbled
        self._topics = topics
        self._resolve = resolve
        self._open_batches = open_batches
        self._take_run = take_run
        self._hand_out = hand_out

    def deliver(self, source: Any, data: Any, fixed: bytes | None) -> int:
        """Route batches and give their records to queues. Returns the offset that it reached.

        Runs of records (`topic_runs`) come in order. Those that do not go the short way as a whole
        are for `take_run`, with how many of them went.
        """
        rows, end = topic_runs(data, fixed, self._topics, self._resolve)
        if rows:
            batches = self._open_batches(source, data, fixed)
            for row in rows:
                self._take_run(batches, row, 0)
            self._hand_out(batches, end)
        return end
