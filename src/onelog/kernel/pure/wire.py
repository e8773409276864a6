"""MQTT lengths, strings and topic checks, interpreted.

Rules: MQTT strings are UTF-8 without U+0000 and without surrogates (MQTT5 1.5.4-1, 1.5.4-2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest, LimitExceeded, MessageTooLarge, ProtocolViolation
from onelog.kernel.types import REMAINING_LENGTH_MAX

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer


def encode_remaining_length(value: int) -> bytes:
    """MQTT's variable byte integer, one to four bytes."""
    if value < 0:
        raise InvalidRequest(f"a remaining length cannot be {value}")
    if value > REMAINING_LENGTH_MAX:
        raise MessageTooLarge(f"{value} bytes do not fit an MQTT packet ({REMAINING_LENGTH_MAX})")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_remaining_length(buf: Buffer, pos: int = 0) -> tuple[int, int] | None:
    """MQTT's variable byte integer at `pos` and where it ends; None if bytes are missing."""
    view = memoryview(buf).cast("B")
    if not 0 <= pos <= len(view):
        raise InvalidRequest(f"position {pos} is outside the buffer of {len(view)} bytes")
    value = 0
    for index, byte in enumerate(view[pos : pos + 4]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, pos + index + 1
    if len(view) - pos < 4:
        return None
    raise ProtocolViolation(f"the remaining length at byte {pos} has more than four bytes")


def encode_utf8_field(data: Buffer) -> bytes:
    """`data` behind its length as u16, as MQTT and Kafka write strings."""
    raw = bytes(data)
    if len(raw) > 0xFFFF:
        raise LimitExceeded(f"a string of {len(raw)} bytes does not fit a u16 length (65535)")
    return len(raw).to_bytes(2, "big") + raw


def check_utf8(data: Buffer) -> bool:
    """Whether `data` is a string as MQTT allows it."""
    raw = bytes(data)
    if b"\0" in raw:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_topic(data: Buffer) -> bool:
    """Whether `data` may be a topic that is published to: not empty, no wildcard, good UTF-8."""
    raw = bytes(data)
    return bool(raw) and b"+" not in raw and b"#" not in raw and check_utf8(raw)
