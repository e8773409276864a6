"""How much waits in a queue, and whether that exceeds its bounds (x-max-length, -bytes).

Rules: only the bodies of waiting messages count. A queue without a bound in bytes weighs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onelog.broker import Record
    from onelog.queues.settings import DeclaredSettings


class Length:
    """The bounds of one queue, and the bytes that wait in it."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_sizes")

    def __init__(self, settings: DeclaredSettings) -> None:
        self._count_max = settings.max_length
        self._bytes_max = settings.max_length_bytes
        self._bytes = 0
        self._sizes: dict[int, int] = {}

    def is_full(self, count: int, record: Record | None) -> bool:
        """Whether one more message is too much when `count` wait."""
        if self._count_max is not None and count >= self._count_max:
            return True
        return self._bytes_max is not None and self._bytes + size_of(record) > self._bytes_max

    def is_exceeded(self, count: int) -> bool:
        """Whether `count` waiting messages are too much."""
        return (self._count_max is not None and count > self._count_max) or (
            self._bytes_max is not None and self._bytes > self._bytes_max
        )

    def add(self, place: int, size_bytes: int) -> None:
        """A message waits."""
        if self._bytes_max is not None:
            self._sizes[place] = size_bytes
            self._bytes += size_bytes

    def remove(self, place: int) -> None:
        """A message no longer waits."""
        if self._sizes:
            self._bytes -= self._sizes.pop(place, 0)

    def clear(self) -> None:
        """Nothing waits."""
        self._sizes.clear()
        self._bytes = 0


def size_of(record: Record | None) -> int:
    """The bytes that count of a message."""
    return len(record.value or b"") if record is not None else 0
