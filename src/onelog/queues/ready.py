"""The ready list: places of messages that wait in a queue, in the order in which they go out.

Rules: a message that comes back goes to its old position, before messages that never left. A place
is one number (partition and offset). Places that follow each other are one run of sixteen bytes,
however long: a long backlog of one queue costs next to nothing, and in the worst case each place
costs sixteen bytes. Places of one partition sort by their numbers; only a queue that takes from
several partitions remembers the order of messages that are out. With priorities there is one list
per priority, the highest first.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from typing import Final

from onelog.kernel import LineEnd, ReadyEnd

CHUNK: Final = 2048
"""Runs that share one chunk of memory."""
OFFSET_BITS: Final = 48
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


def pack(source: int, offset: int) -> int:
    """A place as one number; places of one partition sort by offset."""
    return source << OFFSET_BITS | offset


def unpack(place: int) -> tuple[int, int]:
    """The partition's number and the offset."""
    return place >> OFFSET_BITS, place & OFFSET_MASK


class _Line(LineEnd):
    """Places of one priority."""

    __slots__ = ("_again", "_chunks", "_gone", "_head", "_out", "size")

    def __init__(self) -> None:
        self._chunks: deque[array[int]] = deque()
        """Runs in pairs: the first place, and how many places follow each other from there."""
        self._head = 0
        """The index of the head's run in the first chunk."""
        self._gone = 0
        """How many places of the head's run are out."""
        self._again: list[tuple[int, int]] = []
        """Messages that came back, as a heap: number in the line, and place."""
        self.source = -1
        self.is_mixed = False
        self.taken = 0
        self._out: dict[int, int] = {}
        """For places that are out: the number in the line. Only used where places do not sort by
        themselves."""
        self.size = 0

    def append(self, place: int, count: int) -> None:
        source = place >> OFFSET_BITS
        if source != self.source:
            self.is_mixed = self.is_mixed or self.source >= 0
            self.source = source
        self.size += count
        if self._chunks:
            last = self._chunks[-1]
            if last[-2] + last[-1] == place:
                last[-1] += count
                return
        if not self._chunks or len(self._chunks[-1]) >= 2 * CHUNK:
            self._chunks.append(array("Q"))
        self._chunks[-1].extend((place, count))

    @property
    def remembers(self) -> bool:
        return bool(self._out)

    def put_back(self, place: int) -> None:
        heapq.heappush(self._again, (self._out.pop(place, 0), place))
        self.size += 1

    def peek(self) -> int:
        return self._again[0][1] if self._again else self._chunks[0][self._head] + self._gone

    def first(self, count: int) -> list[int]:
        found = [place for _number, place in heapq.nsmallest(count, self._again)]
        head, gone = self._head, self._gone
        for chunk in self._chunks:
            for at in range(head, len(chunk), 2):
                if len(found) >= count:
                    return found
                start, left = chunk[at] + gone, chunk[at + 1] - gone
                found += range(start, start + min(left, count - len(found)))
                gone = 0
            head = 0
        return found

    def run(self, most: int) -> tuple[int, int]:
        """The places at the head that never left and follow each other."""
        if self._again or not self._chunks:
            return 0, 0
        chunk = self._chunks[0]
        return chunk[self._head] + self._gone, min(most, chunk[self._head + 1] - self._gone)

    def take(self) -> int:
        if self._again:
            self.size -= 1
            number, place = heapq.heappop(self._again)
            if number:
                self._out[place] = number
            return place
        place = self._chunks[0][self._head] + self._gone
        self.take_run(place, 1)
        return place

    def take_run(self, place: int, count: int) -> None:
        """Take the first `count` places of the head's run, which begins at `place`."""
        self.size -= count
        self._gone += count
        if self.is_mixed:
            for at in range(count):
                self._out[place + at] = self.taken + at + 1
        self.taken += count
        chunk = self._chunks[0]
        if self._gone == chunk[self._head + 1]:
            self._gone = 0
            self._head += 2
            if self._head == len(chunk):
                self._chunks.popleft()
                self._head = 0

    def passed(self, place: int, count: int) -> None:
        """Places went out without waiting, while no other place waited."""
        source = place >> OFFSET_BITS
        if source != self.source:
            self.is_mixed = self.is_mixed or self.source >= 0
            self.source = source
        if self.is_mixed:
            for at in range(count):
                self._out[place + at] = self.taken + at + 1
        self.taken += count

    def forget(self, place: int, count: int) -> None:
        if self._out:
            for at in range(place, place + count):
                self._out.pop(at, None)

    def move_to(self, other: _Line) -> None:
        other._chunks, self._chunks = self._chunks, deque()
        other._again, self._again = self._again, []
        other._head, other._gone, other.size = self._head, self._gone, self.size
        self._head = self._gone = self.size = 0

    def clear(self) -> None:
        self._chunks.clear()
        self._again.clear()
        self._head = self._gone = self.size = 0

    def places(self) -> list[int]:
        found = [place for _number, place in sorted(self._again)]
        for number, chunk in enumerate(self._chunks):
            for at in range(self._head if number == 0 else 0, len(chunk), 2):
                found += range(chunk[at], chunk[at] + chunk[at + 1])
        # Some places of the head's run are out.
        return found[: len(self._again)] + found[len(self._again) + self._gone :]


class ReadyList(ReadyEnd):
    """The places that wait."""

    __slots__ = ()

    lines: list[_Line]

    def __init__(self, max_priority: int = 0) -> None:
        self.lines = [_Line() for _ in range(max_priority + 1)]
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def _line(self, priority: int) -> _Line:
        return self.lines[min(max(priority, 0), len(self.lines) - 1)]

    def append(self, place: int, priority: int = 0) -> None:
        """A new message."""
        self._line(priority).append(place, 1)
        self.size += 1

    def append_run(self, place: int, count: int) -> None:
        """New messages that follow each other, of no priority."""
        self.lines[0].append(place, count)
        self.size += count

    def run(self, most: int) -> tuple[int, int]:
        """The next places to go out that never left, as far as they follow each other: place and
        count.

        The count is 0 when another place goes first.
        """
        return self.lines[0].run(most) if len(self.lines) == 1 else (0, 0)

    def take_run(self, place: int, count: int) -> None:
        """Take the first `count` places of that run."""
        self.lines[0].take_run(place, count)
        self.size -= count

    def put_back(self, place: int, priority: int = 0) -> None:
        """A message that was out goes back to its old position."""
        self._line(priority).put_back(place)
        self.size += 1

    def passed(self, place: int, count: int) -> None:
        """Messages without priority went out without waiting, while no other message waited."""
        self.lines[0].passed(place, count)

    @property
    def remembers(self) -> bool:
        """Whether `forget` must be called for messages that do not come back."""
        return len(self.lines) > 1 or self.lines[0].remembers

    def forget(self, place: int, count: int = 1) -> None:
        """Messages that were out, and follow each other, do not come back."""
        for line in self.lines:
            line.forget(place, count)

    def peek(self) -> int | None:
        """The next place to go out; None when nothing waits."""
        for line in reversed(self.lines):
            if line.size:
                return line.peek()
        return None

    def first(self, count: int) -> list[int]:
        """The places that `take` would give next."""
        found: list[int] = []
        for line in reversed(self.lines):
            if line.size and len(found) < count:
                found += line.first(count - len(found))
        return found

    def take(self) -> int:
        """Take that place."""
        for line in reversed(self.lines):
            if line.size:
                self.size -= 1
                return line.take()
        raise IndexError("nothing waits")

    def places(self) -> list[int]:
        """Every place that waits, in the order they would go out."""
        return [place for line in reversed(self.lines) for place in line.places()]

    def ranked(self) -> list[tuple[int, int]]:
        """Every place that waits with its priority, in the order they would go out."""
        rows = reversed(list(enumerate(self.lines)))
        return [(place, priority) for priority, line in rows for place in line.places()]

    def cut(self) -> ReadyList:
        """Move everything that waits into a list of its own. Places that are out stay known
        here."""
        other = ReadyList(len(self.lines) - 1)
        for line, empty in zip(self.lines, other.lines, strict=True):
            line.move_to(empty)
        other.size, self.size = self.size, 0
        return other

    def clear(self) -> list[int]:
        """Take everything."""
        found = self.places()
        for line in self.lines:
            line.clear()
        self.size = 0
        return found
