"""The offset cursor: a position per partition that its consumer commits (Kafka, replay, Spark).

Rules: reading and committing are apart. `fetch` moves the read position, `commit` the kept one;
after a restart it reads on from what was committed, never from before it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.cursors.cursor import (
    CursorKind,
    CursorState,
    Position,
    Reading,
    Start,
    ignore_change,
)
from onelog.cursors.pull import next_records
from onelog.cursors.sources import SourceRegistry
from onelog.record.record import Record


class Committed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a consumer committed for one partition."""

    stream_id: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class OffsetCursor:
    """A reader that commits."""

    __slots__ = ("_committed", "name", "on_change", "reading")

    kind = CursorKind.OFFSET

    def __init__(
        self, name: str, reading: Reading, committed: dict[tuple[str, int], Committed]
    ) -> None:
        self.name = name
        self.on_change: Callable[[], None] = ignore_change
        self.reading = reading
        self._committed = committed

    @classmethod
    def create(
        cls, name: str, registry: SourceRegistry, filters: tuple[str, ...], start: Start
    ) -> OffsetCursor:
        """A new cursor; where it starts counts as committed."""
        reading = Reading(registry, registry.resolve(filters), start.offset_in)
        rows = (Committed(row.stream_id, row.partition, row.offset) for row in reading.positions())
        return cls(name, reading, {(row.stream_id, row.partition): row for row in rows})

    @classmethod
    def restore(cls, registry: SourceRegistry, state: CursorState) -> OffsetCursor:
        """Go on from what was committed."""
        rows = msgspec.msgpack.decode(state.body, type=list[Committed])
        reading = Reading.restore(registry, state.filters, state.positions)
        return cls(state.name, reading, {(row.stream_id, row.partition): row for row in rows})

    @property
    def filters(self) -> tuple[str, ...]:
        """What it reads."""
        return self.reading.filters

    def fetch(self, limit: int = 1000) -> list[Record]:
        """The next records; empty when it has caught up (or looked at its share of the log)."""
        return [record for _index, record in self.reading.read(limit)]

    async def next(self, limit: int = 1000, timeout_s: float | None = None) -> list[Record]:
        """The next records, waiting for them; empty when the time ran out."""
        return await next_records(self.reading, self.fetch, limit, timeout_s)

    def seek(self, stream_id: str, partition: int, offset: int) -> None:
        """Read a partition from `offset` on; what is committed stays."""
        index = self.reading.find(stream_id, partition)
        if index is None:
            raise InvalidRequest(
                f"the cursor {self.name} does not read partition {partition} of {stream_id}"
            )
        self.reading.seek(index, offset)

    def commit(self, committed: Committed) -> None:
        """Remember that everything below this offset is done in one partition."""
        if committed.offset < 0:
            raise InvalidRequest(f"an offset to commit is 0 or more, not {committed.offset}")
        self._committed[committed.stream_id, committed.partition] = committed
        self.on_change()

    def commit_read(self) -> None:
        """Commit everything that was read so far."""
        for row in self.reading.positions():
            self.commit(Committed(row.stream_id, row.partition, row.offset))

    def committed(self) -> list[Committed]:
        """What is committed, per partition."""
        return list(self._committed.values())

    def state(self) -> CursorState:
        """What to keep of it."""
        rows = list(self._committed.values())
        positions = [Position(row.stream_id, row.partition, row.offset) for row in rows]
        body = msgspec.msgpack.encode(rows)
        return CursorState(self.name, self.kind, self.filters, positions, body)

    def positions(self) -> list[Position]:
        """Where it reads, per partition."""
        return self.reading.positions()

    def lag(self) -> int:
        """Offsets to the end."""
        return self.reading.lag()

    def pending(self) -> int:
        """Records read and not committed, in offsets."""
        return sum(
            max(0, row.offset - known.offset)
            for row in self.reading.positions()
            if (known := self._committed.get((row.stream_id, row.partition))) is not None
        )

    def close(self) -> None:
        """Refuse further reads."""
        self.reading.close()
