"""Views that other nodes know: which topic an id means, and whether an exact topic has records.

Rules:
- The id of a view is made of its name. A client that got it from one node fetches with it from
  another, which asks the others for the name.
- A node without a copy of the partition of an exact topic asks that partition's leader whether
  there is a record. While the leader does not answer, whether the topic exists is not known.
- What was learnt is remembered as any view is. A node on its own asks nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

import msgspec

from onelog.base.errors import NotLeader, OnelogError
from onelog.broker import NO_NODE, Broker
from onelog.protocols.kafka.topics import Topics
from onelog.protocols.kafka.turns import RequestTurns
from onelog.protocols.kafka.views.registry import Views

NAMES_OF_VIEWS: Final = "kafka.view-names"
TOPICS_HELD: Final = "kafka.topics-held"
"""The methods that a node answers."""
ASK_S: Final = 2.0
ASKED_AT_ONCE: Final = 1000
"""Names or ids of one question, and of one request; more of them are not learnt."""

Name = str | uuid.UUID
T = TypeVar("T")


class ViewsElsewhere:
    """Asks other nodes for views, and answers them."""

    def __init__(self, broker: Broker, topics: Topics, views: Views) -> None:
        self._broker = broker
        self._topics = topics
        self._views = views
        broker.calls.serve(NAMES_OF_VIEWS, self._names_asked)
        broker.calls.serve(TOPICS_HELD, self._held_asked)

    def close(self) -> None:
        """Answer nobody any more."""
        for method in (NAMES_OF_VIEWS, TOPICS_HELD):
            self._broker.calls.serve(method, None)

    # -- asking

    def lacks_id(self, wanted: bytes) -> bool:
        """Whether an id is not known here, and may be elsewhere."""
        known = self._topics.by_id
        return bool(self._broker.cluster.nodes()) and known(uuid.UUID(bytes=wanted)) is None

    async def learn(self, wanted: Iterable[Name]) -> frozenset[Name]:
        """Have every topic known here that another node knows by these names and ids, or that only
        cold bytes know. Returns those of which that is not known now."""
        once = dict.fromkeys(wanted)
        await self._settle(once)
        if not self._broker.cluster.nodes():
            return frozenset()
        ids: list[uuid.UUID] = []
        names: dict[int, list[str]] = {}
        count = 0
        async for name in RequestTurns().over(once):
            if isinstance(name, uuid.UUID):
                if self._topics.by_id(name) is not None:
                    continue
                ids.append(name)
            else:
                leaders = self._leaders_elsewhere(name)
                if not leaders:
                    continue
                for leader in leaders:
                    names.setdefault(leader, []).append(name)
            count += 1
            if count == ASKED_AT_ONCE:
                break
        found = await asyncio.gather(
            self._learn_ids(ids), *(self._learn_names(*row) for row in names.items())
        )
        return frozenset().union(*found)

    async def _settle(self, wanted: Iterable[Name]) -> None:
        """Wait for cold bytes here, and not where a topic is looked for: that is on the loop."""
        async for name in RequestTurns().over(wanted):
            if isinstance(name, str) and not self._topics.is_made(name):
                with contextlib.suppress(
                    OnelogError
                ):  # it comes again, to whoever asks for the topic
                    await self._views.settle(name)

    def _leaders_elsewhere(self, name: str) -> set[int]:
        """The leaders of the partitions of an exact topic that are not here, if nothing is known of
        the topic."""
        try:
            if self._topics.find(name) is not None:
                return set()
        except OnelogError:  # no name of a topic
            return set()
        view, leaders = self._views.shape(name), set[int]()
        for number in range(view.partition_count):
            log = view.partition(number).log
            if isinstance(log.stopped, NotLeader):
                record = self._broker.streams.get(log.stream).record
                leaders.add(self._broker.cluster.replicas(record.id, log).leader)
        return leaders

    async def _learn_ids(self, ids: Sequence[uuid.UUID]) -> set[Name]:
        """Ask every other node; one of them gave the ids to the client."""
        if not ids:
            return set()
        cluster = self._broker.cluster
        others = [place.id for place in cluster.nodes() if place.id != cluster.node]
        wanted = [one.bytes for one in ids]
        answers = await asyncio.gather(
            *(self._ask(node, NAMES_OF_VIEWS, wanted, list[str]) for node in others)
        )
        for name in {name for names in answers for name in names or ()}:
            self._views.remember(name)
        return set()  # a client asks for the metadata again, and gets another id or none

    async def _learn_names(self, leader: int, names: Sequence[str]) -> set[Name]:
        if leader in (NO_NODE, self._broker.cluster.node):
            return set(names)
        found = await self._ask(leader, TOPICS_HELD, names, list[str])
        if found is None:
            return set(names)
        for name in set(names).intersection(found):
            self._views.remember(name)
        return set()

    async def _ask(self, node: int, method: str, argument: object, kind: type[T]) -> T | None:
        try:
            return await self._broker.calls.call(node, method, argument, kind, ASK_S)
        except OnelogError:
            return None

    # -- being asked

    async def _names_asked(self, _node: int, argument: msgspec.Raw) -> list[str]:
        asked = msgspec.msgpack.decode(argument, type=list[bytes])
        found = []
        async for one in RequestTurns().over(islice(asked, ASKED_AT_ONCE)):
            view = self._views.by_id(uuid.UUID(bytes=one)) if len(one) == 16 else None
            if view is not None:
                found.append(view.name)
        return found

    async def _held_asked(self, _node: int, argument: msgspec.Raw) -> list[str]:
        asked = msgspec.msgpack.decode(argument, type=list[str])
        await self._settle(asked[:ASKED_AT_ONCE])
        turns = RequestTurns().over(islice(asked, ASKED_AT_ONCE))
        return [name async for name in turns if self._holds(name)]

    def _holds(self, name: str) -> bool:
        try:
            return self._topics.find(name) is not None
        except OnelogError:
            return False
