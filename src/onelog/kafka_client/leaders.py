"""Several nodes as one: each partition is asked of the node that leads it.

Rules:
- The nodes and the leaders come from the metadata of any node that answers. Whoever is the only
  node leads everything, at the address that the user gave.
- A leader that is gone or has moved is looked for anew, for `Access.answer_s`. A node on its own
  is not: a call there takes what the client of one node takes.
- A batch whose fate is open is sent again to the next leader. So who writes numbers the batches
  (`init_producer`), and a leader takes each once.
- Not for several threads at once.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from onelog.base.errors import OnelogError, Unavailable
from onelog.kafka_client.access import Access, Address
from onelog.kafka_client.client import PAUSE_S, Client
from onelog.kafka_client.codes import Moved
from onelog.kafka_client.messages import Fetched, Metadata, Part, Producer, Topic

T = TypeVar("T")
Asks = Callable[[Mapping[Part, int]], bytes]
"""The fetch request for partitions and their positions."""

CONNECT_S: Final = 5.0
"""How long a leader may take to be reached: another one may be elected meanwhile."""


class _Asked(NamedTuple):
    """A fetch that is under way."""

    request: bytes
    ends: float
    """When its answer is late."""


class Leaders:
    """The clients of the nodes."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._first = Client(access)
        """Who is asked what there is."""
        self._clients: dict[Address, Client] = {}
        self._nodes: dict[int, Address] = {}
        self._leads: dict[Part, int] = {}
        self._fetches: dict[Client, _Asked] = {}
        self._failing_since: float | None = None
        """Since when no fetch brought an answer."""

    def connect(self) -> None:
        """Connect now, in one try. Raises Unavailable."""
        self._first.connect()

    def close(self) -> None:
        """Hang up."""
        for client in (self._first, *self._clients.values()):
            client.close()

    @property
    def is_alone(self) -> bool:
        """Whether there is one node."""
        return len(self._nodes) <= 1

    # -- who leads what

    def topics(
        self, names: Iterable[str], *, create: bool = False, timeout_s: float | None = None
    ) -> list[Topic]:
        """What the nodes say of topics."""
        told = self._first.metadata(names, create=create, timeout_s=timeout_s)
        self._learn(told)
        return told.topics

    def _learn(self, told: Metadata) -> None:
        for row in told.topics:
            self._leads.update({(row.name, at): node for at, node in row.leaders.items()})
        if told.nodes == self._nodes:
            return
        self._nodes = told.nodes
        if not self.is_alone:  # any of them knows what there is, if the first one is gone
            servers = dict.fromkeys((*self._access.servers, *told.nodes.values()))
            self._first.access = replace(self._access, servers=tuple(servers))

    def client(self, part: Part) -> Client:
        """The client of the node that leads a partition, connected. Raises Moved."""
        if self.is_alone:
            return self._first
        address = self._nodes.get(self._leads.get(part, -1))
        if address is None:
            raise Moved(f"no node leads {part[0]}-{part[1]} at the moment")
        found = self._clients.get(address)
        if found is None:
            connect_s = min(CONNECT_S, self._access.connect_s)
            access = replace(self._access, servers=(address,), connect_s=connect_s)
            found = self._clients[address] = Client(access)
        try:
            found.connect()
        except Unavailable as error:
            raise Moved(str(error)) from error
        return found

    def _split(self, asked: Mapping[Part, T]) -> dict[Client, dict[Part, T]]:
        found: dict[Client, dict[Part, T]] = {}
        for part, value in asked.items():
            found.setdefault(self.client(part), {})[part] = value
        return found

    def follow(self, topic: str, work: Callable[[], T]) -> T:
        """Do what asks leaders of a topic, and again where that may help."""
        ends = time.monotonic() + self._access.answer_s
        while True:
            try:
                return work()
            except OnelogError as error:
                if not error.retriable or self.is_alone or time.monotonic() > ends:
                    raise
            threading.Event().wait(PAUSE_S)  # who is elected next cannot wake us
            self._look_again(topic)

    def _look_again(self, topic: str) -> None:
        try:
            self.topics([topic], timeout_s=0.0)
        except OnelogError as error:
            if not error.retriable:
                raise

    # -- requests

    def init_producer(self, topic: str) -> Producer:
        """Who writes. What it writes to a topic is taken once, however often it is sent."""
        return self.follow(topic, partial(self._first.init_producer, None, 0))

    def offsets(self, asked: Mapping[Part, int]) -> dict[Part, int]:
        """As `Client.offsets`, for partitions of one topic."""

        def work() -> dict[Part, int]:
            found: dict[Part, int] = {}
            for client, rows in self._split(asked).items():
                found |= client.offsets(rows)
            return found

        if not asked:
            return {}
        topic, _number = next(iter(asked))
        return self.follow(topic, work)

    def fetch(self, positions: Mapping[Part, int], asks: Asks, wait_s: float) -> list[Fetched]:
        """What came of partitions of one topic, from whichever leader answers first.

        An answer may show records again that another leader has sent before: the caller knows
        where it stands.
        """
        if self.is_alone:
            return self._first.fetch(asks(positions), wait_s)
        topic, _number = next(iter(positions))
        try:
            found = self._fetch(positions, asks, wait_s)
        except OnelogError as error:
            now = time.monotonic()
            self._failing_since = self._failing_since or now
            if not error.retriable or now > self._failing_since + self._access.answer_s:
                raise
            threading.Event().wait(min(PAUSE_S, wait_s))
            self._look_again(topic)
            return []
        self._failing_since = None
        if any(row.is_coming for row in found):
            self._look_again(topic)
        return found

    def _fetch(self, positions: Mapping[Part, int], asks: Asks, wait_s: float) -> list[Fetched]:
        now = time.monotonic()
        for client in [row for row, asked in self._fetches.items() if asked.ends < now]:
            del self._fetches[client]
            client.close()
            raise Unavailable(f"{client.access} does not answer")
        for client, rows in self._split(positions).items():
            if client not in self._fetches:
                ends = now + wait_s + self._access.answer_s
                self._fetches[client] = _Asked(asks(rows), ends)
            client.fetch_ahead(self._fetches[client].request)  # once: not while it is under way
        found: list[Fetched] = []
        for client in self._answered(wait_s):
            found += client.fetch(self._fetches.pop(client).request, wait_s)
        return found

    def _answered(self, wait_s: float) -> list[Client]:
        """Whose answers have come."""
        inside_tls = [client for client in self._fetches if client.has_more()]
        return inside_tls or select.select(list(self._fetches), (), (), wait_s)[0]
