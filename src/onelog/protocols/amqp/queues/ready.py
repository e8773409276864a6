"""The ready list: places of messages that wait in a queue, in the order they are to go out.

Rules: what came back goes before what never left, lowest place first. A place is one number (which
partition, which offset), eight bytes in packed arrays: ten million messages are 80 MB. With
priorities there is one list per priority, the highest first.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from typing import Final

CHUNK: Final = 4096
OFFSET_BITS: Final = 48
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


def pack(source: int, offset: int) -> int:
    """A place as one number; places of one partition sort by offset."""
    return source << OFFSET_BITS | offset


def unpack(place: int) -> tuple[int, int]:
    """The partition's number and the offset."""
    return place >> OFFSET_BITS, place & OFFSET_MASK


class _Line:
    """Places of one priority."""

    __slots__ = ("_again", "_chunks", "_head", "size")

    def __init__(self) -> None:
        self._chunks: deque[array[int]] = deque()
        self._head = 0
        self._again: list[int] = []
        self.size = 0

    def append(self, place: int) -> None:
        if not self._chunks or len(self._chunks[-1]) >= CHUNK:
            self._chunks.append(array("Q"))
        self._chunks[-1].append(place)
        self.size += 1

    def put_back(self, place: int) -> None:
        heapq.heappush(self._again, place)
        self.size += 1

    def peek(self) -> int:
        return self._again[0] if self._again else self._chunks[0][self._head]

    def take(self) -> int:
        self.size -= 1
        if self._again:
            return heapq.heappop(self._again)
        chunk = self._chunks[0]
        place = chunk[self._head]
        self._head += 1
        if self._head == len(chunk):
            self._chunks.popleft()
            self._head = 0
        return place

    def places(self) -> list[int]:
        found = sorted(self._again)
        for number, chunk in enumerate(self._chunks):
            found += chunk[self._head if number == 0 else 0 :]
        return found


class ReadyList:
    """What waits."""

    __slots__ = ("_lines", "size")

    def __init__(self, max_priority: int = 0) -> None:
        self._lines = [_Line() for _ in range(max_priority + 1)]
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def _line(self, priority: int) -> _Line:
        return self._lines[min(max(priority, 0), len(self._lines) - 1)]

    def append(self, place: int, priority: int = 0) -> None:
        """A new message."""
        self._line(priority).append(place)
        self.size += 1

    def put_back(self, place: int, priority: int = 0) -> None:
        """A message that was out: it goes before those that were not."""
        self._line(priority).put_back(place)
        self.size += 1

    def peek(self) -> int | None:
        """The next place to go out; None when nothing waits."""
        for line in reversed(self._lines):
            if line.size:
                return line.peek()
        return None

    def take(self) -> int:
        """Take that place."""
        for line in reversed(self._lines):
            if line.size:
                self.size -= 1
                return line.take()
        raise IndexError("nothing waits")

    def take_oldest(self) -> int:
        """Take what a full queue drops first: the head of the lowest priority that waits."""
        for line in self._lines:
            if line.size:
                self.size -= 1
                return line.take()
        raise IndexError("nothing waits")

    def places(self) -> list[int]:
        """Every place that waits, in the order they would go out."""
        return [place for line in reversed(self._lines) for place in line.places()]

    def clear(self) -> list[int]:
        """Take everything."""
        found = self.places()
        self._lines = [_Line() for _ in self._lines]
        self.size = 0
        return found
