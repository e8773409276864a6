"""What every cursor is: a name, filters, positions over sources, and a state that can be kept.

Rules:
- A cursor never changes the log (I3). What it remembers goes to the internal stream `~cursors`.
- Positions are kept in one flat array beside a source set that equal cursors share, so that an
  idle cursor costs little (bar: 1 KB).
- When streams change, positions are carried over. A stream that is new to the cursor is read from
  its start, but only after the sources it had before have reached where they ended at that
  moment: so a topic that moved is read in order (DESIGN §3).
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final, Literal, Protocol

import msgspec

from onelog.base.errors import Closed, InvalidRequest, OnelogError
from onelog.base.ids import Offset, TimestampMs
from onelog.cursors.reader import READ_BYTES, read_records
from onelog.cursors.sources import Source, SourceRegistry, SourceSet
from onelog.log.wakeup import Waiter
from onelog.record.record import Record


class CursorKind(StrEnum):
    """The five kinds (DESIGN §7)."""

    TAIL = "tail"
    OFFSET = "offset"
    SESSION = "session"
    QUEUE = "queue"
    TABLE = "table"


class Position(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a cursor stands in one partition."""

    stream_id: str
    partition: int
    offset: int


class CursorState(msgspec.Struct, array_like=True):
    """A durable cursor as `~cursors` keeps it."""

    name: str
    kind: CursorKind
    filters: tuple[str, ...]
    positions: list[Position]
    """The lowest offset still needed per partition: what pins retention."""
    body: bytes = b""
    """What only the kind itself understands."""


class Start(msgspec.Struct, frozen=True):
    """Where a new cursor begins: earliest, latest, a time, or an offset in every partition."""

    at: Literal["earliest", "latest", "time", "offset"]
    value: int = 0

    def offset_in(self, source: Source) -> int:
        """The first offset to read from a source."""
        partition = source.partition
        if self.at == "earliest":
            return partition.start_offset
        if self.at == "latest":
            return partition.high_watermark
        if self.at == "offset":
            return max(self.value, partition.start_offset)
        found = partition.offset_for_time(TimestampMs(self.value))
        return partition.high_watermark if found is None else found[0]


EARLIEST: Final = Start("earliest")
LATEST: Final = Start("latest")


def ignore_change() -> None:
    """What a cursor calls after a change when nobody keeps its state."""


class Cursor(Protocol):
    """What the broker and the admin listener ask of any cursor."""

    name: str
    kind: CursorKind
    on_change: Callable[[], None]
    """Called after each change that is worth keeping."""

    @property
    def filters(self) -> tuple[str, ...]:
        """What it reads."""
        ...

    def state(self) -> CursorState:
        """What to keep of it."""
        ...

    def pending(self) -> int:
        """Records handed out and not settled yet."""
        ...

    def lag(self) -> int:
        """Offsets between where it stands and the end, over all its partitions."""
        ...

    def positions(self) -> list[Position]:
        """Where it stands, per partition."""
        ...

    def close(self) -> None:
        """Let go of waits and timers; the log and the kept state stay."""
        ...


class Reading:
    """Positions over sources, reading forward, waiting: the part that all cursors share."""

    __slots__ = ("_barriers", "_closed", "_offsets", "_registry", "_set", "_turn")

    def __init__(
        self,
        registry: SourceRegistry,
        wanted: SourceSet,
        start: Callable[[Source], int],
    ) -> None:
        self._registry = registry
        self._set = wanted
        self._offsets = array("q", (start(source) for source in wanted.sources))
        self._barriers: dict[int, list[tuple[int, int]]] | None = None
        self._turn = 0
        self._closed = False

    @classmethod
    def restore(
        cls, registry: SourceRegistry, filters: Iterable[str], positions: Iterable[Position]
    ) -> Reading:
        """Go on from kept positions; sources that are new since then are read from their start."""
        kept = {(row.stream_id, row.partition): row.offset for row in positions}

        def start(source: Source) -> int:
            # A log that lost its end (memory engine, power cut at level `os`) reuses offsets:
            # what is written there next must not be taken for read.
            return min(kept.get(source.key, 0), source.partition.end_offset)

        return cls(registry, registry.resolve(filters), start)

    @property
    def filters(self) -> tuple[str, ...]:
        """What is read."""
        return self._set.filters

    @property
    def sources(self) -> SourceSet:
        """Where it is read from, as the streams are now."""
        if self._set.generation != self._registry.generation:
            self._carry_over()
        return self._set

    def _carry_over(self) -> None:
        old = dict(zip((s.key for s in self._set.sources), self._offsets, strict=True))
        ends = [(s.key, int(s.partition.end_offset)) for s in self._set.sources]
        self._set = self._registry.resolve(self._set.filters)
        keys = {source.key: index for index, source in enumerate(self._set.sources)}
        behind = [(keys[key], end) for key, end in ends if key in keys and old[key] < end]
        fresh = [index for key, index in keys.items() if key not in old]
        self._offsets = array("q", (old.get(source.key, 0) for source in self._set.sources))
        if fresh and behind:
            self._barriers = dict.fromkeys(fresh, behind)

    def _is_blocked(self, index: int) -> bool:
        if self._barriers is None or index not in self._barriers:
            return False
        left = [(old, end) for old, end in self._barriers[index] if self._offsets[old] < end]
        if left:
            self._barriers[index] = left
            return True
        del self._barriers[index]
        if not self._barriers:
            self._barriers = None
        return False

    def position(self, index: int) -> Offset:
        """Next offset to read from a source."""
        return Offset(self._offsets[index])

    def seek(self, index: int, offset: int) -> None:
        """Read a source from `offset` on."""
        self._offsets[index] = offset

    def index_of(self, stream_id: str, partition: int) -> int:
        """A source by stream id and partition."""
        for index, source in enumerate(self.sources.sources):
            if source.key == (stream_id, partition):
                return index
        raise InvalidRequest(f"the cursor does not read partition {partition} of {stream_id}")

    def positions(self) -> list[Position]:
        """Where it stands, per partition."""
        return [
            Position(source.stream.record.id, source.partition.id, offset)
            for source, offset in zip(self._set.sources, self._offsets, strict=True)
        ]

    def lag(self) -> int:
        """Offsets between where it stands and the end, over all sources."""
        return sum(
            max(0, source.partition.high_watermark - max(offset, source.partition.start_offset))
            for source, offset in zip(self.sources.sources, self._offsets, strict=True)
        )

    def read(self, limit: int, max_bytes: int = READ_BYTES) -> list[tuple[int, Record]]:
        """Up to `limit` records as (source index, record), reading forward.

        Looks at `max_bytes` of each source at most; no record does not mean that the end is
        reached (`is_behind` tells).
        """
        if self._closed:
            raise Closed("the cursor is closed")
        wanted = self.sources
        found: list[tuple[int, Record]] = []
        for index in self._reading_order(wanted):
            if len(found) >= limit:
                break
            source = wanted.sources[index]
            if self._is_blocked(index) or is_passed_over(wanted, source):
                continue
            records, following = read_records(
                wanted, source, Offset(self._offsets[index]), limit - len(found), max_bytes
            )
            self._offsets[index] = following
            found += ((index, record) for record in records)
            if wanted.exact is not None and following < source.partition.last_stable_offset:
                break  # a former home is drained before the next one is read
        return found

    def _reading_order(self, wanted: SourceSet) -> Iterator[int]:
        count = len(wanted.sources)
        if wanted.exact is not None or count <= 1:
            yield from range(count)
            return
        self._turn = (self._turn + 1) % count  # so that a busy source cannot starve the others
        for step in range(count):
            yield (self._turn + step) % count

    def is_behind(self) -> bool:
        """Whether there may be more to read right now."""
        return any(
            self._offsets[index] < source.partition.last_stable_offset
            for index, source in self.readable_sources()
        )

    def readable_sources(self) -> list[tuple[int, Source]]:
        """Sources that may be read now: not stopped, not waiting for an older one to be drained."""
        wanted = self.sources
        return [
            (index, source)
            for index, source in enumerate(wanted.sources)
            if not self._is_blocked(index) and not is_passed_over(wanted, source)
        ]

    def when_readable(self, callback: Callable[[OnelogError | None], None]) -> Wait:
        """Call back once, when there may be something to read (maybe at once)."""
        return Wait(self, self._registry, callback)

    async def wait_readable(self, timeout_s: float | None = None) -> bool:
        """Wait for something to read; False when the time ran out."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def callback(error: OnelogError | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        wait = self.when_readable(callback)
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            wait.cancel()
        return True

    def close(self) -> None:
        """Refuse further reads."""
        self._closed = True


def is_passed_over(wanted: SourceSet, source: Source) -> bool:
    """Whether to go on without a stopped partition: one of many must not silence the others.

    The partition itself shows as stopped, and a cursor on one topic in it gets the error.
    """
    return source.partition.stopped is not None and len(wanted.sources) > 1


class Wait:
    """One wait over all sources of a cursor: the first source with news ends it."""

    __slots__ = ("_callback", "_done", "_registry", "_waiters")

    def __init__(
        self,
        reading: Reading,
        registry: SourceRegistry,
        callback: Callable[[OnelogError | None], None],
    ) -> None:
        self._callback = callback
        self._done = False
        self._registry = registry
        self._waiters: list[Waiter] = []
        registry.listen(self._streams_changed)
        for index, source in reading.readable_sources():
            if self._done:
                return
            waiter = source.partition.when_stable(reading.position(index), self._fire)
            if waiter is not None:
                self._waiters.append(waiter)

    def _streams_changed(self) -> None:
        self._fire(None)

    def _fire(self, error: OnelogError | None) -> None:
        if not self._done:
            self.cancel()
            self._callback(error)

    def cancel(self) -> None:
        """Never call back."""
        self._done = True
        self._registry.ignore(self._streams_changed)
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()
