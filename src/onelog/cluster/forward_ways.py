"""Batches that are on their way to the leaders of partitions, and where each of them is.

Rules: a batch of a way is in one place: waiting, sent, or to be sent again (`back`). `Forwarder`
(`forwards.py`) moves them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from onelog.base.errors import OnelogError, Timeout
from onelog.base.ids import Offset
from onelog.base.limits import FORWARD_WINDOW_BYTES, FORWARDS_MAX
from onelog.cluster.forward_frames import ERRORS, ForwardBatch, ForwardOutcome
from onelog.cluster.rows import NOBODY
from onelog.storage.engine import PartitionKey

Done = Callable[[Offset, OnelogError | None], None]
Doubted = Callable[[OnelogError], bool]
Leader = tuple[int, int]
"""The node that leads a partition, and its epoch."""


class ForwardPort(Protocol):
    """The node, as its forwards see it."""

    def leader(self, key: PartitionKey) -> Leader | None:
        """Who leads a partition, as far as is known here."""
        ...

    def accepts(self, node: int) -> bool | None:
        """Whether a node takes forwarded batches; None: there is no link to it now."""
        ...

    def send(self, node: int, batch: ForwardBatch) -> bool:
        """Send a batch with this pass; False: there is no link."""
        ...

    def call_at(self, when: float, call: Callable[..., object], *args: Any) -> Any:
        """Call later, by the clock of `now`; returns what has a `cancel`."""
        ...

    def now(self) -> float:
        """The time."""
        ...


class Forward:
    """One batch."""

    __slots__ = ("data", "done", "doubted", "due", "is_doubtful", "is_over", "order", "size", "way")

    def __init__(
        self, way: ForwardWay, order: int, data: bytes, due: float, done: Done, doubted: Doubted
    ) -> None:
        self.way = way
        self.order = order
        self.data = data
        self.size = len(data)
        self.due = due
        self.done = done
        self.doubted = doubted
        self.is_doubtful = False
        """Whether an earlier try may have written it."""
        self.is_over = False
        """Whether its publisher has its answer."""


class ForwardWay:
    """The batches of one partition."""

    __slots__ = (
        "attempt", "back", "full", "grace", "held_at", "is_offline", "is_refused", "key", "leader",
        "pause", "pause_s", "sent", "size", "waiting",
    )  # fmt: skip

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.waiting: deque[Forward] = deque()
        """To be sent, in order."""
        self.sent: dict[int, Forward] = {}
        """By number: sent and not answered."""
        self.back: list[Forward] = []
        """To be sent again, when no answer is due any more."""
        self.leader: Leader | None = None
        """To whom `sent` went last."""
        self.attempt = 0
        self.is_refused = False
        """Whether this attempt is over: what is sent later may overtake what was refused."""
        self.full: OnelogError | None = None
        """The disk of the leader is full: publishers try again themselves, in their order."""
        self.grace: Any = None
        """Until then a former leader may answer."""
        self.pause: Any = None
        self.pause_s = 0.0
        self.is_offline = False
        """Nobody led it for as long as a batch waits."""
        self.size = 0
        self.held_at = NOBODY
        """The node to whose bound `size` counts."""

    @property
    def place(self) -> str:
        """Its partition, for people."""
        return f"{self.key.stream_id}/{self.key.partition}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.waiting and not self.sent and not self.back


class ForwardPeer:
    """A node that leads."""

    __slots__ = ("count", "size", "starved")

    def __init__(self) -> None:
        self.count = self.size = 0
        """What it has not answered."""
        self.starved: dict[ForwardWay, None] = {}
        """Ways that wait until it has answered more."""

    @property
    def has_room(self) -> bool:
        """Whether more may be sent before it answers."""
        return self.size < FORWARD_WINDOW_BYTES and self.count < FORWARDS_MAX


_WORDS: Final = {
    ForwardOutcome.TOO_FEW: "too few replicas are in sync",
    ForwardOutcome.FULL: "no room on the disk",
    ForwardOutcome.TOO_LARGE: "the batch is larger than the stream takes",
    ForwardOutcome.INVALID: "the batch came over damaged",
    ForwardOutcome.OUT_OF_ORDER: "a sequence number was skipped",
    ForwardOutcome.DUPLICATE: "the sequence number is older than those remembered",
    ForwardOutcome.FENCED: "a newer epoch of the producer exists",
    ForwardOutcome.IN_TRANSACTION: "the producer has a transaction open",
}


def refusal_of(way: ForwardWay, outcome: ForwardOutcome) -> OnelogError:
    """The error for a publisher whose batch was refused for good."""
    node = NOBODY if way.leader is None else way.leader[0]
    words = f"node {node}, which leads {way.place}: {_WORDS[outcome]}; nothing was written"
    return ERRORS[outcome](words)


def left_open(way: ForwardWay, why: str) -> Timeout:
    """The error for a publisher whose batch may have been written."""
    return Timeout(f"whether a message in {way.place} was written is open: {why}")
