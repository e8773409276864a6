"""Routes: where the plain publishes of a topic go, remembered per principal for the kernel.

Rules:
- A route includes the right to publish, so each principal has its own. All connections of a
  principal share them, and they are dropped with the last one (I8).
- The number of routes is bounded, per principal and for all together. A principal that asks for too
  many topics loses its own first.
- While somebody looks who writes a topic, its routes are set aside: the kernel asks for each of the
  topic's publishes, and so each connection that writes to it is noted. `LOOK_S` after the last look
  they are back. A principal has at most `ASIDE_MAX` of them.
- A change of streams drops the routes whose targets it touches: a topic may have been rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from onelog.base.topics import is_exact
from onelog.broker import Principal, Touched
from onelog.broker.showing import note_written
from onelog.kernel import MqttRoute, TopicFilter
from onelog.protocols.mqtt.crowd import Crowd

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub

ROUTES_MAX: Final = 100_000
"""Topics whose routes are remembered per principal."""

ALL_ROUTES_MAX: Final = 400_000
"""The same for all principals together."""

LOOK_S: Final = 5.0
ASIDE_MAX: Final = 16


class Aside(NamedTuple):
    """A route that the kernel has to ask for."""

    route: MqttRoute
    until: float


class Routes:
    """The known routes of one principal."""

    __slots__ = ("aside", "by_topic", "connections")

    def __init__(self) -> None:
        self.by_topic: dict[bytes, MqttRoute] = {}
        """The kernel looks here: always the same plain dict."""
        self.aside: dict[bytes, Aside] = {}
        """Those of topics that somebody looks at; the longest ago comes first."""
        self.connections = 0


class RouteTable:
    """The routes of all connected principals."""

    def __init__(self, *, is_rewritten: bool) -> None:
        self._is_rewritten = is_rewritten
        """Whether a rule may send a topic elsewhere."""
        self._known: dict[Principal, Routes] = {}
        self._count = 0
        """The number of all routes. It is exact, because only this class adds and removes any."""
        self.crowd = Crowd()
        """Connections that wait for a leader on another node."""

    def __len__(self) -> int:
        return self._count

    @property
    def principals(self) -> int:
        """How many principals are connected."""
        return len(self._known)

    def join(self, principal: Principal) -> dict[bytes, MqttRoute]:
        """A connection of a principal begins, and uses these routes; it calls `leave` at its
        end."""
        routes = self._known.get(principal)
        if routes is None:
            routes = self._known[principal] = Routes()
        routes.connections += 1
        return routes.by_topic

    def leave(self, principal: Principal) -> None:
        """A connection of a principal is gone."""
        routes = self._known[principal]
        routes.connections -= 1
        if not routes.connections:
            del self._known[principal]
            self._clear(routes)

    def writers(self, topic: bytes) -> list[Principal]:
        """The principals that have a route for a topic."""
        rows = self._known.items()
        return [who for who, row in rows if topic in row.by_topic or topic in row.aside]

    def set_aside(self, topic: bytes, now: float) -> None:
        """Somebody looks who writes a topic: let the kernel ask for its routes, for a while."""
        for routes in self._known.values():
            known = routes.aside.pop(topic, None)
            route = routes.by_topic.pop(topic, None) if known is None else known.route
            if route is None:
                continue
            if len(routes.aside) >= ASIDE_MAX:
                self._put_back(routes, next(iter(routes.aside)))
            routes.aside[topic] = Aside(route, now + LOOK_S)

    def find_aside(self, principal: Principal, topic: bytes, now: float) -> MqttRoute | None:
        """A route that was set aside; it is put back if nobody looks any more."""
        routes = self._known[principal]
        found = routes.aside.get(topic)
        if found is None:
            return None
        if now >= found.until:
            self._put_back(routes, topic)
        return found.route

    def _put_back(self, routes: Routes, topic: bytes) -> None:
        routes.by_topic[topic] = routes.aside.pop(topic).route

    def keep(self, principal: Principal, topic: bytes, route: MqttRoute) -> None:
        """Remember the route of a topic for a principal that is connected."""
        routes = self._known[principal]
        if len(routes.by_topic) >= ROUTES_MAX:
            self._clear(routes)
        elif self._count >= ALL_ROUTES_MAX:
            self.forget()
        self._count += topic not in routes.by_topic
        routes.by_topic[topic] = route

    def forget(self) -> None:
        """Forget all routes: none of them need be true any more."""
        for routes in self._known.values():
            self._clear(routes)

    def forget_of(self, principal: Principal) -> None:
        """Forget the routes of a principal: each of its publishes is checked until it has routes
        again."""
        self._clear(self._known[principal])

    def drop(self, change: Touched) -> None:
        """Forget the routes that a change of streams touches."""
        for text in change.filters:
            for routes in self._known.values():
                for topic in list(routes.aside):
                    self._put_back(routes, topic)
                for topic in self._found(routes.by_topic, text):
                    del routes.by_topic[topic]
                    self._count -= 1

    def _found(self, by_topic: dict[bytes, MqttRoute], text: str) -> list[bytes]:
        """The topics whose messages go to topics that a filter matches."""
        wanted = text.encode()
        if is_exact(text) and not self._is_rewritten:
            return [wanted] if wanted in by_topic else []
        matches = TopicFilter(wanted).matches
        # The prefix is compared first: that is far cheaper.
        begins = wanted.partition(b"+")[0].partition(b"#")[0].removesuffix(b"/")
        return [
            topic
            for topic, route in by_topic.items()
            if route.topic.startswith(begins) and matches(route.topic)
        ]

    def _clear(self, routes: Routes) -> None:
        self._count -= len(routes.by_topic) + len(routes.aside)
        routes.by_topic.clear()
        routes.aside.clear()


def no_route(_topic: bytes) -> None:
    """The route of every topic before a client is accepted."""
    return


def resolver(
    hub: Hub, principal: Principal, written: dict[str, None]
) -> Callable[[bytes], MqttRoute | None]:
    """Finds the route of a topic for a connection, and notes that it writes the topic."""

    def resolve(topic: bytes) -> MqttRoute | None:
        route = hub.resolve(principal, topic)
        if route is not None:
            note_written(written, route.topic.decode())
        return route

    return resolve
