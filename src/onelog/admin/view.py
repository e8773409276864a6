"""The broker as the admin API shows it: rows made from what is in memory anyway.

Rules: nothing here waits or touches the disk. A cursor that is not open is shown from its kept
state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from onelog.admin.contract import (
    CursorInfo,
    CursorPosition,
    PartitionInfo,
    RetentionInfo,
    StoredSegment,
    StreamInfo,
)
from onelog.base.errors import CursorNotFound, NotFound, NotOwner, Unavailable
from onelog.broker import (
    Broker,
    Cursor,
    CursorState,
    PartitionHandle,
    Position,
    RoutedCursor,
    SegmentInfo,
    Stream,
)
from onelog.broker.showing import ConsumerGroupRow

Homes = Mapping[str, Stream]
"""Streams by their id."""

GROUP_PREFIX: Final = "kafka:"
"""What stands before the name of a consumer group among the names of cursors."""
_PREFIXES: Final = {
    GROUP_PREFIX: "kafka",
    "mqtt/": "mqtt",
    "mqtt-": "mqtt",
    "share/": "mqtt",
    "amqp:": "amqp",
    "amqp-": "amqp",
}


class AdminView:
    """Rows of streams and cursors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def streams(self, after: str, limit: int) -> list[StreamInfo]:
        """Streams by name, from the first name greater than `after`."""
        streams = self._broker.streams.streams()
        first = bisect_right(streams, after, key=lambda stream: stream.name)
        return [_stream_info(stream) for stream in streams[first : first + limit]]

    def stream(self, name: str) -> StreamInfo:
        """One stream. Raises StreamNotFound."""
        return _stream_info(self._broker.streams.get(name))

    def partitions(self, name: str, after: int, limit: int) -> list[PartitionInfo]:
        """Partitions by number, from `after` + 1. Raises StreamNotFound."""
        partitions = self._broker.streams.get(name).partitions
        return [_partition_info(row) for row in partitions[after + 1 : after + 1 + limit]]

    def segments(self, name: str, partition: int, after: int, limit: int) -> list[StoredSegment]:
        """Segments by base offset, from the first one above `after`. Raises NotFound."""
        stream = self._broker.streams.get(name)
        if not 0 <= partition < len(stream.partitions):
            raise NotFound(
                f"the stream {name!r} has {len(stream.partitions)} partitions, numbered from 0:"
                f" there is no partition {partition}"
            )
        rows = stream.partitions[partition].segments()
        first = bisect_right(rows, after, key=lambda row: row.base_offset)
        return [_segment_row(row) for row in rows[first : first + limit]]

    def cursor_names(self) -> Iterator[str]:
        """Every cursor, kept or open, in no order, from copies: others may have a turn between."""
        desk = self._broker.cursors
        yield from desk.kept_names()
        for cursor in desk.open_cursors():
            if self._kept(cursor.name) is None:
                yield cursor.name

    def _kept(self, name: str) -> CursorState | None:
        """The kept state of an open cursor; None also where another node keeps it, as of the
        reader of retained messages that each node has, and where it cannot be read."""
        try:
            return self._broker.cursors.kept(name)
        except (NotOwner, Unavailable):
            return None

    def homes(self) -> Homes:
        """Streams by their id, to show cursors with."""
        return {stream.record.id: stream for stream in self._broker.streams.streams()}

    def cursor(self, name: str, homes: Homes | None = None) -> CursorInfo:
        """One cursor. Raises CursorNotFound, and NotOwner for one that another node has."""
        desk = self._broker.cursors
        homes = self.homes() if homes is None else homes
        cursor = desk.find(name)
        if cursor is not None:
            return _open_cursor(cursor, homes, durable=self._kept(name) is not None)
        kept = desk.kept(name)
        if kept is not None:
            return _kept_cursor(kept, desk.kept_positions(kept), homes)
        raise CursorNotFound(f"there is no cursor {name!r}; GET /api/v1/cursors lists them")


def _open_cursor(cursor: Cursor, homes: Homes, *, durable: bool) -> CursorInfo:
    return CursorInfo(
        name=cursor.name,
        kind="routed" if isinstance(cursor, RoutedCursor) else cursor.kind.value,
        protocol=protocol_of(cursor.name),
        filter=", ".join(cursor.filters),
        durable=durable,
        positions=_positions(cursor.positions(), homes),
        lag=cursor.lag(),
        pending=cursor.pending(),
        connected=1,
    )


def _kept_cursor(kept: CursorState, places: list[Position], homes: Homes) -> CursorInfo:
    positions = _positions(places, homes)
    return CursorInfo(
        name=kept.name,
        kind=kept.kind.value,
        protocol=protocol_of(kept.name),
        filter=", ".join(kept.filters),
        durable=True,
        positions=positions,
        lag=_lag(places, homes),
        pending=0,
        connected=0,
    )


def group_cursor(group: ConsumerGroupRow) -> CursorInfo:
    """A consumer group as a cursor; what Kafka calls a topic stands for a stream."""
    return CursorInfo(
        name=GROUP_PREFIX + group.name,
        kind="group",
        protocol="kafka",
        filter=", ".join(dict.fromkeys(row.topic for row in group.positions)),
        durable=True,
        positions=tuple(
            CursorPosition(
                stream=row.topic,
                partition=row.partition,
                offset=row.offset,
                end=row.offset if row.end is None else row.end,
            )
            for row in group.positions
        ),
        lag=group.lag,
        pending=0,
        connected=group.member_count,
    )


def protocol_of(cursor: str) -> str:
    """Who uses a cursor: protocols name theirs with a prefix of their own."""
    for prefix, protocol in _PREFIXES.items():
        if cursor.startswith(prefix):
            return protocol
    return "embedded"


def _positions(rows: Iterable[Position], homes: Homes) -> tuple[CursorPosition, ...]:
    found = []
    for row in rows:
        stream = homes.get(row.stream_id)
        known = stream is not None and row.partition < len(stream.partitions)
        end = stream.partitions[row.partition].high_watermark if stream and known else row.offset
        found.append(
            CursorPosition(
                stream=row.stream_id if stream is None else stream.name,
                partition=row.partition,
                offset=row.offset,
                end=end,
            )
        )
    return tuple(found)


def _lag(rows: Iterable[Position], homes: Homes) -> int:
    lag = 0
    for row in rows:
        stream = homes.get(row.stream_id)
        if stream is not None and row.partition < len(stream.partitions):
            place = stream.partitions[row.partition]
            lag += max(0, place.high_watermark - max(row.offset, place.start_offset))
    return lag


def _segment_row(row: SegmentInfo) -> StoredSegment:
    return StoredSegment(
        base_offset=row.base_offset,
        end_offset=row.end_offset,
        size_bytes=row.size_bytes,
        newest_ms=None if row.max_timestamp_ms < 0 else row.max_timestamp_ms,
        sealed=row.sealed,
        created_ms=row.created_ms,
        place=row.place,
    )


def _stream_info(stream: Stream) -> StreamInfo:
    config = stream.config
    retention = config.retention
    return StreamInfo(
        name=stream.name,
        id=stream.record.id,
        captures=config.captures,
        partitions=len(stream.partitions),
        engine=config.engine,
        durability=config.durability.value,
        retention=RetentionInfo(
            age_ms=None if retention.age_ms < 0 else retention.age_ms,
            bytes=None if retention.bytes < 0 else retention.bytes,
            consumed=retention.consumed,
        ),
        cleanup=config.cleanup.value,
        tier=config.tier.format.value,
        internal=config.internal,
        size_bytes=stream.size_bytes,
        records=stream.record_count,
    )


def _partition_info(partition: PartitionHandle) -> PartitionInfo:
    facts, tier = partition.facts(), partition.tier_status()
    return PartitionInfo(
        partition=partition.id,
        start_offset=facts.ends.start,
        end_offset=facts.end,
        high_watermark=facts.ends.high_watermark,
        last_stable_offset=facts.ends.stable,
        durable_offset=facts.durable,
        local_start_offset=partition.local_start_offset,
        size_bytes=facts.size_bytes,
        cold_bytes=0 if tier is None else tier.cold_bytes,
        segments=facts.segments,
        state=facts.state,
    )
