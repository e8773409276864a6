"""What comes over the links of a node, and who takes it: feeds of replicas, and forwards.

Rules: forwards go over the live connection only. A new one there, like the end of one, means that
nothing more is known of what went over the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from onelog.cluster.exchange import FeedExchange
from onelog.cluster.forward_desk import ForwardDesk
from onelog.cluster.forward_frames import ForwardBatch, Forwarded, LinkFrame
from onelog.cluster.forward_ways import Leader
from onelog.cluster.forwards import Forwarder
from onelog.cluster.frames import FeedLane
from onelog.cluster.hosts import ReplicaHost
from onelog.cluster.known import KnownCluster
from onelog.cluster.link.hello import FORWARDING, Sender
from onelog.cluster.link.links import Links
from onelog.cluster.rows import NOBODY
from onelog.kernel import pass_of
from onelog.log.handle import PartitionHandle
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey


class NodeTraffic:
    """The user of a node's links; the node, as its forwards and its desk see it."""

    def __init__(
        self,
        known: KnownCluster,
        host: ReplicaHost,
        exchange: FeedExchange,
        loop: asyncio.AbstractEventLoop,
        troubles: Troubles,
    ) -> None:
        self._known = known
        self._host = host
        self._exchange = exchange
        self._loop = loop
        self.links: Links | None = None
        self._own = Sender(known.node, 0)
        self.forwarder = Forwarder(known.node, self, troubles)
        self.desk = ForwardDesk(self, pass_of(loop).call_soon, troubles)

    # -- the links

    def linked(self, sender: Sender, lane: FeedLane) -> None:
        """See `LinkUser`."""
        self._exchange.linked(sender, lane)
        if lane is FeedLane.LIVE:
            self.desk.forget(sender.node)
            self.forwarder.linked(sender.node)

    def unlinked(self, sender: Sender, lane: FeedLane) -> None:
        """See `LinkUser`."""
        self._exchange.unlinked(sender, lane)
        if lane is FeedLane.LIVE:
            self.desk.forget(sender.node)
            self.forwarder.unlinked(sender.node)

    def received(self, sender: Sender, lane: FeedLane, frame: LinkFrame) -> None:
        """See `LinkUser`."""
        if isinstance(frame, ForwardBatch):
            self.desk.take(sender, frame)
        elif isinstance(frame, Forwarded):
            self.forwarder.answered(sender.node, frame)
        else:
            self._exchange.received(sender, lane, frame)

    def has_room(self, node: int, lane: FeedLane) -> None:
        """See `LinkUser`."""
        self._exchange.has_room(node, lane)

    def suspects(self, node: int, why: str | None) -> None:
        """See `LinkUser`."""
        self._exchange.suspects(node, why)

    # -- for what this node forwards

    def leader(self, key: PartitionKey) -> Leader | None:
        """See `ForwardPort`."""
        found = self._known.row(key)
        if found is None or found[0].leader == NOBODY:
            return None
        return found[0].leader, found[0].epoch

    def accepts(self, node: int) -> bool | None:
        """See `ForwardPort`."""
        features = None if self.links is None else self.links.features(node)
        return None if features is None else bool(features & FORWARDING)

    def send(self, node: int, batch: ForwardBatch) -> bool:
        """See `ForwardPort`."""
        if node == self._own.node:
            self.desk.take(self._own, batch)
            return True
        return self.links is not None and self.links.send(node, FeedLane.LIVE, batch)

    def call_at(self, when: float, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """See `ForwardPort`."""
        return self._loop.call_at(when, call, *args)

    def now(self) -> float:
        """See `ForwardPort`."""
        return self._loop.time()

    # -- for what is forwarded here

    def led(self, key: PartitionKey) -> PartitionHandle | None:
        """See `ForwardHost`."""
        return self._host.led(key)

    def is_registered(self, sender: Sender) -> bool:
        """See `ForwardHost`."""
        return any(place.id == sender.node for place in self._known.nodes())

    def answer(self, sender: Sender, answer: Forwarded) -> None:
        """See `ForwardHost`."""
        if sender.node == self._own.node:
            self.forwarder.answered(sender.node, answer)
        elif self.links is not None:
            self.links.send(sender.node, FeedLane.LIVE, answer)
