"""The topic trie, interpreted: which values are bound to the filters that match a topic.

Rules: a value is bound to a filter at most once. Empty nodes are removed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest
from onelog.kernel.pure.filters import split_filter

if TYPE_CHECKING:
    from collections.abc import Iterator

_VALUE_MAX = (1 << 63) - 1
_CACHE_MAX = 65_536


class _Node:
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.values: set[int] = set()


class TopicTrie:
    """Filters with values; `match` answers a topic, `covered` answers a filter."""

    __slots__ = ("_cache", "_count", "_root")

    def __init__(self) -> None:
        self._root = _Node()
        self._count = 0
        self._cache: dict[bytes, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, filter: bytes, value: int) -> None:  # noqa: A002
        """Bind `value` to `filter`. Binding it again changes nothing."""
        if not 0 <= value <= _VALUE_MAX:
            raise InvalidRequest(f"value {value} is not a non-negative 64-bit number")
        node = self._root
        for level in split_filter(filter):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if value not in node.values:
            node.values.add(value)
            self._count += 1
            self._cache.clear()

    def remove(self, filter: bytes, value: int) -> bool:  # noqa: A002
        """Remove `value` from `filter`. Returns whether it was there."""
        node = self._root
        path: list[tuple[_Node, bytes]] = []
        for level in filter.split(b"/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return False
            node = child
        if value not in node.values:
            return False
        node.values.remove(value)
        self._count -= 1
        self._cache.clear()
        for parent, level in reversed(path):
            if node.values or node.children:
                break
            del parent.children[level]
            node = parent
        return True

    def match(self, topic: bytes) -> tuple[int, ...]:
        """Values of every filter that matches `topic`, ascending, each once."""
        found = self._cache.get(topic)
        if found is None:
            found = self.match_uncached(topic)
            if len(self._cache) >= _CACHE_MAX:
                self._cache.clear()
            self._cache[topic] = found
        return found

    def match_uncached(self, topic: bytes) -> tuple[int, ...]:
        """The same, without the cache."""
        if not topic:
            return ()
        values: set[int] = set()
        nodes = [self._root]
        wild = topic[:1] != b"$"
        for level in topic.split(b"/"):
            below: list[_Node] = []
            for node in nodes:
                if level not in (b"+", b"#") and (child := node.children.get(level)) is not None:
                    below.append(child)
                if wild and (child := node.children.get(b"+")) is not None:
                    below.append(child)
                if wild and (child := node.children.get(b"#")) is not None:
                    values |= child.values
            nodes, wild = below, True
        for node in nodes:
            values |= node.values
            if (child := node.children.get(b"#")) is not None:
                values |= child.values
        return tuple(sorted(values))

    def covered(self, filter: bytes) -> list[int]:  # noqa: A002
        """Values of the stored topics (filters without wildcards) that `filter` matches."""
        levels = split_filter(filter)
        return sorted({value for node in _covered(self._root, levels, 0) for value in node.values})

    def memory_bytes(self) -> int:
        """Roughly the memory of nodes and values, without the cache."""
        total, stack = 0, [self._root]
        while stack:
            node = stack.pop()
            total += 64 + node.children.__sizeof__() + node.values.__sizeof__()
            total += sum(len(level) + 33 for level in node.children) + 32 * len(node.values)
            stack.extend(node.children.values())
        return total


def _covered(node: _Node, levels: list[bytes], depth: int) -> Iterator[_Node]:
    if depth == len(levels):
        yield node
    elif levels[depth] == b"#":
        yield from _below(node, depth)
    elif levels[depth] == b"+":
        for level, child in node.children.items():
            if _plain(level, depth):
                yield from _covered(child, levels, depth + 1)
    elif (exact := node.children.get(levels[depth])) is not None:
        yield from _covered(exact, levels, depth + 1)


def _below(node: _Node, depth: int) -> Iterator[_Node]:
    """The node itself (`a/#` names `a`) and every plain topic under it."""
    yield node
    for level, child in node.children.items():
        if _plain(level, depth):
            yield from _below(child, depth + 1)


def _plain(level: bytes, depth: int) -> bool:
    return level not in (b"+", b"#") and not (depth == 0 and level[:1] == b"$")
