"""Several nodes as one: each partition is asked of the node that leads it.

Rules:
- The nodes and the leaders come from the metadata of any node that answers. Whoever is the only
  node that was ever named leads everything, at the address that the user gave. A cluster stays
  one, also while a single node of it is registered.
- A leader that is gone or has moved is looked for anew, for `Access.answer_s`. A node on its own
  is not: a call there takes what the client of one node takes.
- Who reads partitions of several leaders reads those that can be read: the others are looked for
  meanwhile.
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
        """All that were ever named; those of the last answer come first."""
        self._leads: dict[Part, int] = {}
        self._fetches: dict[Client, _Asked] = {}
        self._failing_since: float | None = None
        """Since when no fetch brought an answer."""
        self._looked = 0.0
        """When a fetch last looked for leaders."""

    def connect(self) -> None:
        """Connect now, in one try. Raises Unavailable."""
        self._first.connect()

    def close(self) -> None:
        """Hang up."""
        for client in (self._first, *self._clients.values()):
            client.close()

    @property
    def is_alone(self) -> bool:
        """Whether no answer has named a second node so far."""
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
        self._nodes = told.nodes | self._nodes | told.nodes  # its order, and its values
        if not self.is_alone:  # any of them knows what there is, if the first one is gone
            servers = dict.fromkeys((*self._access.servers, *self._nodes.values()))
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

    def _split(
        self, asked: Mapping[Part, T]
    ) -> tuple[dict[Client, dict[Part, T]], list[OnelogError]]:
        """What is asked of whom, and why the rest cannot be asked now."""
        found: dict[Client, dict[Part, T]] = {}
        failed: list[OnelogError] = []
        away: set[int] = set()
        for part, value in asked.items():
            node = self._leads.get(part, -1)
            if node in away:
                continue  # each node is tried once
            try:
                found.setdefault(self.client(part), {})[part] = value
            except Moved as error:
                away.add(node)
                failed.append(error)
        return found, failed

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
            split, failed = self._split(asked)
            if failed:
                raise failed[0]
            for client, rows in split.items():
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
        found, failed = self._fetch(positions, asks, wait_s)
        now = time.monotonic()
        if failed and not found:
            self._failing_since = self._failing_since or now
            if now > self._failing_since + self._access.answer_s:
                raise failed[0]
            threading.Event().wait(min(PAUSE_S, wait_s))
        else:
            self._failing_since = None
        if (failed or any(row.is_coming for row in found)) and now > self._looked + PAUSE_S:
            self._looked = now
            self._look_again(topic)
        return found

    def _fetch(
        self, positions: Mapping[Part, int], asks: Asks, wait_s: float
    ) -> tuple[list[Fetched], list[OnelogError]]:
        """What came, and what may go better soon. Raises what does not."""
        now = time.monotonic()
        failed: list[OnelogError] = []
        for client in [row for row, asked in self._fetches.items() if asked.ends < now]:
            del self._fetches[client]
            client.close()
            failed.append(Unavailable(f"{client.access} does not answer"))
        split, away = self._split(positions)
        failed += away
        for client, rows in split.items():
            if client not in self._fetches:
                ends = now + wait_s + self._access.answer_s
                self._fetches[client] = _Asked(asks(rows), ends)
            client.fetch_ahead(self._fetches[client].request)  # once: not while it is under way
        for client in [row for row, to in self._fetches.items() if not row.is_ahead(to.request)]:
            del self._fetches[client]
            failed.append(Unavailable(f"the connection to {client.access} broke"))
        found: list[Fetched] = []
        for client in self._answered(0.0 if failed else wait_s):
            try:
                found += client.fetch(self._fetches.pop(client).request, wait_s)
            except OnelogError as error:
                if not error.retriable:
                    raise
                failed.append(error)
        return found, failed

    def _answered(self, wait_s: float) -> list[Client]:
        """Whose answers have come."""
        inside_tls = [client for client in self._fetches if client.has_more()]
        return inside_tls or select.select(list(self._fetches), (), (), wait_s)[0]
