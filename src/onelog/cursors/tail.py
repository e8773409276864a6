"""The tail cursor: follows the end and remembers nothing.

No protocol opens one: it is for programs that embed the broker (docs/guide/embedded.md).

Rules: it begins at the end. When its peer is slow, it falls behind in the log, and no queue grows
(I8). With `lag_max` it skips records that it could not deliver in time, and counts them.
"""

from __future__ import annotations

from collections.abc import Callable

from onelog.cursors.cursor import CursorKind, CursorState, Position, Reading, ignore_change
from onelog.cursors.pull import next_records
from onelog.cursors.sources import SourceRegistry
from onelog.cursors.start import LATEST, Start
from onelog.record.record import Record


class TailCursor:
    """A live reader."""

    __slots__ = ("_lag_max", "name", "on_change", "reading", "skipped")

    kind = CursorKind.TAIL

    def __init__(
        self,
        name: str,
        registry: SourceRegistry,
        filters: tuple[str, ...],
        *,
        start: Start = LATEST,
        lag_max: int | None = None,
    ) -> None:
        self.name = name
        self.on_change: Callable[[], None] = ignore_change
        self.reading = Reading(registry, registry.resolve(filters), start.offset_in)
        self.skipped = 0
        self._lag_max = lag_max

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it reads."""
        return self.reading.filters

    def fetch(self, limit: int = 1000) -> list[Record]:
        """The next records; empty when it has caught up, or has looked at `READ_BYTES` without a
        match."""
        if self._lag_max is not None:
            self._skip(self._lag_max)
        return [record for _index, record in self.reading.read(limit)]

    def _skip(self, lag_max: int) -> None:
        for index, source in enumerate(self.reading.sources.sources):
            behind = source.partition.high_watermark - self.reading.position(index)
            if behind > lag_max:
                self.skipped += behind - lag_max
                self.reading.seek(index, source.partition.high_watermark - lag_max)

    async def next(self, limit: int = 1000, timeout_s: float | None = None) -> list[Record]:
        """The next records, waiting for them; empty when the time ran out."""
        return await next_records(self.reading, self.fetch, limit, timeout_s)

    def state(self) -> CursorState:
        """Nothing of it is kept; the admin listener shows this."""
        return CursorState(self.name, self.kind, self.filters, self.positions())

    def positions(self) -> list[Position]:
        """Where it stands, per partition."""
        return self.reading.positions()

    def lag(self) -> int:
        """Offsets to the end."""
        return self.reading.lag()

    def pending(self) -> int:
        """Nothing is ever pending."""
        return 0

    def close(self) -> None:
        """Refuse further reads."""
        self.reading.close()
