"""Which replica of this node a frame is for, and which nodes there is a whole link to.

It is the user of the links (`link/links.py`), and the links of the replicas.

Rules:
- A feed that this node opened is known by its number. A feed that another node opened here is known
  by that node and its number. A frame of a feed that is not known is dropped: it is late.
- A node is linked while both lanes stand. When one breaks, pieces may be lost, so every feed with
  that node ends.
- Each node has at most one feed of a partition, so what is kept here is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onelog.cluster.frames import (
    AckFeed,
    CloseFeed,
    CloseReason,
    FeedFrame,
    FeedLane,
    OpenFeed,
)
from onelog.cluster.link.hello import Sender
from onelog.cluster.replica import ClusterReplica
from onelog.storage.engine import PartitionKey

Send = Callable[[int, FeedLane, FeedFrame], object]


class DrivenReplica(Protocol):
    """A replica and whoever carries out what it asks."""

    @property
    def replica(self) -> ClusterReplica:
        """The machine."""
        ...

    def wake(self) -> None:
        """The machine was called: take a turn."""
        ...


class FeedExchange:
    """All replicas of one node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.send_frame: Send = lambda _node, _lane, _frame: False
        """Sends over the links; set once they are made."""
        self.on_suspicion: Callable[[int, str | None], None] | None = None
        self.on_link: Callable[[int], None] | None = None
        """Called when a node can be called (again)."""
        self._clock = clock
        """The time of the loop."""
        self._replicas: dict[PartitionKey, DrivenReplica] = {}
        self._opened: dict[int, PartitionKey] = {}
        """Feeds that this node opened."""
        self._last: dict[PartitionKey, int] = {}
        """The feed of a partition that this node opened last."""
        self._taken: dict[tuple[int, int], PartitionKey] = {}
        """Node and number of the feeds that others opened here."""
        self._fed: dict[tuple[int, PartitionKey], int] = {}
        """The feed of a partition that a node opened here last."""
        self._lanes: dict[int, set[FeedLane]] = {}

    # -- replicas

    def add(self, driven: DrivenReplica) -> None:
        """A replica began."""
        self._replicas[driven.replica.partition] = driven
        for node in self.linked_nodes():
            driven.replica.linked(node, self._clock())
        driven.wake()

    def remove(self, partition: PartitionKey) -> None:
        """A replica ended."""
        self._replicas.pop(partition, None)
        self._opened = {feed: key for feed, key in self._opened.items() if key != partition}
        self._taken = {feed: key for feed, key in self._taken.items() if key != partition}
        self._fed = {who: feed for who, feed in self._fed.items() if who[1] != partition}
        self._last.pop(partition, None)

    # -- links

    def linked_nodes(self) -> list[int]:
        """Nodes to which both lanes stand."""
        return [node for node, lanes in self._lanes.items() if len(lanes) == len(FeedLane)]

    def linked(self, sender: Sender, lane: FeedLane) -> None:
        """A connection stands; its frames come after this call."""
        node = sender.node
        if lane is FeedLane.LIVE and self.on_link is not None:
            self.on_link(node)
        lanes = self._lanes.setdefault(node, set())
        was_whole = len(lanes) == len(FeedLane)
        lanes.add(lane)
        if len(lanes) == len(FeedLane) and not was_whole:
            for driven in list(self._replicas.values()):
                driven.replica.linked(node, self._clock())
                driven.wake()

    def unlinked(self, sender: Sender, lane: FeedLane) -> None:
        """A connection is gone."""
        node = sender.node
        self._lanes.get(node, set()).discard(lane)
        for feed in [feed for feed in self._taken if feed[0] == node]:
            self._fed.pop((node, self._taken.pop(feed)), None)
        for driven in list(self._replicas.values()):
            driven.replica.link_lost(node, self._clock())
            driven.wake()

    def has_room(self, node: int, lane: FeedLane) -> None:
        """There is credit again: the link sends on by itself."""

    def suspects(self, node: int, why: str | None) -> None:
        """A node seems dead, or answers again: the registration of the node hears of it."""
        if self.on_suspicion is not None:
            self.on_suspicion(node, why)

    # -- frames

    def send(self, node: int, lane: FeedLane, frame: FeedFrame) -> None:
        """Send a frame of one of the replicas; without a link it is lost."""
        if isinstance(frame, OpenFeed):
            self._opened.pop(self._last.get(frame.partition, 0), None)
            self._opened[frame.feed] = frame.partition
            self._last[frame.partition] = frame.feed
        self.send_frame(node, lane, frame)

    def received(self, sender: Sender, lane: FeedLane, frame: FeedFrame) -> None:
        """A frame came from a node."""
        del lane
        node, node_epoch = sender.node, sender.epoch
        found = self._partition_of(node, frame)
        driven = None if found is None else self._replicas.get(found)
        if driven is not None:
            driven.replica.take(node, node_epoch, frame, self._clock())
            driven.wake()
        elif isinstance(frame, OpenFeed):
            closed = CloseFeed(frame.feed, 0, CloseReason.NOT_LEADER)
            self.send_frame(node, FeedLane.LIVE, closed)

    def _partition_of(self, node: int, frame: FeedFrame) -> PartitionKey | None:
        if isinstance(frame, OpenFeed):
            partition = frame.partition
            self._taken.pop((node, self._fed.get((node, partition), 0)), None)
            self._taken[node, frame.feed] = partition
            self._fed[node, partition] = frame.feed
            return partition
        if isinstance(frame, AckFeed) or (isinstance(frame, CloseFeed) and frame.by_copy):
            return self._taken.get((node, frame.feed))
        return self._opened.get(frame.feed)
