"""The filler: a control batch that moves a consumer over offsets where a view has nothing.

Rules: never an empty batch, at which KafkaJS hangs for ever. It looks like the marker of a
committed transaction of no producer, which every client skips. Its one record has the last offset:
some clients go on behind the batch, others behind its last record.
"""

from __future__ import annotations

import struct
from typing import Final

from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, crc32c, encode_varint
from onelog.record.batch import Marker

_HEADER: Final = struct.Struct(">qiib")
_CHECKED: Final = struct.Struct(">hiqqqhii")
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = 2
_LENGTH_COUNTS_FROM: Final = 12
_NOBODY: Final = (-1, -1, -1)
"""Producer id, epoch and sequence."""
_NO_TIME: Final = -1
SPAN_MAX: Final = 2**31 - 1
"""Offsets that one batch can span."""

_KEY: Final = struct.pack(">hh", 0, Marker.COMMIT)
_VALUE: Final = struct.pack(">hi", 0, 0)


def build_filler(start: int, end: int, leader_epoch: int) -> bytes:
    """One control batch for the offsets [start, end), or for as many of them as a batch spans."""
    assert start < end, "a filler fills something"
    span = min(end - 1 - start, SPAN_MAX)
    body = b"".join(
        (
            b"\0\0",  # attributes, and no time after the batch's
            encode_varint(span),
            encode_varint(len(_KEY)) + _KEY,
            encode_varint(len(_VALUE)) + _VALUE,
            b"\0",  # no headers
        )
    )
    checked = _CHECKED.pack(
        ATTR_CONTROL | ATTR_TRANSACTIONAL, span, _NO_TIME, _NO_TIME, *_NOBODY, 1
    )
    checked += encode_varint(len(body)) + body
    size = _HEADER.size + _CRC.size + len(checked) - _LENGTH_COUNTS_FROM
    head = _HEADER.pack(start, size, leader_epoch, _MAGIC)
    return head + _CRC.pack(crc32c(checked)) + checked
