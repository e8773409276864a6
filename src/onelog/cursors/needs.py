"""What durable cursors still need of one partition: single records, and from somewhere on all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyroaring import BitMap

CHUNK_BITS: Final = 16
"""Offsets are kept in chunks of so many bits, each a bitmap."""
LOW: Final = (1 << CHUNK_BITS) - 1
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

    def still_hold(self) -> bool:
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
