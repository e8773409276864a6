"""Routing: which queues a message goes to. Sans-IO, one virtual host.

Rules:
- The default exchange (no name) sends to the queue that the key names, and cannot be bound.
- An exchange may feed exchanges; each is visited once, so cycles end. When an exchange finds no
  queue at all, the message goes to its alternate exchange, once.
- A message with further keys (CC, BCC) goes where any of its keys leads, at every exchange on its
  way: one key may lead to the next exchange and another one from there.
- A binding leads a message only while its maker may have it, and an alternate exchange likewise
  (`makers.py`). Where they may not, the message goes as if they were not there.
- The answer for an exchange whose bindings look only at the key is cached by key; every change of
  the topology drops the cache, and so does `forget`, when rights changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from onelog.broker import Principal
from onelog.queues.exchanges import (
    BUILT_IN,
    Binding,
    Destination,
    Exchange,
    ExchangeRecord,
    Identity,
)

CACHE_MAX: Final = 100_000


class WayJudge(Protocol):
    """Says whether what somebody made still counts for a message."""

    def may_lead(self, maker: Principal | None, source: str, key: str, to: Destination) -> bool:
        """Whether a binding brings a message from an exchange to its destination."""

    def may_pass_on(self, maker: Principal | None, alternate: str, key: str) -> bool:
        """Whether a message that an exchange finds no queue for goes to its alternate exchange."""


class Router:
    """The exchanges and bindings of one virtual host."""

    def __init__(self, judge: WayJudge | None = None) -> None:
        self.judge = judge
        """None: nothing is judged."""
        self._exchanges: dict[str, Exchange] = {
            record.name: Exchange(record) for record in BUILT_IN
        }
        self._queues: set[str] = set()
        self._to: dict[Destination, dict[Identity, Binding]] = {}
        self._cache: dict[tuple[str, str], frozenset[str]] = {}

    # -- exchanges and queues

    def find(self, name: str) -> ExchangeRecord | None:
        """An exchange."""
        found = self._exchanges.get(name)
        return None if found is None else found.record

    def exchanges(self) -> list[ExchangeRecord]:
        """Every exchange, by name."""
        return [self._exchanges[name].record for name in sorted(self._exchanges)]

    def add_exchange(self, record: ExchangeRecord) -> None:
        """A new exchange."""
        self._exchanges[record.name] = Exchange(record)
        self._cache.clear()

    def remove_exchange(self, name: str) -> list[Binding]:
        """Remove an exchange and every binding from and to it. Returns these bindings."""
        exchange = self._exchanges[name]
        gone = [*exchange.bindings.values(), *self.bindings_to(Destination("exchange", name))]
        for binding in gone:
            self.unbind(binding)
        del self._exchanges[name]
        self._cache.clear()
        return gone

    def add_queue(self, name: str) -> None:
        """Add a queue."""
        self._queues.add(name)
        self._cache.clear()

    def remove_queue(self, name: str) -> list[Binding]:
        """Remove a queue and every binding to it. Returns these bindings."""
        gone = self.bindings_to(Destination("queue", name))
        for binding in gone:
            self.unbind(binding)
        self._queues.discard(name)
        self._cache.clear()
        return gone

    # -- bindings

    def bind(self, binding: Binding) -> bool:
        """Add a binding; False when it is there already."""
        exchange = self._exchanges[binding.source]
        if binding.identity in exchange.bindings:
            return False
        exchange.add(binding)
        self._to.setdefault(binding.destination, {})[binding.identity] = binding
        self._cache.clear()
        return True

    def find_binding(self, binding: Binding) -> Binding | None:
        """The binding that is there in place of this one; None: there is none."""
        exchange = self._exchanges.get(binding.source)
        return None if exchange is None else exchange.bindings.get(binding.identity)

    def has(self, binding: Binding) -> bool:
        """Whether a binding is there."""
        exchange = self._exchanges.get(binding.source)
        return exchange is not None and binding.identity in exchange.bindings

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False when it is not there."""
        if not self.has(binding):
            return False
        self._exchanges[binding.source].remove(binding)
        rows = self._to[binding.destination]
        del rows[binding.identity]
        if not rows:
            del self._to[binding.destination]
        self._cache.clear()
        return True

    def bindings(self) -> list[Binding]:
        """Every binding that a client made."""
        return [row for found in self._exchanges.values() for row in found.bindings.values()]

    def bindings_from(self, exchange: str) -> list[Binding]:
        """The bindings from an exchange."""
        found = self._exchanges.get(exchange)
        return [] if found is None else list(found.bindings.values())

    def bindings_to(self, destination: Destination) -> list[Binding]:
        """The bindings to a queue or an exchange."""
        return list(self._to.get(destination, {}).values())

    def forget(self) -> None:
        """Rights changed: remembered answers may be wrong now."""
        self._cache.clear()

    # -- reachability

    def queues_behind(self, exchange: str) -> set[str]:
        """The queues that bindings and alternates reach from an exchange."""
        return {
            row.destination.name
            for node in self._nodes_behind(exchange)
            for row in node.bindings.values()
            if row.destination.kind == "queue"
        }

    def _nodes_behind(self, exchange: str) -> Iterator[Exchange]:
        """An exchange, and all exchanges that bindings and alternates reach from it, each once."""
        visited: set[str] = set()
        waiting = [exchange]
        while waiting:
            name = waiting.pop()
            node = self._exchanges.get(name)
            if node is None or name in visited:
                continue
            visited.add(name)
            yield node
            waiting += [
                row.destination.name
                for row in node.bindings.values()
                if row.destination.kind == "exchange"
            ]
            if node.record.alternate is not None:
                waiting.append(node.record.alternate)

    def exchanges_before(self, exchange: str) -> set[str]:
        """The exchanges whose messages may reach an exchange, including itself."""
        feeds: dict[str, set[str]] = {}
        for name, node in self._exchanges.items():
            for row in node.bindings.values():
                if row.destination.kind == "exchange":
                    feeds.setdefault(row.destination.name, set()).add(name)
            if node.record.alternate is not None:
                feeds.setdefault(node.record.alternate, set()).add(name)
        found: set[str] = set()
        waiting = [exchange]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += feeds.get(name, ())
        return found

    # -- routing

    def looks_at_headers(self, exchange: str) -> bool:
        """Whether the route of a message depends on more than its key."""
        return any(node.record.type == "headers" for node in self._nodes_behind(exchange))

    def route(
        self,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, Any],
        further: tuple[str, ...] = (),
    ) -> frozenset[str]:
        """The queues that a message goes to, each once; `further` are its keys beside the first."""
        known = None if further else self._cache.get((exchange, routing_key))
        if known is not None:
            return known
        keys = (routing_key, *further)
        is_lasting = not further
        found: set[str] = set()
        visited: set[str] = set()
        waiting = [exchange]
        while waiting:
            name = waiting.pop()
            if name in visited or name not in self._exchanges:
                continue
            visited.add(name)
            node = self._exchanges[name]
            is_lasting = is_lasting and node.record.type != "headers"
            queues, onward = self._leave(node, keys, headers)
            found |= queues
            waiting += onward
            if not queues and not onward:
                waiting += self._alternates(node.record, keys)
        answer = frozenset(found)
        if is_lasting:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[exchange, routing_key] = answer
        return answer

    def _leave(
        self, node: Exchange, keys: tuple[str, ...], headers: Mapping[str, Any]
    ) -> tuple[set[str], list[str]]:
        if not node.record.name:
            return {key for key in keys if key in self._queues}, []
        queues: set[str] = set()
        onward: list[str] = []
        for key in keys:
            for destination, makers in node.find(key, headers):
                if not self._leads(makers, node.record.name, key, destination):
                    continue
                if destination.kind == "queue":
                    queues.add(destination.name)
                else:
                    onward.append(destination.name)
        return queues, onward

    def _leads(
        self, makers: Iterable[Principal | None], source: str, key: str, to: Destination
    ) -> bool:
        judge = self.judge
        return judge is None or any(judge.may_lead(maker, source, key, to) for maker in makers)

    def _alternates(self, record: ExchangeRecord, keys: tuple[str, ...]) -> list[str]:
        """The alternate exchange that a message goes to, if there is one."""
        alternate, judge = record.alternate, self.judge
        if alternate is None:
            return []
        is_open = judge is None or any(
            judge.may_pass_on(record.maker, alternate, key) for key in keys
        )
        return [alternate] if is_open else []
