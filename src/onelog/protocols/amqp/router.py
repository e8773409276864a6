"""Routing: exchanges, bindings, and which queues a message goes to. Sans-IO, one virtual host.

Rules (AMQP 0-9-1 3.1.3, RabbitMQ's extensions):
- `direct` compares the key, `fanout` takes all, `topic` matches words (`*` one, `#` any number),
  `headers` compares header values (`x-match` all, any, all-with-x, any-with-x).
- The default exchange (no name) sends to the queue that the key names, and cannot be bound.
- An exchange may feed exchanges; each is visited once, so cycles end. Where an exchange finds no
  queue at all, its alternate exchange is asked, once.
- The answer for an exchange whose bindings look only at the key is cached by key; every change of
  the topology drops the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from onelog.protocols.amqp.errors import AmqpError, Reply

ExchangeType = Literal["direct", "fanout", "topic", "headers"]
TYPES: Final[tuple[ExchangeType, ...]] = ("direct", "fanout", "topic", "headers")

Table = dict[str, Any]

CACHE_MAX: Final = 100_000
_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


class ExchangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange as it was declared."""

    name: str
    type: ExchangeType
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = {}

    @property
    def alternate(self) -> str | None:
        """The exchange that gets what finds no queue here."""
        found = self.arguments.get("alternate-exchange")
        return found if isinstance(found, str) else None


BUILT_IN: Final = (
    ExchangeRecord(name="", type="direct", durable=True),
    ExchangeRecord(name="amq.direct", type="direct", durable=True),
    ExchangeRecord(name="amq.fanout", type="fanout", durable=True),
    ExchangeRecord(name="amq.topic", type="topic", durable=True),
    ExchangeRecord(name="amq.headers", type="headers", durable=True),
    ExchangeRecord(name="amq.match", type="headers", durable=True),
    ExchangeRecord(name="amq.rabbitmq.trace", type="topic", durable=True, internal=True),
)
"""Exchanges that every virtual host has."""


class Destination(NamedTuple):
    """Where a binding leads."""

    kind: Literal["queue", "exchange"]
    name: str


Identity = tuple[str, Destination, str, str]


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule: what of an exchange goes to a queue or to another exchange."""

    source: str
    destination: Destination
    routing_key: str
    arguments: Table = {}

    @property
    def identity(self) -> Identity:
        """Two bindings with one identity are one binding."""
        return self.source, self.destination, self.routing_key, _canonical(self.arguments)


def _canonical(arguments: Table) -> str:
    return repr(sorted(arguments.items(), key=lambda row: row[0]))


Matcher = Callable[[str, Mapping[str, Any]], bool]


class _Exchange:
    """An exchange with what leaves it."""

    __slots__ = ("bindings", "matchers", "record", "words")

    def __init__(self, record: ExchangeRecord) -> None:
        self.record = record
        self.bindings: dict[Identity, Binding] = {}
        self.matchers: list[tuple[Matcher, Destination]] = []
        self.words: _Words | None = _Words() if record.type == "topic" else None

    def add(self, binding: Binding) -> None:
        self.bindings[binding.identity] = binding
        self._rebuild()

    def remove(self, binding: Binding) -> None:
        del self.bindings[binding.identity]
        self._rebuild()

    def _rebuild(self) -> None:
        kind = self.record.type
        if self.words is not None:
            self.words = _Words()
            for binding in self.bindings.values():
                self.words.add(binding.routing_key, binding.destination)
            return
        self.matchers = [
            (_MATCHERS[kind](binding), binding.destination) for binding in self.bindings.values()
        ]

    def find(self, key: str, headers: Mapping[str, Any]) -> Iterable[Destination]:
        """Where a message goes from here; one destination may come several times."""
        if self.words is not None:
            return self.words.find(key)
        return [to for matches, to in self.matchers if matches(key, headers)]


class _Words:
    """The patterns of a topic exchange as a trie of words."""

    __slots__ = ("children", "destinations")

    def __init__(self) -> None:
        self.children: dict[str, _Words] = {}
        self.destinations: set[Destination] = set()

    def add(self, pattern: str, destination: Destination) -> None:
        node = self
        for word in _words(pattern):
            node = node.children.setdefault(word, _Words())
        node.destinations.add(destination)

    def find(self, key: str) -> set[Destination]:
        found: set[Destination] = set()
        words = _words(key)
        seen: set[tuple[int, int]] = set()
        waiting: list[tuple[_Words, int]] = [(self, 0)]
        while waiting:
            node, at = waiting.pop()
            if (id(node), at) in seen:
                continue  # many # in one pattern would come to one place in many ways
            seen.add((id(node), at))
            rest = node.children.get("#")
            if rest is not None:
                waiting += [(rest, after) for after in range(at, len(words) + 1)]
            if at == len(words):
                found |= node.destinations
                continue
            for word in (words[at], "*"):
                child = node.children.get(word)
                # A word of the key that is itself * or # is only a word.
                if child is not None and (word == "*" or words[at] not in ("*", "#")):
                    waiting.append((child, at + 1))
        return found


def _words(text: str) -> list[str]:
    """The words of a key or pattern; an empty one has none."""
    return text.split(".") if text else []


def _direct(binding: Binding) -> Matcher:
    wanted = binding.routing_key
    return lambda key, _headers: key == wanted


def _fanout(_binding: Binding) -> Matcher:
    return lambda _key, _headers: True


def _headers(binding: Binding) -> Matcher:
    mode = binding.arguments.get("x-match", "all")
    with_x = mode.endswith("-with-x")
    wanted = {
        name: value
        for name, value in binding.arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    }
    every = mode.startswith("all")

    def matches(_key: str, headers: Mapping[str, Any]) -> bool:
        rows = (
            # A binding without a value asks only for the header to be there.
            name in headers and (value is None or headers[name] == value)
            for name, value in wanted.items()
        )
        return all(rows) if every else any(rows)

    return matches


_MATCHERS: Final[dict[str, Callable[[Binding], Matcher]]] = {
    "direct": _direct,
    "fanout": _fanout,
    "headers": _headers,
}


def check_binding_arguments(exchange: ExchangeRecord, arguments: Table) -> None:
    """Refuse arguments that a headers exchange cannot follow."""
    if exchange.type != "headers":
        return
    mode = arguments.get("x-match", "all")
    if mode not in _MATCHES:
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"invalid x-match field value {mode!r}; expected {', '.join(_MATCHES)}",
        )


class Router:
    """The exchanges and bindings of one virtual host."""

    def __init__(self) -> None:
        self._exchanges: dict[str, _Exchange] = {
            record.name: _Exchange(record) for record in BUILT_IN
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
        self._exchanges[record.name] = _Exchange(record)
        self._cache.clear()

    def remove_exchange(self, name: str) -> list[Binding]:
        """An exchange goes, and with it every binding from and to it; the bindings that went."""
        exchange = self._exchanges[name]
        gone = [*exchange.bindings.values(), *self.bindings_to(Destination("exchange", name))]
        for binding in gone:
            self.unbind(binding)
        del self._exchanges[name]
        self._cache.clear()
        return gone

    def add_queue(self, name: str) -> None:
        """A queue can be sent to."""
        self._queues.add(name)
        self._cache.clear()

    def remove_queue(self, name: str) -> list[Binding]:
        """A queue goes, and with it every binding to it; the bindings that went."""
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

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False when it is not there."""
        exchange = self._exchanges.get(binding.source)
        if exchange is None or binding.identity not in exchange.bindings:
            return False
        exchange.remove(binding)
        rows = self._to[binding.destination]
        del rows[binding.identity]
        if not rows:
            del self._to[binding.destination]
        self._cache.clear()
        return True

    def bindings(self) -> list[Binding]:
        """Every binding that somebody made."""
        return [row for found in self._exchanges.values() for row in found.bindings.values()]

    def bindings_from(self, exchange: str) -> list[Binding]:
        """What leaves an exchange."""
        found = self._exchanges.get(exchange)
        return [] if found is None else list(found.bindings.values())

    def bindings_to(self, destination: Destination) -> list[Binding]:
        """What leads to a queue or an exchange."""
        return list(self._to.get(destination, {}).values())

    # -- ways

    def queues_behind(self, exchange: str) -> set[str]:
        """The queues that bindings and alternates lead to from an exchange."""
        found: set[str] = set()
        visited: set[str] = set()
        waiting = [exchange]
        while waiting:
            name = waiting.pop()
            node = self._exchanges.get(name)
            if node is None or name in visited:
                continue
            visited.add(name)
            for row in node.bindings.values():
                if row.destination.kind == "queue":
                    found.add(row.destination.name)
                else:
                    waiting.append(row.destination.name)
            if node.record.alternate is not None:
                waiting.append(node.record.alternate)
        return found

    def exchanges_before(self, exchange: str) -> set[str]:
        """The exchanges whose messages may come to an exchange, itself among them."""
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
        """Whether where a message of an exchange goes depends on more than its key."""
        visited: set[str] = set()
        waiting = [exchange]
        while waiting:
            name = waiting.pop()
            node = self._exchanges.get(name)
            if node is None or name in visited:
                continue
            visited.add(name)
            if node.record.type == "headers":
                return True
            waiting += [
                row.destination.name
                for row in node.bindings.values()
                if row.destination.kind == "exchange"
            ]
            if node.record.alternate is not None:
                waiting.append(node.record.alternate)
        return False

    def route(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> frozenset[str]:
        """The queues that a message goes to, each once."""
        known = self._cache.get((exchange, routing_key))
        if known is not None:
            return known
        looked_at_headers = False
        found: set[str] = set()
        visited: set[str] = set()
        waiting = [exchange]
        while waiting:
            name = waiting.pop()
            if name in visited or name not in self._exchanges:
                continue
            visited.add(name)
            node = self._exchanges[name]
            looked_at_headers = looked_at_headers or node.record.type == "headers"
            queues, onward = self._leave(node, routing_key, headers)
            found |= queues
            waiting += onward
            alternate = node.record.alternate
            if not queues and not onward and alternate is not None:
                waiting.append(alternate)
        answer = frozenset(found)
        if not looked_at_headers:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[exchange, routing_key] = answer
        return answer

    def _leave(
        self, node: _Exchange, key: str, headers: Mapping[str, Any]
    ) -> tuple[set[str], list[str]]:
        if not node.record.name:
            return ({key} if key in self._queues else set()), []
        queues: set[str] = set()
        onward: list[str] = []
        for destination in node.find(key, headers):
            if destination.kind == "queue":
                queues.add(destination.name)
            else:
                onward.append(destination.name)
        return queues, onward
