"""The priority window of a queue: records that were looked at ahead, the highest priority first.

Rules: the window has offsets only and is bounded; records are read again when they are handed out.
A header that is not a small decimal number is priority 0. Equal priorities keep their order.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from typing import Final

from onelog.cursors.cursor import Reading
from onelog.record.headers import find_header

_PRIORITY: Final = re.compile(rb"[0-9]{1,9}")

Take = Callable[[tuple[str, int], int], bool]
"""(source, offset) → whether the queue takes the record: it is not settled already."""


class PriorityWindow:
    """What a queue with priorities has looked at and not handed out."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[tuple[int, tuple[str, int], int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def fill(self, reading: Reading, take: Take, header: bytes, most: int) -> None:
        """Look at further records until the window has so many."""
        room = most - len(self._rows)
        for index, record in reading.read(room) if room > 0 else ():
            key = reading.sources.sources[index].key
            if take(key, record.offset):
                value = find_header(record.headers, header)
                rank = int(value) if value is not None and _PRIORITY.fullmatch(value) else 0
                heapq.heappush(self._rows, (-rank, key, record.offset))

    def peek(self) -> tuple[tuple[str, int], int]:
        """The source and offset of the next record."""
        _rank, key, offset = self._rows[0]
        return key, offset

    def drop(self, key: tuple[str, int]) -> None:
        """Forget what was looked at of this source."""
        self._rows = [row for row in self._rows if row[1] != key]
        heapq.heapify(self._rows)

    def pop(self) -> None:
        """The next record was handed out, or is gone."""
        heapq.heappop(self._rows)
