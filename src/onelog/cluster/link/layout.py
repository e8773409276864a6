"""The frame of an inner link: `u32 length, u8 kind, u8 flags, u32 channel, body`, big-endian.

Rules: the length counts what follows it. A number of `LinkKind` never gets another meaning. A frame
of an unknown kind, or with bytes behind its last field, ends the link (I10): versions and features
are agreed in HELLO, before anything else is said.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Final

from onelog.base.errors import ProtocolViolation
from onelog.base.limits import BATCH_BYTES_MAX


class LinkKind(IntEnum):
    """What a frame says."""

    HELLO = 1
    PROOF = 2
    BYE = 3
    PING = 4
    CREDIT = 5
    OPEN = 16
    DIVERGE = 17
    CLOSE = 18
    BATCHES = 19
    ACK = 20
    MARK = 21
    FORWARD = 24
    FORWARDED = 25
    CALL = 32
    ANSWER = 33
    CANCEL = 34


HEAD: Final = struct.Struct(">IBBI")
LENGTH_BYTES: Final = 4
INNER_HEAD_BYTES: Final = HEAD.size - LENGTH_BYTES
"""What the length counts at least: kind, flags and channel."""

_INNER_HEAD: Final = struct.Struct(">BBI")

SHAKE_BYTES_MAX: Final = 4096
"""A frame of a peer that has not proved who it is."""
FRAME_BYTES_MAX: Final = BATCH_BYTES_MAX + 1024 * 1024
"""A frame after that: the largest batch, and rows about partitions beside it."""


BATCHES_BYTES: Final = 256 * 1024
"""A frame of batches takes no further ones beyond so many bytes."""
ROWS_MAX: Final = 10_000
"""Rows of one frame."""
STREAM_ID: Final = re.compile(rb"[A-Za-z0-9~_-][A-Za-z0-9~._-]{0,254}")


class LinkViolation(ProtocolViolation):
    """A node sent bytes that the inner protocol forbids; its link ends."""


def head(kind: int, size: int, channel: int = 0, flags: int = 0) -> bytes:
    """What stands before a body of `size` bytes."""
    return HEAD.pack(INNER_HEAD_BYTES + size, kind, flags, channel)


def frame(kind: int, body: bytes = b"", channel: int = 0, flags: int = 0) -> bytes:
    """A whole frame."""
    return HEAD.pack(INNER_HEAD_BYTES + len(body), kind, flags, channel) + body


def check_numbers(*numbers: int) -> None:
    """Epochs of leaders and offsets count from 0. Raises LinkViolation."""
    if min(numbers) < 0:
        raise LinkViolation(f"an offset or an epoch is negative: {numbers}")


def read_head(buffer: bytes | bytearray, start: int, end: int) -> tuple[int, int, int]:
    """LinkKind, flags and channel of the frame whose length stood before `start`."""
    if end - start < INNER_HEAD_BYTES:
        raise LinkViolation(f"a frame of {end - start} bytes has no room for its head")
    kind, flags, channel = _INNER_HEAD.unpack_from(buffer, start)
    return kind, flags, channel
