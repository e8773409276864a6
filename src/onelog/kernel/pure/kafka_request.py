"""Kafka requests, interpreted: frames, headers, Produce and Fetch.

Rules: the buffer is borrowed for the call, and positions count from its first byte. Bad bytes raise
ProtocolViolation. Bytes after the fields of a request are ignored, as in Kafka's own broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.kernel.pure.kafka_wire import Reader
from onelog.kernel.pure.scan import check_span
from onelog.kernel.types import FetchRequest, ProduceRequest
from onelog.kernel.violation import (
    FETCH_VERSIONS,
    PRODUCE_VERSIONS,
    bad_frame,
    unknown_version,
)

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer


def split_frames(
    buf: Buffer, start: int, frame_bytes_max: int
) -> tuple[list[tuple[int, int]], int, int]:
    """The whole frames from `start` as (start, end) after their length, where the rest begins, and
    how many bytes the next frame has with its length: 0 while that is unknown.

    A frame of an impossible length raises. After good frames it is reported as -1, and raises at
    the next call, so that the good ones are served first.
    """
    view = memoryview(buf).cast("B")
    check_span(view, start, len(view))
    frames: list[tuple[int, int]] = []
    while len(view) - start >= 4:
        length = int.from_bytes(view[start : start + 4], "big", signed=True)
        if not 0 <= length <= frame_bytes_max:
            if not frames:
                raise bad_frame(length, start, frame_bytes_max)
            return frames, start, -1
        end = start + 4 + length
        if end > len(view):
            return frames, start, length + 4
        frames.append((start + 4, end))
        start = end
    return frames, start, 0


def parse_request_header(
    buf: Buffer, start: int, end: int, flexible_from: bytes
) -> tuple[int, int, int, str | None, int]:
    """(api key, version, correlation id, client id, position of the body) of the request.

    `flexible_from` holds the first flexible version of each api key; 255: none is.
    """
    reader = Reader(buf, start, end, flexible=False)
    key, version, correlation_id = reader.i16(), reader.i16(), reader.i32()
    client_id = reader.nullable_text()  # never compact, whatever the version
    if 0 <= key < len(flexible_from) and version >= flexible_from[key]:
        reader.flexible = True
        reader.skip_tags()
    return key, version, correlation_id, client_id, reader.at


def parse_produce(buf: Buffer, start: int, end: int, version: int) -> ProduceRequest:
    """The Produce request whose body is `buf[start:end]`."""
    if version not in PRODUCE_VERSIONS:
        raise unknown_version("Produce", version, PRODUCE_VERSIONS)
    reader = Reader(buf, start, end, version >= 9)
    transactional_id = reader.nullable_text()
    acks, timeout_ms = reader.i16(), reader.i32()
    topics = []
    for _ in reader.count(3 if reader.flexible else 6):
        name = reader.text()
        partitions = _produce_partitions(reader)
        reader.skip_tags()
        topics.append((name, partitions))
    reader.skip_tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _produce_partitions(reader: Reader) -> list[tuple[int, int, int]]:
    partitions = []
    for _ in reader.count(6 if reader.flexible else 8):
        index = reader.i32()
        at, size = reader.records()
        reader.skip_tags()
        partitions.append((index, at, -1 if size < 0 else at + size))
    return partitions


def parse_fetch(buf: Buffer, start: int, end: int, version: int) -> FetchRequest:
    """The Fetch request whose body is `buf[start:end]`."""
    if version not in FETCH_VERSIONS:
        raise unknown_version("Fetch", version, FETCH_VERSIONS)
    reader = Reader(buf, start, end, version >= 12)
    replica_id = reader.i32() if version < 15 else -1
    max_wait_ms, min_bytes, max_bytes = reader.i32(), reader.i32(), reader.i32()
    isolation_level = reader.i8()
    session_id, session_epoch = (reader.i32(), reader.i32()) if version >= 7 else (0, -1)
    topics = []
    for _ in reader.count(3 if reader.flexible else 6):
        topic = _topic(reader, version)
        partitions = _fetch_partitions(reader, version)
        reader.skip_tags()
        topics.append((topic, partitions))
    forgotten = _forgotten(reader, version) if version >= 7 else []
    rack_id = reader.text() if version >= 11 else ""
    if version >= 15:
        replica_id = _replica_tags(reader)
    else:
        reader.skip_tags()
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level,
        session_id, session_epoch, rack_id, topics, forgotten,
    )  # fmt: skip


def _topic(reader: Reader, version: int) -> str | bytes:
    return reader.text() if version < 13 else reader.topic_id()


def _fetch_partitions(reader: Reader, version: int) -> list[tuple[int, int, int, int, int, int]]:
    partitions = []
    for _ in reader.count(16):
        index = reader.i32()
        leader_epoch = reader.i32() if version >= 9 else -1
        offset = reader.i64()
        fetched_epoch = reader.i32() if version >= 12 else -1
        log_start = reader.i64() if version >= 5 else -1
        max_bytes = reader.i32()
        reader.skip_tags()
        partitions.append((index, leader_epoch, offset, fetched_epoch, log_start, max_bytes))
    return partitions


def _forgotten(reader: Reader, version: int) -> list[tuple[str | bytes, list[int]]]:
    topics = []
    for _ in reader.count(3 if reader.flexible else 6):
        topic = _topic(reader, version)
        indexes = [reader.i32() for _ in reader.count(4)]
        reader.skip_tags()
        topics.append((topic, indexes))
    return topics


def _replica_tags(reader: Reader) -> int:
    """The replica id from tag 1 at the end of a Fetch, which also holds an epoch."""
    replica_id = number = -1
    left = reader.uvarint()
    while left:
        left -= 1
        number, start = reader.tag(number)
        if number == 1:
            inner = Reader(reader.view, start, reader.at, flexible=True)
            replica_id = inner.i32()
            inner.i64()
            inner.skip_tags()
    return replica_id
