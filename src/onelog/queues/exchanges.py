"""Exchanges and bindings, and how the bindings of each type of exchange choose. Sans-IO.

Rules (AMQP 0-9-1 3.1.3, RabbitMQ's extensions):
- `direct` compares the key, `fanout` takes all, `topic` matches words (`*` one, `#` any number),
  `headers` compares header values (`x-match` all, any, all-with-x, any-with-x).
- The cost of adding or removing a binding does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.broker import Principal

ExchangeType = Literal["direct", "fanout", "topic", "headers"]
TYPES: Final[tuple[ExchangeType, ...]] = ("direct", "fanout", "topic", "headers")

Table = dict[str, Any]

_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


class ExchangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange as it was declared."""

    name: str
    type: ExchangeType
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = {}
    maker: Principal | None = None
    """Who declared it, as whom its alternate exchange is judged; None: it is not judged."""

    @property
    def alternate(self) -> str | None:
        """The exchange that gets messages for which this one finds no queue."""
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
    ExchangeRecord(name="amq.onelog.audit", type="topic", durable=True, internal=True),
)
"""Exchanges that every virtual host has."""


class Destination(NamedTuple):
    """The target of a binding: a queue or an exchange."""

    kind: Literal["queue", "exchange"]
    name: str


Identity = tuple[str, Destination, str, str]


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule: which messages of an exchange go to a queue or to another exchange."""

    source: str
    destination: Destination
    routing_key: str
    arguments: Table = {}
    maker: Principal | None = None
    """As whom what comes through it is judged (`makers.py`); None: it is not judged."""

    @property
    def identity(self) -> Identity:
        """Two bindings with the same identity are one binding."""
        return self.source, self.destination, self.routing_key, _canonical(self.arguments)


def _canonical(arguments: Table) -> str:
    return repr(sorted(arguments.items(), key=lambda row: row[0]))


Way = tuple[Destination, Collection[Principal | None]]
"""Where a message goes, and who made the bindings that lead it there."""


class _Counted:
    """Destinations, each with the makers of the bindings that lead to it."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[Destination, dict[Principal | None, int]] = {}

    def add(self, binding: Binding) -> None:
        makers = self.rows.setdefault(binding.destination, {})
        makers[binding.maker] = makers.get(binding.maker, 0) + 1

    def remove(self, binding: Binding) -> None:
        makers = self.rows[binding.destination]
        makers[binding.maker] -= 1
        if not makers[binding.maker]:
            del makers[binding.maker]
        if not makers:
            del self.rows[binding.destination]


class _Rule(Protocol):
    """How the bindings of one type of exchange choose. The cost of a change does not depend on
    their number."""

    def add(self, binding: Binding) -> None: ...

    def remove(self, binding: Binding) -> None: ...

    def find(self, key: str, headers: Mapping[str, Any]) -> Iterable[Way]: ...


class _Direct:
    """Compares the key."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[str, _Counted] = {}

    def add(self, binding: Binding) -> None:
        self._keys.setdefault(binding.routing_key, _Counted()).add(binding)

    def remove(self, binding: Binding) -> None:
        found = self._keys[binding.routing_key]
        found.remove(binding)
        if not found.rows:
            del self._keys[binding.routing_key]

    def find(self, key: str, headers: Mapping[str, Any]) -> Iterable[Way]:
        del headers
        found = self._keys.get(key)
        return () if found is None else found.rows.items()


class _Fanout:
    """Sends every message to all."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all = _Counted()

    def add(self, binding: Binding) -> None:
        self._all.add(binding)

    def remove(self, binding: Binding) -> None:
        self._all.remove(binding)

    def find(self, key: str, headers: Mapping[str, Any]) -> Iterable[Way]:
        del key, headers
        return self._all.rows.items()


class _Topic:
    """Patterns of words, as a trie."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Words()

    def add(self, binding: Binding) -> None:
        node = self._root
        for word in _words(binding.routing_key):
            node = node.children.setdefault(word, _Words())
        node.ends.add(binding)

    def remove(self, binding: Binding) -> None:
        words = _words(binding.routing_key)
        path = [self._root]
        for word in words:
            path.append(path[-1].children[word])
        path[-1].ends.remove(binding)
        for above, word, node in zip(path[-2::-1], words[::-1], path[:0:-1], strict=True):
            if node.children or node.ends.rows:
                break
            del above.children[word]

    def find(self, key: str, headers: Mapping[str, Any]) -> Iterable[Way]:
        del headers
        found: list[Way] = []
        words = _words(key)
        seen: set[tuple[int, int]] = set()
        waiting: list[tuple[_Words, int]] = [(self._root, 0)]
        while waiting:
            node, at = waiting.pop()
            if (id(node), at) in seen:
                continue  # many # in one pattern would reach one node in many ways
            seen.add((id(node), at))
            rest = node.children.get("#")
            if rest is not None:
                waiting += [(rest, after) for after in range(at, len(words) + 1)]
            if at == len(words):
                found += node.ends.rows.items()
                continue
            for word in (words[at], "*"):
                child = node.children.get(word)
                # A word of the key that is itself * or # is only a word.
                if child is not None and (word == "*" or words[at] not in ("*", "#")):
                    waiting.append((child, at + 1))
        return found


class _Words:
    """One node in the trie of patterns."""

    __slots__ = ("children", "ends")

    def __init__(self) -> None:
        self.children: dict[str, _Words] = {}
        self.ends = _Counted()


def _words(text: str) -> list[str]:
    """The words of a key or pattern; an empty one has none."""
    return text.split(".") if text else []


class _Headers:
    """Header values are compared, binding by binding."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[Identity, tuple[_HeadersWanted, Way]] = {}

    def add(self, binding: Binding) -> None:
        wanted = _HeadersWanted(binding.arguments)
        self._rows[binding.identity] = wanted, (binding.destination, (binding.maker,))

    def remove(self, binding: Binding) -> None:
        del self._rows[binding.identity]

    def find(self, key: str, headers: Mapping[str, Any]) -> Iterable[Way]:
        del key
        return [way for wanted, way in self._rows.values() if wanted.matches(headers)]


class _HeadersWanted:
    """The header values that one binding of a headers exchange asks for."""

    __slots__ = ("_every", "_wanted")

    def __init__(self, arguments: Table) -> None:
        mode = arguments.get("x-match", "all")
        with_x = mode.endswith("-with-x")
        self._every = mode.startswith("all")
        self._wanted = {
            name: value
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        }

    def matches(self, headers: Mapping[str, Any]) -> bool:
        rows = (
            # A binding without a value only asks that the header is present.
            name in headers and (value is None or headers[name] == value)
            for name, value in self._wanted.items()
        )
        return all(rows) if self._every else any(rows)


_RULES: Final[dict[str, Callable[[], _Rule]]] = {
    "direct": _Direct,
    "fanout": _Fanout,
    "topic": _Topic,
    "headers": _Headers,
}


class Exchange:
    """An exchange and its bindings."""

    __slots__ = ("_rule", "bindings", "find", "record")

    def __init__(self, record: ExchangeRecord) -> None:
        self.record = record
        self.bindings: dict[Identity, Binding] = {}
        self._rule = _RULES[record.type]()
        self.find = self._rule.find
        """Where a message goes from here; one destination may occur several times."""

    def add(self, binding: Binding) -> None:
        """Add a binding."""
        self.bindings[binding.identity] = binding
        self._rule.add(binding)

    def remove(self, binding: Binding) -> None:
        """A binding goes."""
        # The one that was added: what is only equal may have other types.
        self._rule.remove(self.bindings.pop(binding.identity))


def check_binding_arguments(exchange: ExchangeRecord, arguments: Table) -> None:
    """Refuse arguments that a headers exchange cannot follow."""
    if exchange.type != "headers":
        return
    mode = arguments.get("x-match", "all")
    if mode not in _MATCHES:
        raise InvalidRequest(
            f"invalid x-match field value {mode!r}; expected {', '.join(_MATCHES)}",
        )


def check_same_exchange(current: ExchangeRecord, record: ExchangeRecord, vhost: str) -> None:
    """Refuse a declaration of an exchange that is there and is another one."""
    rows = [
        ("type", current.type, record.type),
        ("durable", current.durable, record.durable),
        ("auto_delete", current.auto_delete, record.auto_delete),
        ("internal", current.internal, record.internal),
        ("alternate-exchange", current.alternate, record.alternate),
    ]
    for name, ours, theirs in rows:
        if ours != theirs:
            raise InvalidRequest(
                f"inequivalent arg '{name}' for exchange '{record.name}' in vhost"
                f" '{vhost}': received '{_shown(theirs)}' but current is '{_shown(ours)}'",
            )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
