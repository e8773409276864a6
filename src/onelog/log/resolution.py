"""Resolution: which stream is a topic's home, and which streams may hold topics of a filter.

Rules (DESIGN §3): the most specific matching capture wins, level by level: literal before `+`
before `#`. A filter is captured by one stream at most. Answers are cached; a change drops what it
touches (`touched`). The cost of a change depends on what it changes, not on the number of streams:
thousands of streams are made, and opened at a start, one after the other.
"""

from __future__ import annotations

from typing import Final

from onelog.base.errors import Conflict, TopicNotFound
from onelog.log.touched import TopicCache, Touched

CACHE_TOPICS_MAX: Final = 200_000


class _Node:
    __slots__ = ("children", "owner", "rest_owner")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.owner: str | None = None
        self.rest_owner: str | None = None


class Resolver:
    """Captures of all streams."""

    __slots__ = ("_cache", "_captures", "_owned", "_root", "generation")

    def __init__(self) -> None:
        self._captures: dict[str, str] = {}
        self._owned: dict[str, tuple[str, ...]] = {}
        self._root = _Node()
        self._cache: TopicCache[str] = TopicCache(CACHE_TOPICS_MAX)
        self.generation = 0

    def owner(self, text: str) -> str | None:
        """The stream that captures exactly this filter."""
        return self._captures.get(text)

    def replace(self, stream: str, captures: tuple[str, ...]) -> None:
        """Let `stream` capture exactly these filters; Conflict when another stream has one."""
        for text in captures:
            owner = self._captures.get(text, stream)
            if owner != stream:
                raise Conflict(f"the filter {text!r} is captured by stream {owner} already")
        was, now = set(self._owned.get(stream, ())), set(captures)
        for text in was - now:
            del self._captures[text]
            _put(self._root, text.split("/"), 0, None)
        for text in now - was:
            self._captures[text] = stream
            _put(self._root, text.split("/"), 0, stream)
        if captures:
            self._owned[stream] = captures
        else:
            self._owned.pop(stream, None)
        self._cache.drop(Touched(was ^ now))
        self.generation += 1

    def captures(self, stream: str) -> tuple[str, ...]:
        """The filters that a stream captures."""
        return self._owned.get(stream, ())

    def home(self, topic: str) -> str:
        """The name of the stream that `topic` lives in."""
        owner = self._cache.known.get(topic)
        if owner is None:
            owner = _most_specific(self._root, topic.split("/"), 0)
            if owner is None:
                raise TopicNotFound(f"no stream captures the topic {topic!r}")
            self._cache.keep(topic, owner)
        return owner

    def homes_of_topic(self, topic: str) -> list[str]:
        """Streams with a capture that the topic matches: its home, and streams where it may have
        lived."""
        found: set[str] = set()
        _add_matching(self._root, topic.split("/"), 0, found)
        return sorted(found)

    def homes_of_filter(self, text: str) -> list[str]:
        """Streams with a capture that some topic of the filter could match."""
        found: set[str] = set()
        _add_overlapping(self._root, text.split("/"), 0, found)
        return sorted(found)


def _put(node: _Node, levels: list[str], depth: int, owner: str | None) -> None:
    """Give the filter below `node` an owner, or none. Branches that become empty are removed."""
    if depth == len(levels):
        node.owner = owner
        return
    level = levels[depth]
    if level == "#":
        node.rest_owner = owner
        return
    child = node.children.get(level)
    if child is None:
        child = node.children[level] = _Node()
    _put(child, levels, depth + 1, owner)
    if not child.children and child.owner is None and child.rest_owner is None:
        del node.children[level]


def _most_specific(node: _Node, levels: list[str], depth: int) -> str | None:
    if depth == len(levels):
        return node.owner if node.owner is not None else node.rest_owner
    for level in (levels[depth], "+"):
        child = node.children.get(level)
        if child is not None:
            owner = _most_specific(child, levels, depth + 1)
            if owner is not None:
                return owner
    return node.rest_owner


def _add_matching(node: _Node, levels: list[str], depth: int, found: set[str]) -> None:
    if node.rest_owner is not None:
        found.add(node.rest_owner)
    if depth == len(levels):
        if node.owner is not None:
            found.add(node.owner)
        return
    for level in (levels[depth], "+"):
        child = node.children.get(level)
        if child is not None:
            _add_matching(child, levels, depth + 1, found)


def _add_overlapping(node: _Node, levels: list[str], depth: int, found: set[str]) -> None:
    if node.rest_owner is not None:
        found.add(node.rest_owner)
    if depth == len(levels):
        if node.owner is not None:
            found.add(node.owner)
        return
    level = levels[depth]
    if level == "#":
        _add_all(node, found)
    elif level == "+":
        for child in node.children.values():
            _add_overlapping(child, levels, depth + 1, found)
    else:
        for name in (level, "+"):
            below = node.children.get(name)
            if below is not None:
                _add_overlapping(below, levels, depth + 1, found)


def _add_all(node: _Node, found: set[str]) -> None:
    found.update(owner for owner in (node.owner, node.rest_owner) if owner is not None)
    for child in node.children.values():
        _add_all(child, found)
