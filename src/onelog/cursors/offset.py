"""The offset cursor: a position per partition that its consumer commits.

No protocol opens one: it is for programs that embed the broker (docs/guide/embedded.md).

Rules: reading and committing are apart. `fetch` moves the read position, `commit` the kept one;
after a restart it reads on from what was committed, never from before it. Commits that are only
offsets are packed side by side, so that an idle cursor costs little.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.cursors.cursor import CursorKind, CursorState, Position, Reading, ignore_change
from onelog.cursors.pull import next_records
from onelog.cursors.sources import SourceRegistry
from onelog.cursors.start import Start
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

    __slots__ = ("_noted", "_plain", "_plain_set", "name", "on_change", "reading")

    kind = CursorKind.OFFSET

    def __init__(self, name: str, reading: Reading) -> None:
        self.name = name
        self.on_change: Callable[[], None] = ignore_change
        self.reading = reading
        self._plain_set = reading.sources
        self._plain = array("q", [-1] * len(self._plain_set.sources)).tobytes()
        """Committed offsets of the sources in the set; -1 is none."""
        self._noted: dict[tuple[str, int], Committed] | None = None
        """Commits with more to remember than an offset, or of other partitions."""

    @classmethod
    def create(
        cls, name: str, registry: SourceRegistry, filters: tuple[str, ...], start: Start
    ) -> OffsetCursor:
        """A new cursor. Its start position counts as committed."""
        cursor = cls(name, Reading(registry, registry.resolve(filters), start.offset_in))
        cursor._take_read()
        return cursor

    @classmethod
    def restore(cls, registry: SourceRegistry, state: CursorState) -> OffsetCursor:
        """Go on from what was committed."""
        cursor = cls(state.name, Reading.restore(registry, state.filters, state.positions))
        for row in msgspec.msgpack.decode(state.body, type=list[Committed]):
            cursor._take(row)
        return cursor

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it reads."""
        return self.reading.filters

    def fetch(self, limit: int = 1000) -> list[Record]:
        """The next records; empty when it has caught up, or has looked at `READ_BYTES` without a
        match."""
        return [record for _index, record in self.reading.read(limit)]

    async def next(self, limit: int = 1000, timeout_s: float | None = None) -> list[Record]:
        """The next records, waiting for them; empty when the time ran out."""
        return await next_records(self.reading, self.fetch, limit, timeout_s)

    def seek(self, stream_id: str, partition: int, offset: int) -> None:
        """Read a partition from `offset` on; what is committed stays."""
        self.reading.seek(self.reading.index(stream_id, partition), offset)
        self.reading.wake()

    def commit(self, committed: Committed) -> None:
        """Remember that everything below this offset is done in one partition."""
        if committed.offset < 0:
            raise InvalidRequest(f"an offset to commit is 0 or more, not {committed.offset}")
        self._take(committed)
        self.on_change()

    def _take(self, row: Committed) -> None:
        key = (row.stream_id, row.partition)
        keys = [source.key for source in self._plain_set.sources]
        if row.leader_epoch == -1 and not row.metadata and key in keys:
            offsets = array("q", self._plain)
            offsets[keys.index(key)] = row.offset
            self._plain = offsets.tobytes()
            if self._noted is not None:
                self._noted.pop(key, None)
        else:
            self._noted = {**(self._noted or {}), key: row}

    def commit_read(self) -> None:
        """Commit everything that was read so far."""
        self._take_read()
        self.on_change()

    def _take_read(self) -> None:
        rows = self.reading.positions()
        self._plain_set = self.reading.sources
        self._plain = array("q", [row.offset for row in rows]).tobytes()
        if self._noted is not None:
            read = {(row.stream_id, row.partition) for row in rows}
            left = {key: row for key, row in self._noted.items() if key not in read}
            self._noted = left or None

    def committed(self) -> list[Committed]:
        """What is committed, per partition."""
        noted = self._noted or {}
        plain = zip(self._plain_set.sources, array("q", self._plain), strict=True)
        rows = [
            Committed(*source.key, offset)
            for source, offset in plain
            if offset >= 0 and source.key not in noted
        ]
        return [*rows, *noted.values()]

    def state(self) -> CursorState:
        """What to keep of it."""
        rows = self.committed()
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
        known = {(row.stream_id, row.partition): row.offset for row in self.committed()}
        return sum(
            max(0, row.offset - known.get((row.stream_id, row.partition), row.offset))
            for row in self.reading.positions()
        )

    def close(self) -> None:
        """Refuse further reads."""
        self.reading.close()
