"""Records of a queue that came back and wait out their back-off."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class BackOff:
    """Which records wait, and until when."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[tuple[float, int, tuple[str, int]]] = []

    def add(self, ready_at: float, key: tuple[str, int], offset: int) -> None:
        """Let a record wait."""
        heapq.heappush(self._rows, (ready_at, offset, key))

    def take_due(self, now: float) -> Iterator[tuple[tuple[str, int], int]]:
        """The records whose time has come; they wait no more."""
        while self._rows and self._rows[0][0] <= now:
            _ready_at, offset, key = heapq.heappop(self._rows)
            yield key, offset

    def drop(self, key: tuple[str, int]) -> None:
        """Records of this source wait no more."""
        self._rows = [row for row in self._rows if row[2] != key]
        heapq.heapify(self._rows)

    def next_at(self) -> float | None:
        """When the next one is ready; None: none waits."""
        return self._rows[0][0] if self._rows else None


def backoff_ms(count: int, base_ms: int, most_ms: int) -> int:
    """How long a record waits that came back so often: it doubles up to a bound."""
    return min(base_ms << min(max(count - 1, 0), 30), most_ms) if base_ms else 0
