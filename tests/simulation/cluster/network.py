"""Links between simulated nodes: two lanes each, in order per lane, and cut in every way.

Rules: a link has a generation; what was under way when it broke is lost. Each side notices a break
in its own time. A cut in one direction holds frames back: they come late if it heals in time, else
the link breaks. Frames of two lanes, and of two links, have no order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from onelog.cluster.frames import FeedFrame, FeedLane

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

SILENCE_S = 1.0
"""A link that is silent for so long is given up."""


class _Link:
    """One pair of nodes."""

    def __init__(self) -> None:
        self.is_up = False
        self.generation = 0
        self.epochs: dict[int, int] = {}
        """What each side said in HELLO."""
        self.times: dict[tuple[int, FeedLane], float] = {}
        """When the last frame of a side and lane arrives."""
        self.queues: dict[tuple[int, FeedLane], deque[FeedFrame]] = {}

    def clear(self) -> None:
        """What is under way is lost."""
        for queue in self.queues.values():
            queue.clear()
        self.queues.clear()
        self.times.clear()


class Network:
    """All links."""

    def __init__(self, world: ClusterWorld, nodes: int) -> None:
        self._world = world
        self._links = {(a, b): _Link() for a in range(nodes) for b in range(a + 1, nodes)}
        self.cuts: set[tuple[int, int]] = set()
        """Directions in which nothing gets through."""
        self.delivered = self.lost = 0
        self._news: dict[int, float] = {}
        """When a node hears of its links: in the order of what happened to them."""

    def link(self, a: int, b: int) -> _Link:
        return self._links[min(a, b), max(a, b)]

    # -- frames

    def send(self, sender: int, to: int, lane: FeedLane, frame: FeedFrame) -> None:
        link, world = self.link(sender, to), self._world
        if not link.is_up:
            self.lost += 1
            return
        key = (sender, lane)
        when = max(link.times.get(key, 0.0), world.now + world.delay_between(sender, to))
        link.times[key] = when
        queue = link.queues.setdefault(key, deque())
        queue.append(frame)
        world.at(when, partial(self._arrive, link, queue, sender, to))

    def _arrive(self, link: _Link, queue: deque[FeedFrame], sender: int, to: int) -> None:
        """The oldest frame of a lane arrives, or waits on; a queue that is empty was lost."""
        world, again = self._world, partial(self._arrive, link, queue, sender, to)
        if not queue:
            self.lost += 1
        elif self._news.get(to, 0.0) > world.now:
            # A node hears that a link is there before it hears anything by it.
            world.at(self._news[to], again)
        elif (sender, to) in self.cuts:
            world.at(world.now + 0.05, again)
        else:
            self.delivered += 1
            node, epoch, frame = world.nodes[to], link.epochs[sender], queue.popleft()
            world.on(node, lambda: node.take(sender, epoch, frame))

    # -- life of links

    def connect_all(self) -> None:
        """Connect every pair that can be."""
        for a, b in self._links:
            self.connect(a, b)

    def connect(self, a: int, b: int) -> None:
        link, one, two = self.link(a, b), self._world.nodes[a], self._world.nodes[b]
        if link.is_up or {(a, b), (b, a)} & self.cuts or not (one.is_ready and two.is_ready):
            return
        link.is_up = True
        link.generation += 1
        link.epochs = {a: one.node_epoch, b: two.node_epoch}
        link.clear()
        for node, other in ((one, b), (two, a)):
            self._later(node.number, lambda node=node, other=other: node.linked(other))

    def break_link(self, a: int, b: int) -> None:
        link = self.link(a, b)
        if link.is_up:
            link.is_up = False
            link.generation += 1
            link.clear()
            for number, other in ((a, b), (b, a)):
                node = self._world.nodes[number]
                self._later(number, lambda node=node, other=other: node.link_lost(other))
        wait_s = 0.02 + self._world.chance.random() * 0.3
        self._world.at(self._world.now + wait_s, lambda: self.connect(a, b))

    def _later(self, number: int, work: Callable[[], None]) -> None:
        world = self._world
        node = world.nodes[number]
        when = max(self._news.get(number, 0.0), world.now + world.delay())
        self._news[number] = when
        world.at(when, lambda: world.on(node, work))

    def isolate(self, number: int) -> None:
        """A node is gone, or registers anew: all its links break."""
        for other in range(len(self._world.nodes)):
            if other != number:
                self.break_link(number, other)

    def cut(self, sender: int, to: int) -> None:
        self.cuts.add((sender, to))
        generation = self.link(sender, to).generation

        def give_up() -> None:
            if (sender, to) in self.cuts and self.link(sender, to).generation == generation:
                self.break_link(sender, to)

        self._world.at(self._world.now + SILENCE_S, give_up)

    def heal(self) -> None:
        self.cuts.clear()
        self.connect_all()
