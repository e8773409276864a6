"""The data types of MQTT on the wire: integers, strings, binary data (MQTT5 1.5).

Rules: reading checks every bound first; a field that does not fit is a malformed packet. Writing
refuses values that MQTT cannot express.
"""

from __future__ import annotations

from typing import Final

from onelog.base.errors import InvalidRequest, LimitExceeded
from onelog.kernel import encode_remaining_length
from onelog.protocols.mqtt.errors import MqttError, malformed

VARINT_MAX: Final = 268_435_455
"""Largest variable byte integer (MQTT5 1.5.5)."""

FIELD_BYTES_MAX: Final = 65_535
"""Bytes of one string or binary field: its length is a u16."""


class PacketReader:
    """Reads the fields of one packet body, front to back."""

    __slots__ = ("_end", "_position", "_raw", "_what")

    def __init__(self, raw: bytes, what: str, position: int = 0, end: int | None = None) -> None:
        self._raw = raw
        self._what = what
        self._position = position
        self._end = len(raw) if end is None else end

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return self._end - self._position

    def _take(self, size: int, field: str) -> int:
        start = self._position
        if size > self._end - start:
            raise self._cut_off(field)
        self._position = start + size
        return start

    def _cut_off(self, field: str) -> MqttError:
        return malformed(f"{self._what} ends inside its {field}")

    def ahead(self, size: int) -> bytes:
        """The next bytes, at most so many; they stay unread."""
        start = self._position
        return self._raw[start : min(start + size, self._end)]

    def skip(self, size: int) -> None:
        """Go on behind bytes that the caller has read by itself."""
        self._position += size

    def u8(self, field: str) -> int:
        """One byte."""
        start = self._position
        if start >= self._end:
            raise self._cut_off(field)
        self._position = start + 1
        return self._raw[start]

    def u16(self, field: str) -> int:
        """Two bytes, big-endian."""
        start = self._position
        if start + 2 > self._end:
            raise self._cut_off(field)
        self._position = start + 2
        raw = self._raw
        return raw[start] << 8 | raw[start + 1]

    def u32(self, field: str) -> int:
        """Four bytes, big-endian."""
        start = self._take(4, field)
        return int.from_bytes(self._raw[start : start + 4], "big")

    def varint(self, field: str) -> int:
        """A variable byte integer, in as few bytes as it needs (MQTT5 1.5.5-1)."""
        value = 0
        for index in range(4):
            byte = self.u8(field)
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if index and not byte:
                    raise malformed(f"the {field} of {self._what} is longer than it needs to be")
                return value
        raise malformed(f"the {field} of {self._what} has more than four bytes")

    def binary(self, field: str) -> bytes:
        """Bytes with their length before them as u16."""
        raw, start = self._raw, self._position + 2
        if start > self._end:
            raise self._cut_off(field)
        end = start + (raw[start - 2] << 8 | raw[start - 1])
        if end > self._end:
            raise self._cut_off(field)
        self._position = end
        return raw[start:end]

    def text(self, field: str) -> str:
        """A string: UTF-8 without U+0000 and surrogates (MQTT5 1.5.4-1, 1.5.4-2)."""
        raw = self.binary(field)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise malformed(f"the {field} of {self._what} is not UTF-8") from None
        if "\0" in text:
            raise malformed(f"the {field} of {self._what} has a NUL character")
        return text

    def rest(self) -> bytes:
        """Everything that is left."""
        start = self._take(self.left, "payload")
        return self._raw[start : self._end]

    def part(self, size: int, field: str) -> PacketReader:
        """A reader over the next `size` bytes, which this one skips."""
        start = self._take(size, field)
        return PacketReader(self._raw, f"the {field} of {self._what}", start, start + size)

    def finish(self) -> None:
        """Refuse bytes after the last field."""
        if self.left:
            raise malformed(f"{self._what} has {self.left} bytes behind its last field")


def write_u16(value: int) -> bytes:
    """Two bytes, big-endian."""
    return _fixed(value, 2)


def write_u32(value: int) -> bytes:
    """Four bytes, big-endian."""
    return _fixed(value, 4)


def write_u8(value: int) -> bytes:
    """One byte."""
    return _fixed(value, 1)


def write_varint(value: int) -> bytes:
    """A variable byte integer."""
    return encode_remaining_length(value)


def _fixed(value: int, size: int) -> bytes:
    if not 0 <= value < 1 << (8 * size):
        raise InvalidRequest(f"{value} does not fit {size} bytes of an MQTT packet")
    return value.to_bytes(size, "big")


def write_binary(data: bytes) -> bytes:
    """Bytes with their length before them as u16."""
    if len(data) > FIELD_BYTES_MAX:
        raise LimitExceeded(f"a field of {len(data)} bytes is longer than MQTT's {FIELD_BYTES_MAX}")
    return len(data).to_bytes(2, "big") + data


def write_text(text: str) -> bytes:
    """A string. Raises InvalidRequest when MQTT cannot express it."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the string {text[:60]!r} is not valid Unicode") from None
    if "\0" in text:
        raise InvalidRequest(f"the string {text[:60]!r} has a NUL, which MQTT forbids")
    return write_binary(raw)
