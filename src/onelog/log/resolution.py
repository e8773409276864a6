"""Resolution: which stream is a topic's home, and which streams may hold topics of a filter.

Rules (DESIGN §3): the most specific matching capture wins, level by level: literal before `+`
before `#`. A filter is captured by one stream at most. Answers are cached; any change of captures
drops the cache.
"""

from __future__ import annotations

from typing import Final

from onelog.base.errors import Conflict, TopicNotFound
from onelog.base.topics import overlap

CACHE_TOPICS_MAX: Final = 200_000


class _Node:
    __slots__ = ("children", "owner", "rest_owner")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.owner: str | None = None
        self.rest_owner: str | None = None


class Resolver:
    """Captures of all streams."""

    __slots__ = ("_cache", "_captures", "_root", "generation")

    def __init__(self) -> None:
        self._captures: dict[str, str] = {}
        self._root = _Node()
        self._cache: dict[str, str] = {}
        self.generation = 0

    def replace(self, stream: str, captures: tuple[str, ...]) -> None:
        """Let `stream` capture exactly these filters; Conflict when another stream has one."""
        for text in captures:
            owner = self._captures.get(text, stream)
            if owner != stream:
                raise Conflict(f"the filter {text!r} is captured by stream {owner} already")
        kept = {text: owner for text, owner in self._captures.items() if owner != stream}
        kept.update((text, stream) for text in captures)
        self._captures = kept
        self._rebuild()

    def _rebuild(self) -> None:
        self._root = _Node()
        for text, owner in self._captures.items():
            node = self._root
            levels = text.split("/")
            for level in levels[:-1] if levels[-1] == "#" else levels:
                node = node.children.setdefault(level, _Node())
            if levels[-1] == "#":
                node.rest_owner = owner
            else:
                node.owner = owner
        self._cache = {}
        self.generation += 1

    def home(self, topic: str) -> str:
        """The name of the stream that `topic` lives in."""
        owner = self._cache.get(topic)
        if owner is None:
            owner = _most_specific(self._root, topic.split("/"), 0)
            if owner is None:
                raise TopicNotFound(f"no stream captures the topic {topic!r}")
            if len(self._cache) >= CACHE_TOPICS_MAX:
                self._cache.clear()
            self._cache[topic] = owner
        return owner

    def homes_of_topic(self, topic: str) -> list[str]:
        """Streams with a capture that the topic matches: its home, and where it lived before."""
        found: set[str] = set()
        _add_matching(self._root, topic.split("/"), 0, found)
        return sorted(found)

    def homes_of_filter(self, text: str) -> list[str]:
        """Streams with a capture that some topic of the filter could match."""
        return sorted(
            {owner for capture, owner in self._captures.items() if overlap(capture, text)}
        )


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
