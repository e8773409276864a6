"""The broker as the admin API shows it: rows made from what is in memory anyway.

Rules: nothing here waits or touches the disk. A cursor that is not open is shown from its kept
state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from onelog.admin.contract import (
    CursorInfo,
    CursorPosition,
    PartitionInfo,
    RetentionInfo,
    StreamInfo,
)
from onelog.base.errors import CursorNotFound
from onelog.broker import Broker, Cursor, CursorState, PartitionHandle, Position, Stream


class View:
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
        return [self.cursor(name) for name in names[first : first + limit]]

    def cursor(self, name: str) -> CursorInfo:
        """One cursor. Raises CursorNotFound."""
        desk = self._broker.cursors
        cursor, kept = desk.find(name), desk.kept(name)
        if cursor is not None:
            return self._open_cursor(cursor, durable=kept is not None)
        if kept is not None:
            return self._kept_cursor(kept)
        raise CursorNotFound(f"there is no cursor {name!r}")

    def _open_cursor(self, cursor: Cursor, *, durable: bool) -> CursorInfo:
        return CursorInfo(
            name=cursor.name,
            kind=cursor.kind.value,
            filter=", ".join(cursor.filters),
            durable=durable,
            positions=self._positions(cursor.positions()),
            lag=cursor.lag(),
            pending=cursor.pending(),
            connected=1,
        )

    def _kept_cursor(self, kept: CursorState) -> CursorInfo:
        ends: dict[tuple[str, int], int] = {
            (stream.record.id, partition.id): partition.high_watermark
            for stream in self._broker.streams.streams()
            for partition in stream.partitions
        }
        lag = sum(
            max(0, ends.get((row.stream_id, row.partition), 0) - row.offset)
            for row in kept.positions
        )
        return CursorInfo(
            name=kept.name,
            kind=kept.kind.value,
            filter=", ".join(kept.filters),
            durable=True,
            positions=self._positions(kept.positions),
            lag=lag,
            pending=0,
            connected=0,
        )

    def _positions(self, rows: Iterable[Position]) -> tuple[CursorPosition, ...]:
        names = {stream.record.id: stream.name for stream in self._broker.streams.streams()}
        return tuple(
            CursorPosition(
                stream=names.get(row.stream_id, row.stream_id),
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
