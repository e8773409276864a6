"""What durable cursors still need of one partition: single records, and from somewhere on all; and
what a leader has kept, so that its copies keep no less.

Rules: nodes send each other needs in pieces of a bounded size (`NeedsPiece`). What nobody spoke of
counts as needed (`KeptRanges`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from pyroaring import BitMap

from onelog.base.errors import InvalidRequest

CHUNK_BITS: Final = 16
"""Offsets are kept in chunks of so many bits, each a bitmap."""
LOW: Final = (1 << CHUNK_BITS) - 1
PIECE_BYTES: Final = 1024 * 1024
"""Bitmaps of one piece."""
RANGES_MAX: Final = 1000
"""Ranges of one partition of which a leader says what it kept; what lies outside stays."""
_EVERYTHING: Final = 2**63 - 1


def split(first: int, count: int) -> list[tuple[int, int, int]]:
    """Offsets that follow each other, by chunk: its number, and from where to where in it."""
    chunk, low = first >> CHUNK_BITS, first & LOW
    if low + count <= LOW + 1:
        return [(chunk, low, low + count)]
    rows = []
    stop = first + count
    while first < stop:
        chunk, low = first >> CHUNK_BITS, first & LOW
        end = min(stop, (chunk + 1) << CHUNK_BITS)
        rows.append((chunk, low, low + end - first))
        first = end
    return rows


class NeedsPiece(msgspec.Struct, frozen=True, array_like=True):
    """A part of the needs, as nodes send them to each other."""

    upto: int
    """From here on everything is needed."""
    chunks: tuple[tuple[int, bytes], ...]
    """Numbers of chunks, ascending, and their bitmaps."""
    following: int
    """The first chunk of the next piece; -1: this is the last one."""


class NeededOffsets:
    """The needs of many cursors together."""

    __slots__ = ("_chunks", "_claims", "_gathered_at", "upto")

    def __init__(self, claims: Callable[[], int] = lambda: 0) -> None:
        self.upto = _EVERYTHING
        """From here on everything is needed."""
        self._chunks: dict[int, BitMap] = {}
        self._claims = claims
        """Counts how often somebody came to need more."""
        self._gathered_at = claims()

    async def still_hold(self) -> bool:
        """Whether nobody came to need more since they were gathered."""
        return self._claims() == self._gathered_at

    def add_from(self, offset: int) -> None:
        """A cursor needs everything from an offset on."""
        self.upto = min(self.upto, offset)

    def add(self, chunks: Mapping[int, BitMap]) -> None:
        """A cursor needs single records."""
        for number, bits in chunks.items():
            known = self._chunks.get(number)
            if known is None:
                self._chunks[number] = BitMap(bits)
            else:
                known |= bits

    def add_one(self, offset: int) -> None:
        """Somebody needs one record."""
        self._chunks.setdefault(offset >> CHUNK_BITS, BitMap()).add(offset & LOW)

    def count(self, start: int, end: int) -> int:
        """How many records of [start, end) are needed; below `upto`."""
        found = 0
        for number, bits in self._between(start, end):
            base = number << CHUNK_BITS
            found += bits.range_cardinality(max(start - base, 0), min(end - base, LOW + 1))
        return found

    def __contains__(self, offset: int) -> bool:
        bits = self._chunks.get(offset >> CHUNK_BITS)
        return bits is not None and (offset & LOW) in bits

    def _between(self, start: int, end: int) -> list[tuple[int, BitMap]]:
        numbers = range(start >> CHUNK_BITS, ((end - 1) >> CHUNK_BITS) + 1)
        if len(numbers) > len(self._chunks):
            return [(n, self._chunks[n]) for n in sorted(self._chunks) if n in numbers]
        return [(n, self._chunks[n]) for n in numbers if n in self._chunks]

    def replace(self, start: int, end: int, other: NeededOffsets) -> None:
        """Of [start, end) those are needed that `other` names."""
        for number, bits in self._between(start, end):
            base = number << CHUNK_BITS
            bits.remove_range(max(start - base, 0), min(end - base, LOW + 1))
            if not bits:
                del self._chunks[number]
        for number, bits in other._between(start, end):
            base = number << CHUNK_BITS
            span = BitMap(range(max(start - base, 0), min(end - base, LOW + 1)))
            self.add({number: bits & span})

    # -- from node to node

    def piece(self, first: int) -> NeedsPiece:
        """The chunks from a number on, as many as fit."""
        found: list[tuple[int, bytes]] = []
        size = 0
        for number in sorted(number for number in self._chunks if number >= first):
            if size >= PIECE_BYTES:
                return NeedsPiece(self.upto, tuple(found), number)
            bits = self._chunks[number]
            bits.run_optimize()  # needs mostly follow each other
            blob = bits.serialize()
            found.append((number, blob))
            size += len(blob)
        return NeedsPiece(self.upto, tuple(found), -1)

    def add_piece(self, piece: NeedsPiece) -> None:
        """Another node's cursors need these. Raises InvalidRequest."""
        self.add_from(piece.upto)
        for number, blob in piece.chunks:
            try:
                bits = BitMap.deserialize(blob)
            except ValueError as error:
                raise InvalidRequest(f"the needs of another node are damaged: {error}") from error
            if number < 0 or (bits and bits.max() > LOW):
                raise InvalidRequest("the needs of another node name what is no offset")
            self.add({number: bits})


class KeptRanges:
    """What stayed of the ranges of one partition that were thinned. All else counts as needed."""

    __slots__ = ("kept", "ranges")

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        """Ascending, none touches another."""
        self.kept = NeededOffsets()

    @property
    def upto(self) -> int:
        """From here on everything is needed."""
        return self.ranges[-1][1] if self.ranges else 0

    def note(self, start: int, end: int, needs: NeededOffsets) -> None:
        """[start, end) was thinned to what `needs` names."""
        self.kept.replace(start, end, needs)
        rows: list[tuple[int, int]] = []
        for low, high in sorted([*self.ranges, (start, end)]):
            if rows and low <= rows[-1][1]:
                rows[-1] = (rows[-1][0], max(rows[-1][1], high))
            else:
                rows.append((low, high))
        self.ranges = rows[-RANGES_MAX:]

    def forget_below(self, start: int) -> None:
        """The log begins at `start` now."""
        self.kept.replace(0, start, NeededOffsets())
        self.ranges = [(max(low, start), high) for low, high in self.ranges if high > start]

    def count(self, start: int, end: int) -> int:
        """How many records of [start, end) are needed."""
        found, at = end - start, self._first_behind(start)
        for low, high in self.ranges[at : self._first_behind(end - 1) + 1]:
            first, last = max(low, start), min(high, end)
            if first < last:
                found -= last - first - self.kept.count(first, last)
        return found

    def __contains__(self, offset: int) -> bool:
        at = self._first_behind(offset)
        was_thinned = at < len(self.ranges) and self.ranges[at][0] <= offset
        return not was_thinned or offset in self.kept

    def _first_behind(self, offset: int) -> int:
        """The first range that ends behind an offset."""
        return bisect_right(self.ranges, offset, key=lambda row: row[1])
