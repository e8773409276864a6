"""What every cursor is: a name, filters, positions over sources, and a state that can be kept.

Rules:
- A cursor never changes the log (I3). Its state goes to the internal stream `~cursors`.
- Positions are kept in one flat array beside a source set that equal cursors share, so that an
  idle cursor costs little (bar: 1 KB).
- When streams change, positions are carried over. A stream that is new to the cursor is read from
  its start. The gates of the source set say which source waits for which, so that a topic that
  moved is read in order (DESIGN §3).
- A source whose next bytes are cold is passed over until they are in memory; the others go on.
  So is a source whose start is a time that has to be looked for in cold bytes.
- A stopped partition does not stop the reading of others; when all are stopped, reading fails.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from typing import Final, Protocol

import msgspec

from onelog.base.errors import Closed, InvalidRequest, OnelogError, PartitionStopped, again
from onelog.base.ids import Offset
from onelog.cursors.reader import READ_BYTES, read_at, read_records
from onelog.cursors.sources import Source, SourceRegistry, SourceSet
from onelog.cursors.wait import Wait
from onelog.log.handle import Cold, PartitionHandle
from onelog.log.wakeup import Callback, Waiter
from onelog.observe.troubles import Troubles
from onelog.record.record import Record

_OFFSET_MAX: Final = 2**63 - 1


class CursorKind(StrEnum):
    """The five kinds (DESIGN §7)."""

    TAIL = "tail"
    OFFSET = "offset"
    SESSION = "session"
    QUEUE = "queue"
    TABLE = "table"


class Position(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The position of a cursor in one partition."""

    stream_id: str
    partition: int
    offset: int


class CursorState(msgspec.Struct, array_like=True):
    """A durable cursor as `~cursors` keeps it."""

    name: str
    kind: CursorKind
    filters: tuple[str, ...]
    positions: list[Position]
    """The lowest offset still needed per partition; it pins retention."""
    body: bytes = b""
    """State that only the kind itself understands."""


def ignore_change() -> None:
    """What a cursor calls after a change if nobody keeps its state."""


class Cursor(Protocol):
    """What the broker and the admin listener need of any cursor."""

    name: str
    kind: CursorKind
    on_change: Callable[[], None]
    """Called after each change that is worth keeping."""

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it reads."""
        ...

    def state(self) -> CursorState:
        """The state to keep."""
        ...

    def pending(self) -> int:
        """Records handed out and not settled yet."""
        ...

    def lag(self) -> int:
        """Offsets between its positions and the ends, over all its partitions."""
        ...

    def positions(self) -> list[Position]:
        """Its position in each partition."""
        ...

    def close(self) -> None:
        """End waits and timers. The log and the kept state stay."""
        ...


def _is_stopped(source: Source) -> bool:
    return source.partition.stopped is not None


def known_end(source: Source) -> int:
    """The offset up to which remembered positions in a source are valid after a restart.

    A log that lost its end (memory engine, power cut at level `os`) reuses offsets: records that
    are written there next must not count as read. For a log that could not be opened, nobody knows
    the end: remembered positions stay valid for when the partition is back.
    """
    return _OFFSET_MAX if _is_stopped(source) else int(source.partition.end_offset)


class Reading:
    """Positions over sources, reading forward, waiting: the part that all cursors share."""

    __slots__ = (
        "_begins", "_closed", "_coming", "_gated", "_offsets", "_registry", "_set", "_turn",
        "_waits",
    )  # fmt: skip

    def __init__(
        self,
        registry: SourceRegistry,
        wanted: SourceSet,
        start: Callable[[Source], int],
    ) -> None:
        self._registry = registry
        self._set = wanted
        self._begins: dict[tuple[str, int], Callable[[Source], int]] | None = None
        """Sources whose beginning was not at hand: it is looked for when they are read."""
        self._offsets = array("q", (self._begin(source, start) for source in wanted.sources))
        self._gated = wanted.gates is not None
        self._waits: list[Wait] | None = None
        self._coming: dict[PartitionHandle, Waiter] | None = None
        """Partitions whose next bytes are on their way from the disk."""
        self._turn = 0
        self._closed = False

    def _begin(self, source: Source, start: Callable[[Source], int]) -> int:
        try:
            return start(source)
        except Cold:
            self._begins = {**(self._begins or {}), source.key: start}
            return source.partition.start_offset

    def _look_for_begin(self, index: int, source: Source) -> None:
        """Go to where a source is read from; or Cold."""
        assert self._begins is not None
        start = self._begins.get(source.key)
        if start is not None:
            self.seek(index, start(source))

    @property
    def troubles(self) -> Troubles:
        """The register for failures of callbacks that wait here."""
        return self._registry.troubles

    @classmethod
    def restore(
        cls, registry: SourceRegistry, filters: Iterable[str], positions: Iterable[Position]
    ) -> Reading:
        """Go on from kept positions. Sources that are new since then are read from their start."""
        kept = {(row.stream_id, row.partition): row.offset for row in positions}

        def start(source: Source) -> int:
            return min(kept.get(source.key, 0), known_end(source))

        return cls(registry, registry.resolve(filters), start)

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it reads."""
        return self._set.filters

    @property
    def sources(self) -> SourceSet:
        """The sources, as the streams are now."""
        if self._set.generation != self._registry.generation:
            known = self._set
            found = self._registry.renew(known)
            if found is not known:
                old = dict(zip((s.key for s in known.sources), self._offsets, strict=True))
                self._set = found
                self._offsets = array("q", (old.get(source.key, 0) for source in found.sources))
                self._gated = found.gates is not None
        return self._set

    def _limits(self) -> dict[int, int]:
        """Sources that wait for others to be read to their ends → up to where they may be read
        now."""
        wanted = self.sources
        if not self._gated or wanted.gates is None:
            return {}
        limits: dict[int, int] = {}
        for index, gates in wanted.gates.items():
            ends = [end for end, after in gates if not all(self._reached(*row) for row in after)]
            if ends:
                limits[index] = min(ends)
        self._gated = bool(limits)  # without a seek, positions only move forward
        return limits

    def _reached(self, index: int, end: int) -> bool:
        partition = self._set.sources[index].partition
        reached = self._offsets[index] >= min(end, partition.end_offset)
        return reached or partition.stopped is not None

    def position(self, index: int) -> Offset:
        """Next offset to read from a source."""
        return Offset(self._offsets[index])

    def seek(self, index: int, offset: int) -> None:
        """Read a source from `offset` on."""
        if self._begins is not None:
            self._begins.pop(self._set.sources[index].key, None)
            self._begins = self._begins or None
        self._offsets[index] = offset
        self._gated = self._set.gates is not None

    def wake(self) -> None:
        """Somebody moved it: whoever waits looks again."""
        for wait in tuple(self._waits or ()):
            wait.look_again()

    def find(self, stream_id: str, partition: int) -> int | None:
        """The index of a source by stream id and partition; None: it is not read (any more)."""
        for index, source in enumerate(self.sources.sources):
            if source.key == (stream_id, partition):
                return index
        return None

    def index(self, stream_id: str, partition: int) -> int:
        """The index of a source. Raises InvalidRequest when it is not read."""
        index = self.find(stream_id, partition)
        if index is None:
            raise InvalidRequest(f"partition {partition} of the stream {stream_id} is not read")
        return index

    def _source(self, stream_id: str, partition: int) -> Source | None:
        index = self.find(stream_id, partition)
        return None if index is None else self._set.sources[index]

    def may_read(self, stream_id: str, partition: int) -> bool:
        """Whether a record of a partition can be looked for now; of one that is gone, too."""
        source = self._source(stream_id, partition)
        return source is None or (source.partition.stopped is None and not self.is_coming(source))

    def record_now(
        self, stream_id: str, partition: int, offset: int, here: Callback | None = None
    ) -> Record | None:
        """The record at one place; None when retention took it, or the stream was deleted.

        Cold where it is not in memory. Then it is on its way: `here` is called when it came, or the
        source is passed over until then, as one whose next bytes come.
        """
        source = self._source(stream_id, partition)
        if source is None:
            return None
        try:
            return read_at(self._set, source, Offset(offset))
        except Cold as cold:
            if here is None:
                self._bring(source.partition, cold)
            else:
                source.partition.when_here(cold, here)
            raise

    async def find_record(self, stream_id: str, partition: int, offset: int) -> Record | None:
        """As `record_now`, waiting for what is cold while the loop goes on."""
        source = self._source(stream_id, partition)
        if source is None:
            return None
        read = partial(read_at, self._set, source, Offset(offset))
        return await source.partition.until_here(read)

    def record_at(self, stream_id: str, partition: int, offset: int) -> Record | None:
        """As `record_now`, waiting for what is cold: for programs whose loop may wait."""
        source = self._source(stream_id, partition)
        if source is None:
            return None
        return source.partition.in_place(partial(read_at, self._set, source, Offset(offset)))

    def positions(self) -> list[Position]:
        """Its position in each partition."""
        return [
            Position(source.stream.record.id, source.partition.id, offset)
            for source, offset in zip(self.sources.sources, self._offsets, strict=True)
        ]

    def lag(self) -> int:
        """Offsets between its positions and the ends, over all sources."""
        return sum(
            max(0, source.partition.high_watermark - max(offset, source.partition.start_offset))
            for source, offset in zip(self.sources.sources, self._offsets, strict=True)
        )

    def places_ahead(self, limit: int) -> tuple[Source, list[Offset], Offset] | None:
        """Where its next records are, for a reading of one topic in one partition with an index.

        Returns the source, the offsets, `limit` at most, and the offset below which these are all.
        None: its records have to be read, which also brings what is cold.
        """
        self.check()
        wanted = self.sources
        if wanted.exact is None or len(wanted.sources) != 1 or wanted.gates or self._begins:
            return None
        source = wanted.sources[0]
        partition = source.partition
        position, end = max(self.position(0), partition.start_offset), partition.last_stable_offset
        is_fixed = source.stream.fixed_topic_at(partition.id, position) is not None
        if position >= end or is_fixed or _is_stopped(source) or self.is_coming(source):
            return None
        try:
            offsets = partition.topic_offsets_now(wanted.exact.encode(), position, end, limit)
        except (Cold, PartitionStopped):
            return None
        if offsets is None:
            return None
        return source, offsets, end if len(offsets) < limit else Offset(offsets[-1] + 1)

    def read(
        self, limit: int, max_bytes: int = READ_BYTES, sources_max: int = 0
    ) -> list[tuple[int, Record]]:
        """Up to `limit` records as (source index, record), reading forward.

        Looks at `max_bytes` of each source, and at `sources_max` sources that have more (0: all).
        No records: perhaps there are more (`is_behind`), and reading again helps (`may_go_on`).
        """
        self.check()
        wanted, limits = self.sources, self._limits()
        found: list[tuple[int, Record]] = []
        stopped: PartitionStopped | None = None
        for index in self._reading_order(wanted):
            if len(found) >= limit:
                break
            source = wanted.sources[index]
            if _is_stopped(source) or self.is_coming(source):
                continue
            try:
                if self._begins is not None:
                    self._look_for_begin(index, source)
                records, following = read_records(
                    wanted,
                    source,
                    Offset(self._offsets[index]),
                    limit - len(found),
                    max_bytes=max_bytes,
                    upto=limits.get(index),
                )
            except Cold as cold:
                self._bring(source.partition, cold)
                continue
            except PartitionStopped as error:
                # The partition stopped just now. Records of the other sources must not be lost with
                # it (ADR 6).
                if not _is_stopped(source):
                    raise
                stopped = error
                continue
            was, self._offsets[index] = self._offsets[index], following
            found += ((index, record) for record in records)
            sources_max -= was != following
            if was != following and sources_max == 0:
                break
        if not found:
            if stopped is not None and wanted.exact is not None:
                raise stopped
            self.check()
        return found

    def check(self) -> None:
        """Raise when nothing can be read: the cursor is closed, or every source is stopped."""
        if self._closed:
            raise Closed("the cursor is closed")
        errors = [source.partition.stopped for source in self.sources.sources]
        if errors and errors[0] is not None and None not in errors:
            raise again(errors[0])

    def _reading_order(self, wanted: SourceSet) -> Iterator[int]:
        count = len(wanted.sources)
        self._turn = (self._turn + 1) % max(count, 1)  # a busy source starves no other
        for step in range(count):
            yield (self._turn + step) % count

    def is_behind(self) -> bool:
        """Whether there may be more to read right now."""
        limits = self._limits()
        for index, source in enumerate(self._set.sources):
            if source.partition.stopped is None:
                end = source.partition.last_stable_offset
                if self._offsets[index] < min(end, limits.get(index, end)):
                    return True
        return False

    def may_go_on(self) -> bool:
        """Whether reading again may return records; False: `when_readable` calls when it does."""
        if self._coming is None:
            return self.is_behind()
        limits = self._limits()
        for index, source in self.readable_sources():
            end = source.partition.last_stable_offset
            if self._offsets[index] < min(end, limits.get(index, end)):
                return True
        return False

    def is_coming(self, source: Source) -> bool:
        """Whether the next bytes of a source are on their way from the disk."""
        return self._coming is not None and source.partition in self._coming

    def _bring(self, partition: PartitionHandle, cold: Cold) -> None:
        if self._coming is None:
            self._coming = {}
        if partition in self._coming:
            return
        self._coming[partition] = partition.when_here(cold, partial(self._arrived, partition))

    def _arrived(self, partition: PartitionHandle, _error: OnelogError | None) -> None:
        """Read on. If the partition stopped instead, the next read finds out."""
        if self._coming is not None:
            self._coming.pop(partition, None)
            self._coming = self._coming or None
        self.wake()

    def readable_sources(self) -> list[tuple[int, Source]]:
        """Sources that may be read now: not stopped, not coming from the disk, not waiting for
        others to be drained.
        """
        limits = self._limits()
        return [
            (index, source)
            for index, source in enumerate(self._set.sources)
            if source.partition.stopped is None
            and not self.is_coming(source)
            and (index not in limits or self._offsets[index] < limits[index])
        ]

    def when_readable(self, callback: Callable[[OnelogError | None], None]) -> Wait:
        """Call back once, when there may be something to read, or with the error."""
        wait = Wait(self, self._registry, callback)
        wait.begin()
        return wait

    def when_streams_change(self, callback: Callable[[OnelogError | None], None]) -> Wait:
        """Call back once, after the next change of streams."""
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

    async def turn(self) -> None:
        """Between two reads of a long stretch: let others run, and wait for cold bytes."""
        if self._coming is None or self.may_go_on():
            await asyncio.sleep(0)
        else:
            await self.wait_readable()

    def keep_wait(self, wait: Wait) -> None:
        """A wait began: `close` ends it."""
        if self._waits is None:
            self._waits = []
        self._waits.append(wait)

    def drop_wait(self, wait: Wait) -> None:
        """A wait ended."""
        if self._waits is not None and wait in self._waits:
            self._waits.remove(wait)
            self._waits = self._waits or None

    def close(self) -> None:
        """Refuse further reads; everybody who waits gets an error."""
        self._closed = True
        for waiter in (self._coming or {}).values():
            waiter.cancel()
        self._coming = None
        for wait in tuple(self._waits or ()):
            wait.fire(Closed("the cursor is closed"))
