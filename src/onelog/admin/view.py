"""The broker as the admin API shows it: rows made from what is in memory anyway.

Rules: nothing here waits or touches the disk. A cursor that is not open is shown from its kept
state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from onelog.admin.contract import (
    CursorInfo,
    CursorPosition,
    PartitionInfo,
    RetentionInfo,
    StreamInfo,
)
from onelog.base.errors import CursorNotFound
from onelog.broker import Broker, Cursor, CursorState, PartitionHandle, Position, Stream


class AdminView:
    """What `admin.contract.BrokerView` asks for, over a real broker."""

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

    def cursors(self, after: str, limit: int) -> list[CursorInfo]:
        """Cursors by name, from the first name greater than `after`."""
        names = self._broker.cursors.names()
        first = bisect_right(names, after)
        streams = self._by_id()
        return [self._cursor(name, streams) for name in names[first : first + limit]]

    def cursor(self, name: str) -> CursorInfo:
        """One cursor. Raises CursorNotFound."""
        return self._cursor(name, self._by_id())

    def _by_id(self) -> dict[str, Stream]:
        return {stream.record.id: stream for stream in self._broker.streams.streams()}

    def _cursor(self, name: str, streams: Mapping[str, Stream]) -> CursorInfo:
        desk = self._broker.cursors
        cursor, kept = desk.find(name), desk.kept(name)
        if cursor is not None:
            return _open_cursor(cursor, streams, durable=kept is not None)
        if kept is not None:
            return _kept_cursor(kept, streams)
        raise CursorNotFound(f"there is no cursor {name!r}")


def _open_cursor(cursor: Cursor, streams: Mapping[str, Stream], *, durable: bool) -> CursorInfo:
    return CursorInfo(
        name=cursor.name,
        kind=cursor.kind.value,
        filter=", ".join(cursor.filters),
        durable=durable,
        positions=_positions(cursor.positions(), streams),
        lag=cursor.lag(),
        pending=cursor.pending(),
        connected=1,
    )


def _kept_cursor(kept: CursorState, streams: Mapping[str, Stream]) -> CursorInfo:
    return CursorInfo(
        name=kept.name,
        kind=kept.kind.value,
        filter=", ".join(kept.filters),
        durable=True,
        positions=_positions(kept.positions, streams),
        lag=sum(_lag(row, streams.get(row.stream_id)) for row in kept.positions),
        pending=0,
        connected=0,
    )


def _lag(row: Position, stream: Stream | None) -> int:
    """What came after a position; nothing where the stream is gone."""
    if stream is None or row.partition >= len(stream.partitions):
        return 0
    return max(0, stream.partitions[row.partition].high_watermark - row.offset)


def _positions(
    rows: Iterable[Position], streams: Mapping[str, Stream]
) -> tuple[CursorPosition, ...]:
    return tuple(
        CursorPosition(
            stream=row.stream_id if row.stream_id not in streams else streams[row.stream_id].name,
            partition=row.partition,
            offset=row.offset,
        )
        for row in rows
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
        internal=config.internal,
        size_bytes=stream.size_bytes,
        records=stream.record_count,
    )


def _partition_info(partition: PartitionHandle) -> PartitionInfo:
    facts = partition.facts()
    return PartitionInfo(
        partition=partition.id,
        start_offset=facts.ends.start,
        end_offset=facts.end,
        high_watermark=facts.ends.high_watermark,
        last_stable_offset=facts.ends.stable,
        durable_offset=facts.durable,
        size_bytes=facts.size_bytes,
        segments=facts.segments,
        state=facts.state,
    )
