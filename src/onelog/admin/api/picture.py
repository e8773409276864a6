"""One picture of a topic: who writes it, where it lies in the log, and every cursor that reads it.

Rules: nothing is noted of a message when it is written. Protocols note once which topics a
connection writes to; positions of readers are in memory anyway; how many messages came lately is
read from the topic index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec

from onelog.admin.api.cursor_sight import CursorSight
from onelog.admin.api.declaring import VIEWER, AnyOperation, ApiCall, ApiOperation, NoQuery
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.peeking import MessageShown
from onelog.admin.api.topics import TAG, last_of
from onelog.admin.view import GROUP_PREFIX, protocol_of
from onelog.base.clock import Clock
from onelog.base.errors import NotAuthorized, OnelogError
from onelog.base.ids import Offset, TimestampMs
from onelog.base.topics import check_topic, is_exact, matches
from onelog.broker import Cursor, CursorState, PartitionHandle, Position
from onelog.broker.showing import ProtocolDesk, ReaderRow, WriterRow

RATE_SPAN_MS: Final = 60_000
RATE_COUNT_MAX: Final = 10_000
ROWS_MAX: Final = 1000
"""Writers and readers that are shown, of each."""
PARTITIONS_MAX: Final = 100


class ReaderPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a reader stands in a partition."""

    partition: int
    offset: int


class TopicPartitionEnds(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that holds messages of a topic."""

    partition: int
    start_offset: int
    end_offset: int


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A cursor that reads a topic, and where it stands in the topic's partition."""

    cursor: str
    kind: str
    protocol: str
    filter: str
    offset: int | None
    """In the topic's first partition; null: it has no position there, it follows the end."""
    lag: int
    """Offsets of the topic's partitions after it, of other topics too."""
    open: bool
    places: list[ReaderPlace]
    """Where it stands in each partition of the topic that it has a position in."""


class TopicPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: who writes it, its place in the log, and everybody who reads it."""

    topic: str
    stream: str
    partition: int
    start_offset: int
    end_offset: int
    partitions: list[TopicPartitionEnds]
    """One, except for a topic with a stream of its own: its first hundred."""
    per_minute: int | None
    """Messages of the last minute; null: they are not counted, because no index is kept."""
    per_minute_capped: bool
    last: MessageShown | None
    writers: list[WriterRow]
    """Connections of now that wrote to it, as far as that is noted (64 topics per connection)."""
    writers_capped: bool
    readers: list[Reader]
    readers_capped: bool


class PictureOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock

    def table(self) -> list[AnyOperation]:
        """What is asked where."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/topics/{topic}", role=VIEWER, tag=TAG,
                summary="One topic: who writes it, where it lies, every cursor that reads it.",
                answer=TopicPicture, handler=self.topic,
            ),
        ]  # fmt: skip
        return rows

    async def topic(self, call: ApiCall[NoQuery, None]) -> TopicPicture:
        """One topic."""
        topic, broker = check_topic(call.names["topic"]), self._desk.broker
        seen = await CursorSight.open(self._desk, call.caller)
        if not seen.sight.topic(topic):
            raise NotAuthorized(f"{call.caller.name} has no right on the topic {topic!r}")
        stream = broker.streams.home(topic)
        own = stream.record.fixed_topic is not None
        home = stream.partition_of(topic.encode())
        places = tuple(stream.partitions[:PARTITIONS_MAX]) if own else (home,)
        readers: list[Reader] = []
        capped = False
        for reader in self._readers(topic, stream.record.id, places):
            await self._desk.share.breathe()
            if reader is None or not seen.sees(_cursor_name(reader)):
                continue
            if len(readers) >= ROWS_MAX:
                capped = True
                break
            shows = reader.kind == "group" or seen.sight.topics(reader.filter.split(", "))
            readers.append(reader if shows else msgspec.structs.replace(reader, filter=""))
        writers = await self._writers(topic)
        counts = [await self._per_minute(topic, place) for place in places]
        known = [count for count in counts if count is not None]
        rows = [_ends(place) for place in places]
        return TopicPicture(
            topic=topic,
            stream=stream.name,
            partition=rows[0].partition,
            start_offset=rows[0].start_offset,
            end_offset=rows[0].end_offset,
            partitions=rows,
            per_minute=sum(known) if known else None,
            per_minute_capped=any(count >= RATE_COUNT_MAX for count in known),
            last=await last_of(self._desk, call.caller, topic),
            writers=writers[:ROWS_MAX],
            writers_capped=len(writers) > ROWS_MAX,
            readers=readers,
            readers_capped=capped,
        )

    async def _writers(self, topic: str) -> list[WriterRow]:
        """Who writes the topic, and one more if there are too many to show."""
        found: list[WriterRow] = []
        for served in self._desk.desks().values():
            for row in served.writers(topic):
                await self._desk.share.breathe()
                if row is not None:
                    found.append(row)
                if len(found) > ROWS_MAX:
                    return found
        return found

    async def _per_minute(self, topic: str, partition: PartitionHandle) -> int | None:
        since = self._clock.now_ms() - RATE_SPAN_MS
        try:
            first = await partition.find_time(TimestampMs(since))
            if first is None:
                return 0
            end = partition.high_watermark
            if self._desk.broker.streams.home(topic).record.fixed_topic is not None:
                return min(end - first[0], RATE_COUNT_MAX)
            offsets = await partition.until_here(
                lambda: partition.topic_offsets_now(
                    topic.encode(), first[0], Offset(end), RATE_COUNT_MAX
                )
            )
        except OnelogError:
            return None
        return None if offsets is None else len(offsets)

    def _readers(
        self, topic: str, stream_id: str, places: tuple[PartitionHandle, ...]
    ) -> Iterator[Reader | None]:
        """Every cursor on the topic, and None for each other cursor, so that others get a turn."""
        desk = self._desk.broker.cursors
        seen = set()
        for cursor in desk.open_cursors():
            seen.add(cursor.name)
            if reads(cursor.filters, topic):
                yield _reader(cursor, cursor.positions(), stream_id, places, is_open=True)
            else:
                yield None
        for name in desk.kept_names():
            kept = desk.kept(name)
            if name in seen or kept is None or not reads(kept.filters, topic):
                yield None
            else:
                where = desk.kept_positions(kept)
                yield _reader(kept, where, stream_id, places, is_open=False)
        for served in self._desk.desks().values():
            # What one protocol cannot tell hides nothing of the others.
            with contextlib.suppress(OnelogError):
                yield from _readers_of(served, topic, places)


def _readers_of(
    served: ProtocolDesk, topic: str, places: tuple[PartitionHandle, ...]
) -> Iterator[Reader | None]:
    """Who reads by cursors that a protocol keeps itself, each once for all partitions."""
    found: dict[tuple[str, str], tuple[ReaderRow, dict[int, int]]] = {}
    for place in places:
        for row in served.readers(topic, place):
            _row, offsets = found.setdefault((row.name, row.topic), (row, {}))
            offsets[int(place.id)] = row.offset
            yield None
    for row, offsets in found.values():
        yield Reader(
            cursor=row.name,
            kind=row.kind,
            protocol=row.protocol,
            filter=row.topic,
            offset=offsets.get(int(places[0].id)),
            lag=_lag(offsets, places),
            open=row.connected > 0,
            places=_places(offsets),
        )


def _cursor_name(reader: Reader) -> str:
    """What /cursors calls a reader."""
    return GROUP_PREFIX + reader.cursor if reader.kind == "group" else reader.cursor


def _ends(place: PartitionHandle) -> TopicPartitionEnds:
    ends = place.ends()
    return TopicPartitionEnds(
        partition=place.id, start_offset=ends.start, end_offset=ends.high_watermark
    )


def _lag(offsets: dict[int, int], places: tuple[PartitionHandle, ...]) -> int:
    known = ((place, offsets.get(int(place.id))) for place in places)
    return sum(
        max(0, place.high_watermark - max(at, place.start_offset))
        for place, at in known
        if at is not None
    )


def _places(offsets: dict[int, int]) -> list[ReaderPlace]:
    return [ReaderPlace(partition=number, offset=at) for number, at in sorted(offsets.items())]


def reads(filters: tuple[str, ...], topic: str) -> bool:
    """Whether one of the filters matches a topic."""
    return any(text == topic if is_exact(text) else matches(text, topic) for text in filters)


def _reader(
    row: Cursor | CursorState,
    positions: list[Position],
    stream_id: str,
    places: tuple[PartitionHandle, ...],
    *,
    is_open: bool,
) -> Reader:
    held = {int(place.id) for place in places}
    offsets = {
        int(at.partition): int(at.offset)
        for at in positions
        if at.stream_id == stream_id and int(at.partition) in held
    }
    return Reader(
        cursor=row.name,
        kind=row.kind.value,
        protocol=protocol_of(row.name),
        filter=", ".join(row.filters),
        offset=offsets.get(int(places[0].id)),
        lag=_lag(offsets, places),
        open=is_open,
        places=_places(offsets),
    )
