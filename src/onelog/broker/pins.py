"""Pins: what durable cursors still need of each partition, so that retention leaves it.

Rules: retention and thinning ask for each partition, so the lowest offsets are looked up anew at
most once a second. A cursor that is away also needs streams that were made since it left, from
their start. Thinning asks for single records and learns when a cursor came to need more meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onelog.base.clock import Clock
from onelog.cursors.checkpoint import CheckpointStore
from onelog.cursors.cursor import Cursor
from onelog.cursors.routed import RoutedCursor
from onelog.cursors.sources import SourceRegistry
from onelog.log.needs import NeededOffsets

_FRESH_S: Final = 1.0


class Pins:
    """What durable cursors need."""

    def __init__(
        self,
        checkpoints: CheckpointStore,
        clock: Clock,
        durable: Callable[[], list[Cursor]],
        registry: SourceRegistry,
    ) -> None:
        self._checkpoints = checkpoints
        self._clock = clock
        self._durable = durable
        self._registry = registry
        self._late: dict[str, tuple[tuple[str, int], ...]] = {}
        self._late_of = -1
        """The change of streams that `_late` is of."""
        self._lowest: dict[tuple[str, int], int] = {}
        self._fresh_until = 0.0
        self.claims = 0
        """How often a cursor came to need records that no cursor needed before."""
        self._apart: set[str] = set()
        """The cursors that `_others` leaves out."""
        self._others: dict[tuple[str, int], int] = {}
        self._others_until = 0.0

    def lowest(self) -> dict[tuple[str, int], int]:
        """The lowest offset that durable queues and sessions still need, per partition."""
        now = self._clock.monotonic()
        if now >= self._fresh_until:
            self._lowest = self._checkpoints.pins(self._durable(), late=self._came_late())
            self._fresh_until = now + _FRESH_S
        return self._lowest

    def needs(self, stream_id: str, number: int) -> NeededOffsets:
        """The records of a partition that durable queues and sessions still need."""
        key, found = (stream_id, number), NeededOffsets(lambda: self.claims)
        others: list[Cursor] = []
        exact: set[str] = set()
        for cursor in self._durable():
            if isinstance(cursor, RoutedCursor):
                cursor.tell_needs(key, found)
                exact.add(cursor.name)
            else:
                others.append(cursor)
        lowest = self._lowest_of(others, exact).get(key)
        if lowest is not None:
            found.add_from(lowest)
        return found

    def _lowest_of(self, others: list[Cursor], exact: set[str]) -> dict[tuple[str, int], int]:
        now = self._clock.monotonic()
        if now >= self._others_until or exact != self._apart:
            self._others = self._checkpoints.pins(others, exact, self._came_late())
            self._apart, self._others_until = exact, now + _FRESH_S
        return self._others

    def _came_late(self) -> dict[str, tuple[tuple[str, int], ...]]:
        generation = self._registry.generation
        if self._late_of != generation:  # a state that is kept later knows the streams of now
            self._late, self._late_of = self._checkpoints.late(self._registry.keys), generation
        return self._late

    def outdated(self) -> None:
        """A durable cursor was opened: what it needs counts from now on."""
        self._fresh_until = self._others_until = 0.0

    def claim(self) -> None:
        """A cursor now needs records that no cursor needed before."""
        self.claims += 1
