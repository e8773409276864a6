"""One feed as its leader sees it: what was sent, what came back, and which lane it takes.

Rules:
- The bytes that were sent and not acknowledged as written are bounded: acknowledgements are the
  credit. Without credit the feed stands still, and later reads from the log what it missed (I8).
- A feed that has to catch up takes the bulk lane. It changes its lane only when everything that it
  sent was acknowledged: frames of two connections have no order.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from onelog.cluster.frames import FeedLane

PIECE_BYTES: Final = 256 * 1024
"""Bytes of one piece."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a feed that may be under way."""
FULL_PIECES_MAX: Final = 8
"""So many full pieces one after the other: the feed has fallen behind, and takes the bulk lane."""

Bounds = tuple[int, int, int]
"""High watermark, start, bound of compaction."""


class FeedState:
    """A feed of one node."""

    __slots__ = (
        "_full", "_under_way", "_wanted", "feed", "is_reading", "lane", "node", "node_epoch",
        "observer", "position", "told", "under_way_bytes",
    )  # fmt: skip

    def __init__(
        self,
        feed: int,
        node: int,
        node_epoch: int,
        position: int,
        lane: FeedLane,
        *,
        observer: bool,
    ) -> None:
        self.feed = feed
        self.node = node
        self.node_epoch = node_epoch
        self.observer = observer
        self.position = position
        """Everything below was sent."""
        self.lane = self._wanted = lane
        self.is_reading = False
        """A piece of it is being read."""
        self.told: Bounds = (-1, -1, -1)
        self.under_way_bytes = 0
        self._under_way: deque[tuple[int, int]] = deque()
        self._full = 0

    def wants(self, upto: int) -> bool:
        """Whether a piece should be read for it now."""
        return (
            not self.is_reading
            and self.position < upto
            and self.lane == self._wanted
            and self.under_way_bytes < WINDOW_BYTES
        )

    def sent(self, end: int, size_bytes: int, *, is_last: bool) -> None:
        """A piece went out; `is_last`: there was no more to send."""
        self.position = end
        self._under_way.append((end, size_bytes))
        self.under_way_bytes += size_bytes
        self._full = 0 if is_last else self._full + 1
        if is_last:
            self._wanted = FeedLane.LIVE
        elif self._full >= FULL_PIECES_MAX:
            self._wanted = FeedLane.BULK

    def acked(self, written: int) -> None:
        """The copy is written up to `written`."""
        while self._under_way and self._under_way[0][0] <= written:
            self.under_way_bytes -= self._under_way.popleft()[1]
        if not self._under_way:
            self.lane = self._wanted
