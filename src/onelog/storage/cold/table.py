"""The rows of one partition, packed: about 130 bytes a row, and an object only for a row in use.

Rules: a table never changes; readers keep the one that they began with. Rows ascend by offset and
do not overlap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, overload

import msgspec

from onelog.objects.rows import Row

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Row)


class RowTable(Sequence[Row]):
    """Rows in the order of their offsets."""

    __slots__ = ("_at", "_bases", "_ends", "_highest", "_packed", "_times", "size_bytes")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._bases = array("q")
        self._ends = array("q")
        self._times = array("q")
        self._at = array("Q", (0,))
        self.size_bytes = 0
        """Bytes of record batches in all rows."""
        packed = bytearray()
        for row in rows:
            assert row.base >= (self._ends[-1] if self._ends else 0), "rows ascend, without overlap"
            self._bases.append(row.base)
            self._ends.append(row.end)
            self._times.append(row.max_timestamp_ms)
            packed += _encoder.encode(row)
            self._at.append(len(packed))
            self.size_bytes += row.log_bytes
        self._packed = bytes(packed)
        self._highest = _running_maximum(self._times)

    def spliced(self, first: int, last: int, rows: Iterable[Row]) -> RowTable:
        """A table in which `rows` stand instead of the rows `first` to `last` (not with it)."""
        fresh = rows if isinstance(rows, RowTable) else RowTable(rows)
        made = RowTable()
        made._bases = self._bases[:first] + fresh._bases + self._bases[last:]
        made._ends = self._ends[:first] + fresh._ends + self._ends[last:]
        made._times = self._times[:first] + fresh._times + self._times[last:]
        cut, rest = self._at[first], self._at[last]
        made._packed = self._packed[:cut] + fresh._packed + self._packed[rest:]
        made._at = self._at[:first]
        made._at.extend(cut + at for at in fresh._at[:-1])
        shift = cut + len(fresh._packed) - rest
        made._at.extend(at + shift for at in self._at[last:])
        made._highest = _running_maximum(made._times)
        replaced = sum(row.log_bytes for row in self[first:last])
        made.size_bytes = self.size_bytes + fresh.size_bytes - replaced
        assert all(made._ends[i - 1] <= made._bases[i] for i in range(1, len(made)))
        return made

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

    def base(self, number: int) -> int:
        """The first offset of a row."""
        return self._bases[number]

    def number_for_time(self, timestamp_ms: int, number: int) -> int:
        """The first row from `number` on with a batch that reaches `timestamp_ms`, or `len`."""
        first = bisect_left(self._highest, timestamp_ms)
        if first >= number:
            return first
        times = self._times
        return next(
            (at for at in range(number, len(times)) if times[at] >= timestamp_ms), len(self)
        )


def _running_maximum(times: array[int]) -> array[int]:
    found = array("q")
    highest = -(1 << 63)
    for time in times:
        highest = max(highest, time)
        found.append(highest)
    return found
