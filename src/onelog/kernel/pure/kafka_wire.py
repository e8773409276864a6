"""Kafka's wire types, interpreted: a reader that stays inside its request.

Rules: a field is taken whole or not at all, so the reader stops at the bad field; a count is
compared with the bytes left before anything is made from it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from onelog.base.limits import PARTITIONS_PER_REQUEST_MAX
from onelog.kernel import violation as why
from onelog.kernel.pure.scan import check_span
from onelog.kernel.pure.varint import read_uvarint

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

_I8, _I16, _I32, _I64 = (struct.Struct(">" + code) for code in "bhiq")
_TAG_MAX = 0xFFFF_FFFF


class Reader:
    """Takes the fields of one request in their order."""

    __slots__ = ("at", "end", "flexible", "nameable", "view")

    def __init__(self, buf: Buffer, start: int, end: int, flexible: bool) -> None:
        self.view = memoryview(buf).cast("B")
        check_span(self.view, start, end)
        self.at = start
        self.end = end
        self.flexible = flexible
        self.nameable = PARTITIONS_PER_REQUEST_MAX

    def _number(self, layout: struct.Struct) -> int:
        if self.end - self.at < layout.size:
            raise why.violation(why.CUT_SHORT, self.at)
        (value,) = layout.unpack_from(self.view, self.at)
        self.at += layout.size
        return int(value)

    def i8(self) -> int:
        """A signed byte."""
        return self._number(_I8)

    def i16(self) -> int:
        """Two bytes, signed."""
        return self._number(_I16)

    def i32(self) -> int:
        """Four bytes, signed."""
        return self._number(_I32)

    def i64(self) -> int:
        """Eight bytes, signed."""
        return self._number(_I64)

    def uvarint(self) -> int:
        """An unsigned varint."""
        value, after = read_uvarint(self.view, self.at, self.end)
        if after < 0:
            raise why.violation(why.BAD_NUMBER, self.at)
        self.at = after
        return value

    def _length(self, layout: struct.Struct) -> int:
        """A length or count, fixed or compact; -1 is null."""
        return self.uvarint() - 1 if self.flexible else self._number(layout)

    def _span(self, layout: struct.Struct, nullable: bool) -> tuple[int, int]:
        before = self.at
        size = self._length(layout)
        if not (-1 if nullable else 0) <= size <= self.end - self.at:
            raise why.violation(why.BAD_SIZE, before)
        start = self.at
        self.at += max(size, 0)
        return start, size

    def records(self) -> tuple[int, int]:
        """Where nullable bytes start, and their size; -1 is null."""
        return self._span(_I32, nullable=True)

    def nullable_span(self) -> None:
        """Skip a string or null."""
        self._span(_I16, nullable=True)

    def skip(self, size: int) -> None:
        """Skip so many bytes."""
        if self.end - self.at < size:
            raise why.violation(why.CUT_SHORT, self.at)
        self.at += size

    def text(self) -> str:
        """A string."""
        text = self.nullable_text(nullable=False)
        assert text is not None
        return text

    def nullable_text(self, nullable: bool = True) -> str | None:
        """A string or null."""
        before = self.at
        start, size = self._span(_I16, nullable)
        if size < 0:
            return None
        try:
            return str(self.view[start : start + size], "utf-8")
        except UnicodeDecodeError:
            raise why.violation(why.BAD_TEXT, before) from None

    def topic_id(self) -> bytes:
        """A UUID as its bytes."""
        if self.end - self.at < 16:
            raise why.violation(why.CUT_SHORT, self.at)
        self.at += 16
        return bytes(self.view[self.at - 16 : self.at])

    def count(self, element_bytes_min: int) -> range:
        """An array's count, as a range to loop over."""
        before = self.at
        count = self._length(_I32)
        if not 0 <= count <= (self.end - self.at) // element_bytes_min:
            raise why.violation(why.BAD_ARRAY, before)
        if count > self.nameable:
            raise why.violation(why.TOO_MANY, before)
        self.nameable -= count
        return range(count)

    def nullable_count(self, element_bytes_min: int) -> range:
        """As `count`, for an array that may be null."""
        before = self.at
        if self._length(_I32) == -1:
            return range(0)
        self.at = before
        return self.count(element_bytes_min)

    def tag(self, previous: int) -> tuple[int, int]:
        """One tagged field: its number and where it starts; it ends where the reader then is.

        `previous` is the number of the one before it, -1 before the first.
        """
        before = self.at
        number = self.uvarint()
        if not previous < number <= _TAG_MAX:
            raise why.violation(why.BAD_TAG, before)
        before = self.at
        size = self.uvarint()
        if size > self.end - self.at:
            raise why.violation(why.BAD_SIZE, before)
        start = self.at
        self.at += size
        return number, start

    def skip_tags(self) -> None:
        """Skip the tagged fields at the end of a structure of a flexible version."""
        if self.flexible:
            left, number = self.uvarint(), -1
            while left:
                left -= 1
                number, _start = self.tag(number)
