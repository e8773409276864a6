"""Which topics and filters a change of streams touches, so that caches keep everything else.

Rules: a change touches the filters that the changed stream captures, captured before the change, or
ever captured. A topic or filter that overlaps none of them has the same home, partitions and gates
as before. Dropping the touched entries is cheap: no cache asks every filter that it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from onelog.base.topics import is_exact, overlap
from onelog.kernel import TopicFilter

_ROOT = "+"
"""The group of filters whose first level is a wildcard."""

Filters = tuple[str, ...]
_NOTHING: Any = {}
"""Stands for a group that does not exist."""

T = TypeVar("T")


class Touched:
    """The filters of one change."""

    __slots__ = ("filters",)

    def __init__(self, filters: Iterable[str] = ()) -> None:
        self.filters = frozenset(filters)


class TopicCache(Generic[T]):
    """Values by topic, up to a number of topics."""

    __slots__ = ("_groups", "_limit", "known")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.known: dict[str, T] = {}
        """By topic. Always the same plain dict, because callers look up in it often."""
        self._groups: dict[str, set[str]] = {}
        """First level → topics."""

    def keep(self, topic: str, value: T) -> None:
        """Remember a value for a topic. When there are too many, forget all others."""
        if len(self.known) >= self._limit:
            self._forget()
        self.known[topic] = value
        self._groups.setdefault(topic.partition("/")[0], set()).add(topic)

    def drop(self, change: Touched) -> None:
        """Forget the topics that a change touches."""
        for text in change.filters:
            level = _group(text)
            if level == _ROOT:
                self._forget()
                return
            near = self._groups.get(level)
            if not near:
                continue
            if is_exact(text):
                gone = [text] if text in near else []
            else:
                matches = TopicFilter(text.encode()).matches
                gone = [topic for topic in near if matches(topic.encode())]
            for topic in gone:
                del self.known[topic]
            near.difference_update(gone)
            if not near:
                del self._groups[level]

    def _forget(self) -> None:
        self.known.clear()
        self._groups.clear()


class ByFilters(Generic[T]):
    """Values under one or more filters (a topic counts as one), found by what a change touches."""

    __slots__ = ("_count", "_many", "_topics", "_wild")

    def __init__(self) -> None:
        self._topics: dict[str, dict[Filters, T]] = {}
        """First level → the keys that are one topic."""
        self._wild: dict[str, dict[Filters, T]] = {}
        """First level → the keys that are one filter with a wildcard."""
        self._many: dict[Filters, T] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, filters: Filters) -> T | None:
        """The value under these filters."""
        return self._place(filters).get(filters)

    def put(self, filters: Filters, value: T) -> None:
        """Keep a value under these filters."""
        place = self._place(filters)
        if place is _NOTHING:
            place = self._tree(filters[0]).setdefault(_group(filters[0]), {})
        self._count += filters not in place
        place[filters] = value

    def pop(self, filters: Filters) -> T | None:
        """Remove and return the value under these filters; None: there is none."""
        place = self._place(filters)
        value = place.pop(filters, None)
        if value is not None:
            self._count -= 1
            if not place and place is not self._many:
                del self._tree(filters[0])[_group(filters[0])]
        return value

    def clear(self) -> None:
        """Remove all values."""
        for part in (self._topics, self._wild, self._many):
            part.clear()
        self._count = 0

    def touched_by(self, change: Touched) -> list[Filters]:
        """The filters with a value that a change touches, each once."""
        found: dict[Filters, None] = {}
        for text in change.filters:
            found.update(dict.fromkeys(self._near(text)))
        return list(found)

    def _tree(self, text: str) -> dict[str, dict[Filters, T]]:
        return self._topics if is_exact(text) else self._wild

    def _place(self, filters: Filters) -> dict[Filters, T]:
        if len(filters) != 1:
            return self._many
        place: dict[Filters, T] = self._tree(filters[0]).get(_group(filters[0]), _NOTHING)
        return place

    def _near(self, text: str) -> Iterator[Filters]:
        level = _group(text)
        looked: list[dict[Filters, T]] = [self._many]
        if level == _ROOT:
            looked += (*self._topics.values(), *self._wild.values())
        else:
            looked += (self._wild.get(level, _NOTHING), self._wild.get(_ROOT, _NOTHING))
            topics = self._topics.get(level, _NOTHING)
            if not is_exact(text):
                looked.append(topics)
            elif (text,) in topics:
                yield (text,)
        for place in looked:
            for filters in place:
                if any(overlap(known, text) for known in filters):
                    yield filters


def _group(text: str) -> str:
    level = text.partition("/")[0]
    return _ROOT if level == "#" else level
