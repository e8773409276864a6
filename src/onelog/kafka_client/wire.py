"""Kafka's plain values as clients of ours write and read them, in versions without tagged fields.

Rules: bytes in, values out, no socket here. Strings and arrays have their lengths in front, -1 is
null. Records are handed out as views of the answer, never copied. An answer that is cut short, or
whose counts cannot be, is the broker's fault and says so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from onelog.base.errors import ProtocolViolation

T = TypeVar("T")


def number(code: str, *values: int) -> bytes:
    """Integers, as `struct` names their sizes."""
    return struct.pack(f">{code}", *values)


def text(value: str | None) -> bytes:
    """A string or null."""
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    if len(data) > 32_767:
        raise ProtocolViolation(
            f"a text of {len(data)} bytes is too long for Kafka: {value[:40]!r}"
        )
    return struct.pack(">h", len(data)) + data


def blob(value: bytes | memoryview) -> bytes:
    """Bytes with their length."""
    return struct.pack(">i", len(value)) + value


def array(rows: Iterable[bytes]) -> bytes:
    """An array of encoded rows."""
    found = list(rows)
    return struct.pack(">i", len(found)) + b"".join(found)


def request(api: int, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """A whole request."""
    head = struct.pack(">hhi", api, version, correlation_id) + text(client_id)
    return struct.pack(">i", len(head) + len(body)) + head + body


class Reader:
    """Takes values off an answer."""

    def __init__(self, data: memoryview | bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def number(self, code: str) -> int:
        """An integer, as `struct` names its size."""
        (value,) = struct.unpack(f">{code}", self.view(struct.calcsize(f">{code}")))
        return int(value)

    def view(self, size: int) -> memoryview:
        """So many bytes, not copied."""
        data = self._data[self._at : self._at + size]
        if size < 0 or len(data) != size:
            raise ProtocolViolation("an answer of the broker is cut short")
        self._at += size
        return data

    def rest(self) -> memoryview:
        """All that is left, not copied."""
        return self.view(len(self._data) - self._at)

    def string(self) -> str | None:
        """A string or null."""
        size = self.number("h")
        try:
            return None if size < 0 else bytes(self.view(size)).decode()
        except UnicodeDecodeError:
            raise ProtocolViolation("an answer of the broker has a text that is no text") from None

    def name(self) -> str:
        """A string that has to be there."""
        value = self.string()
        if value is None:
            raise ProtocolViolation("an answer of the broker lacks a name")
        return value

    def blob(self) -> memoryview:
        """Bytes; null is none."""
        return self.view(max(self.number("i"), 0))

    def rows(self, read: Callable[[], T]) -> list[T]:
        """An array; null is an empty one."""
        count = self.number("i")
        if count > len(self._data) - self._at:
            raise ProtocolViolation("an answer of the broker counts more rows than it has bytes")
        return [read() for _ in range(count)]
