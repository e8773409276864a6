"""The rows of one partition, packed: under 200 bytes a row, and an object only for a row in use.

Rules: a table never changes; readers keep the one that they began with. Rows ascend by offset and
do not overlap. A table becomes bytes and is taken up from them without a look at each row.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import le
from typing import Final, NamedTuple, overload

import msgspec

from onelog.base.errors import ColdDamaged
from onelog.objects.rows import Row

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Row)
_COUNT: Final = struct.Struct("<QQ")  # rows, bytes of them packed
_NUMBERS: Final = ("_bases", "_ends", "_times", "_sizes", "_created")
"""Numbers of each row that are asked for often: i64."""


class RowNumbers(NamedTuple):
    """What is known of a row without unpacking it."""

    base: int
    end: int
    max_timestamp_ms: int
    log_bytes: int
    created_ms: int


class RowTable(Sequence[Row]):
    """Rows in the order of their offsets."""

    __slots__ = ("_at", "_highest", "_packed", *_NUMBERS, "size_bytes")

    _bases: array[int]
    _ends: array[int]
    _times: array[int]
    _sizes: array[int]
    _created: array[int]

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        for name in _NUMBERS:
            setattr(self, name, array("q"))
        self._at = array("Q", (0,))
        packed = bytearray()
        for row in rows:
            assert row.base >= (self._ends[-1] if self._ends else 0), "rows ascend, without overlap"
            self._bases.append(row.base)
            self._ends.append(row.end)
            self._times.append(row.max_timestamp_ms)
            self._sizes.append(row.log_bytes)
            self._created.append(row.created_ms)
            packed += _encoder.encode(row)
            self._at.append(len(packed))
        self._packed = bytes(packed)
        self._settle()

    def _settle(self) -> None:
        self._highest = array("q", accumulate(self._times, max))
        self.size_bytes = sum(self._sizes)
        """Bytes of record batches in all rows."""

    def _ascends(self) -> bool:
        return all(map(le, self._ends[:-1], self._bases[1:])) and all(
            map(le, self._bases, self._ends)
        )

    def spliced(self, first: int, last: int, rows: Iterable[Row]) -> RowTable:
        """A table in which `rows` stand instead of the rows `first` to `last` (not with it)."""
        fresh = rows if isinstance(rows, RowTable) else RowTable(rows)
        made = RowTable()
        for name in _NUMBERS:
            mine, new = getattr(self, name), getattr(fresh, name)
            setattr(made, name, mine[:first] + new + mine[last:])
        cut, rest = self._at[first], self._at[last]
        made._packed = self._packed[:cut] + fresh._packed + self._packed[rest:]
        made._at = self._at[:first]
        made._at.extend(cut + at for at in fresh._at[:-1])
        shift = cut + len(fresh._packed) - rest
        tail = self._at[last:]
        made._at.extend([at + shift for at in tail] if shift else tail)
        made._settle()
        assert made._ascends(), "rows ascend, without overlap"
        return made

    # As bytes.

    @property
    def packed(self) -> bytes:
        """All rows in msgpack, one behind the other."""
        return self._packed

    def to_bytes(self) -> bytes:
        """The table as bytes of this machine."""
        numbers = [getattr(self, name).tobytes() for name in _NUMBERS]
        head = _COUNT.pack(len(self), len(self._packed))
        return b"".join((head, *numbers, self._at.tobytes(), self._packed))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, whose: str) -> RowTable:
        """The table of some bytes. Raises ColdDamaged."""
        view = memoryview(data)
        made = cls()
        count, size = _COUNT.unpack_from(view) if len(view) >= _COUNT.size else (0, 0)
        if len(view) != _COUNT.size + 8 * (count * len(_NUMBERS) + count + 1) + size:
            raise ColdDamaged(f"{whose}: a table of rows has {len(view)} bytes")
        position = _COUNT.size
        for name in _NUMBERS:
            getattr(made, name).frombytes(view[position : position + 8 * count])
            position += 8 * count
        made._at = array("Q")
        made._at.frombytes(view[position : position + 8 * (count + 1)])
        made._packed = bytes(view[position + 8 * (count + 1) :])
        made._settle()
        if not made._ascends() or made._at[-1] != size:
            raise ColdDamaged(f"{whose}: its rows do not ascend")
        return made

    # Rows.

    def __len__(self) -> int:
        return len(self._bases)

    @overload
    def __getitem__(self, number: int) -> Row: ...
    @overload
    def __getitem__(self, number: slice) -> list[Row]: ...
    def __getitem__(self, number: int | slice) -> Row | list[Row]:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(number)
        return _decoder.decode(memoryview(self._packed)[self._at[number] : self._at[number + 1]])

    def __iter__(self) -> Iterator[Row]:
        for number in range(len(self)):
            yield self[number]

    def numbers(self, first: int, last: int) -> Iterator[RowNumbers]:
        """The numbers of the rows `first` to `last` (not with it)."""
        return map(
            RowNumbers._make,
            zip(*(getattr(self, name)[first:last] for name in _NUMBERS), strict=True),
        )

    def bytes_between(self, first: int, last: int) -> int:
        """Bytes of record batches in the rows `first` to `last` (not with it)."""
        return sum(self._sizes[first:last])

    @property
    def start(self) -> int:
        """The first offset of the first row; 0: there is none."""
        return self._bases[0] if self._bases else 0

    @property
    def end(self) -> int:
        """The first offset behind the last row; 0: there is none."""
        return self._ends[-1] if self._ends else 0

    def number_at(self, offset: int) -> int:
        """The row that holds `offset`, or the first one behind it; `len` if there is none."""
        return bisect_right(self._ends, offset)

    def number_from(self, offset: int) -> int:
        """The first row that begins at `offset` or behind it; `len` if there is none."""
        return bisect_left(self._bases, offset)

    def base(self, number: int) -> int:
        """The first offset of a row."""
        return self._bases[number]

    def end_of(self, number: int) -> int:
        """The first offset behind a row."""
        return self._ends[number]

    def number_for_time(self, timestamp_ms: int, number: int) -> int:
        """The first row from `number` on with a batch that reaches `timestamp_ms`, or `len`."""
        first = bisect_left(self._highest, timestamp_ms)
        if first >= number:
            return first
        times = self._times
        return next(
            (at for at in range(number, len(times)) if times[at] >= timestamp_ms), len(self)
        )
