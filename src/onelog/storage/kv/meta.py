"""The meta of a partition: its two ends and its segments, as one small value."""

from __future__ import annotations

from typing import Final

import msgspec

from onelog.base.errors import PartitionCorrupt
from onelog.base.ids import Offset, TimestampMs
from onelog.storage.engine import SegmentInfo


class KvSegment(msgspec.Struct, array_like=True):
    """Batches under one segment number.

    `size_bytes` and `max_timestamp_ms` count the batches below `counted`; later ones are counted
    again from the rows.
    """

    number: int
    base_offset: int
    created_ms: int
    indexed: bool
    size_bytes: int = 0
    max_timestamp_ms: int = -1
    counted: int = 0

    def count(self, last_offset: int, size_bytes: int, max_timestamp_ms: int) -> None:
        """Add a batch."""
        self.size_bytes += size_bytes
        self.max_timestamp_ms = max(self.max_timestamp_ms, max_timestamp_ms)
        self.counted = last_offset + 1


class Meta(msgspec.Struct, array_like=True):
    """The saved state of a partition; the last segment is the active one."""

    start_offset: int
    end_offset: int
    next_segment: int
    segments: list[KvSegment]
    high_watermark: int = 0
    """The high watermark that was kept last."""


_decoder: Final = msgspec.msgpack.Decoder(Meta)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def encode(meta: Meta) -> bytes:
    """The meta as the value of its key."""
    return msgspec.msgpack.encode(meta)


def decode(data: bytes, name: str) -> Meta:
    """The meta from its value."""
    try:
        meta = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise PartitionCorrupt(f"the meta of {name} is damaged: {error}") from error
    if not meta.segments:
        raise PartitionCorrupt(f"the meta of {name} names no segment")
    return meta


def describe(segments: list[KvSegment], end: int) -> list[SegmentInfo]:
    """The segments, as the engine shows them; the last is the active one."""
    ends = [*(segment.base_offset for segment in segments[1:]), end]
    return [
        SegmentInfo(
            Offset(segment.base_offset),
            Offset(until),
            segment.size_bytes,
            TimestampMs(segment.max_timestamp_ms),
            segment is not segments[-1],
            TimestampMs(segment.created_ms),
        )
        for segment, until in zip(segments, ends, strict=True)
    ]
