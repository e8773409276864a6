"""Answers to Produce and Fetch, interpreted: whole frames; fetched records stay where they are."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from onelog.base.errors import LimitExceeded
from onelog.kernel.pure.varint import encode_uvarint
from onelog.kernel.types import RECORDS_COPIED_MAX
from onelog.kernel.violation import FETCH_VERSIONS, PRODUCE_VERSIONS, unknown_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onelog.kernel.types import Buffer, FetchedRow, Pieces, ProducedRow

_FRAME_BYTES_MAX = (1 << 31) - 1
_TEXT_BYTES_MAX = (1 << 15) - 1


def _length(size: int | None, flexible: bool, layout: str = ">i") -> bytes:
    """A length or count, fixed or compact."""
    if flexible:
        return encode_uvarint(0 if size is None else size + 1)
    return struct.pack(layout, -1 if size is None else size)


def _text(text: str | None, flexible: bool) -> bytes:
    raw = None if text is None else text.encode()
    if raw is not None and len(raw) > _TEXT_BYTES_MAX:
        raise LimitExceeded(f"a string of {len(raw)} bytes is longer than {_TEXT_BYTES_MAX}")
    return _length(None if raw is None else len(raw), flexible, ">h") + (raw or b"")


def _prefixed(pieces: list[Buffer], size: int) -> list[Buffer]:
    if size > _FRAME_BYTES_MAX:
        raise LimitExceeded(f"an answer of {size} bytes does not fit a frame")
    pieces[0] = struct.pack(">i", size) + pieces[0]
    return pieces


def encode_produce_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str, Sequence[ProducedRow]]],
    throttle_ms: int = 0,
) -> bytes:
    """The frame that answers a Produce request."""
    if version not in PRODUCE_VERSIONS:
        raise unknown_version("Produce", version, PRODUCE_VERSIONS)
    flexible = version >= 9
    tags = b"\0" if flexible else b""
    out = bytearray(struct.pack(">i", correlation_id) + tags)
    out += _length(len(topics), flexible)
    for name, partitions in topics:
        out += _text(name, flexible) + _length(len(partitions), flexible)
        for index, error_code, base_offset, append_time, log_start, message, blamed in partitions:
            out += struct.pack(">ihqq", index, error_code, base_offset, append_time)
            if version >= 5:
                out += struct.pack(">q", log_start)
            if version >= 8:
                out += _length(len(blamed), flexible)
                for record, why in blamed:
                    out += struct.pack(">i", record) + _text(why, flexible) + tags
                out += _text(message, flexible)
            out += tags
        out += tags
    out += struct.pack(">i", throttle_ms) + tags
    return bytes(_prefixed([out], len(out))[0])


class _Answer:
    """Our own bytes and the caller's records, in the order in which they are sent."""

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        self.own = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        self.own += data
        self.size += len(data)

    def add_records(self, records: Pieces, flexible: bool) -> None:
        if records is None:
            self.add(_length(None, flexible))
            return
        parts: Sequence[Buffer] = records if isinstance(records, (list, tuple)) else (records,)
        size = sum(memoryview(part).nbytes for part in parts)
        self.add(_length(size, flexible))
        for part in parts:
            if memoryview(part).nbytes <= RECORDS_COPIED_MAX:
                self.own += part
            else:
                self._cut()
                self.pieces.append(part)
        self.size += size

    def _cut(self) -> None:
        if self.own:
            self.pieces.append(bytes(self.own))
            self.own.clear()

    def done(self) -> list[Buffer]:
        self._cut()
        return _prefixed(self.pieces, self.size)


def encode_fetch_response(
    correlation_id: int,
    version: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[str | bytes, Sequence[FetchedRow]]],
) -> list[Buffer]:
    """The frame that answers a Fetch request, in pieces to write one after the other.

    Records are the caller's own buffers, except small ones, which are copied.
    """
    if version not in FETCH_VERSIONS:
        raise unknown_version("Fetch", version, FETCH_VERSIONS)
    flexible = version >= 12
    tags = b"\0" if flexible else b""
    out = _Answer()
    out.add(struct.pack(">i", correlation_id) + tags + struct.pack(">i", throttle_ms))
    if version >= 7:
        out.add(struct.pack(">hi", error_code, session_id))
    out.add(_length(len(topics), flexible))
    for topic, partitions in topics:
        out.add(topic if isinstance(topic, bytes) else _text(topic, flexible))
        out.add(_length(len(partitions), flexible))
        for row in partitions:
            _add_partition(out, row, version, tags)
        out.add(tags)
    out.add(tags)
    return out.done()


def _add_partition(out: _Answer, row: FetchedRow, version: int, tags: bytes) -> None:
    index, error_code, high_watermark, last_stable, log_start, aborted, replica, records = row
    flexible = version >= 12
    out.add(struct.pack(">ihqq", index, error_code, high_watermark, last_stable))
    if version >= 5:
        out.add(struct.pack(">q", log_start))
    out.add(_length(None if aborted is None else len(aborted), flexible))
    for producer_id, first_offset in aborted or ():
        out.add(struct.pack(">qq", producer_id, first_offset) + tags)
    if version >= 11:
        out.add(struct.pack(">i", replica))
    out.add_records(records, flexible)
    out.add(tags)
