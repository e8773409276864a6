"""The sources of live feeds, interpreted: where a listener stands in a partition.

Rules: `Live.feed` hands a batch to its listener. The compiled kernel does the same itself for a
batch that begins where the source stands while nothing holds the source back: it passes the batch
to MQTT's fan-out, to queues as the batch before it, or over a listener that is not concerned. What
is left to do is `Live.fed`.
"""

from __future__ import annotations

from typing import Any


class Unconcerned:
    """What a listener is not concerned with, until its `turn` changes."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn = 0


class FeedSource:
    """One partition that a listener follows."""

    __slots__ = (
        "busy", "clock", "concerned_since", "fanout", "held", "held_back", "live", "missed",
        "number", "position", "queue_feed", "stream", "unconcerned", "unconcerned_since",
    )  # fmt: skip

    number: int
    position: int
    """Every record below it was handed out, and none from it on."""
    stream: Any
    live: Any
    held_back: list[Any]
    """All sources of the feed that are held; always the same list."""
    held: tuple[Any, ...]
    """Moves whose old homes must be handed out first."""
    busy: bool
    """Whether its listener is being called."""
    missed: bool
    """Whether records became visible while the listener was called."""
    clock: Any
    fanout: Any
    """The listener's part in the kernel; None: it has none."""
    unconcerned: Unconcerned | None
    """Whether the listener is concerned may be remembered until the turn of this changes."""
    unconcerned_since: int
    """The turn in which the listener was not concerned with this partition; -1: it may be."""
    queue_feed: Any
    """What feeds the listener's queues; None: it has none."""
    concerned_since: int
    """The turn in which the queues got all records as they came; -1: there was none."""

    def __init__(self) -> None:
        self.unconcerned_since = self.concerned_since = -1

    def __call__(self, data: bytes | bytearray) -> None:
        """Batches became visible."""
        self.live.feed(self, data)
