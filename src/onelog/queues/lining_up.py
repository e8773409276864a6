"""Lining up: after a restart, the places of a queue in several partitions become one line.

Rules: a partition keeps its order, whatever times its records have. Between partitions the older
record comes first, as far as moves allow: records in a stream that took topics over come after the
records that its old homes held then (`log/moves.py`), so that every topic keeps its order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from onelog.broker import Move, SourceKey


class QueuedMessage(NamedTuple):
    """One message of a queue: when it was written, and its place."""

    time_ms: int
    offset: int
    is_new: bool
    """Whether it is new to the queue."""


class _Line:
    """The places in one partition, ascending."""

    __slots__ = ("head", "key", "places")

    def __init__(self, key: SourceKey, places: Iterator[QueuedMessage]) -> None:
        self.key = key
        self.places = places
        self.head: QueuedMessage | None = next(places, None)


def line_up(
    lines: Mapping[SourceKey, Iterator[QueuedMessage]],
    moves_of: Callable[[SourceKey], tuple[Move, ...]],
) -> Iterator[tuple[SourceKey, QueuedMessage]]:
    """All places in the order in which their queue hands them out."""
    known = {key: _Line(key, places) for key, places in lines.items()}
    ready: list[tuple[int, SourceKey]] = []
    held: dict[SourceKey, list[tuple[int, SourceKey]]] = {}
    """Old home → (up to where it comes first, the lines that wait for it)."""

    def wait_or_go(line: _Line) -> None:
        if line.head is None:
            return
        blocker = _blocker(line, known, moves_of(line.key))
        if blocker is None:
            heapq.heappush(ready, (line.head.time_ms, line.key))
        else:
            held.setdefault(blocker[0], []).append((blocker[1], line.key))

    for line in known.values():
        wait_or_go(line)
    while ready:
        _time, key = heapq.heappop(ready)
        line = known[key]
        assert line.head is not None
        yield key, line.head
        line.head = next(line.places, None)
        wait_or_go(line)
        waiting = held.get(key)
        if waiting:
            reached = [row for row in waiting if line.head is None or line.head.offset >= row[0]]
            held[key] = [row for row in waiting if row not in reached]
            for _end, other in reached:
                wait_or_go(known[other])
    assert not any(held.values()), "moves lead from older to newer"


def _blocker(
    line: _Line, lines: Mapping[SourceKey, _Line], moves: tuple[Move, ...]
) -> tuple[SourceKey, int] | None:
    """A partition that comes first, and up to which offset."""
    assert line.head is not None
    for move in moves:
        if line.head.offset >= move.end_of(line.key[1]):
            for key, end in move.after:
                other = lines.get(key)
                if other is not None and other.head is not None and other.head.offset < end:
                    return key, end
    return None
