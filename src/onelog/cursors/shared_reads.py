"""Batches that were read and checked in this pass of the loop, for all cursors that read them in
it.

Why: many cursors that come back at once read the same part of the log, each a few records of every
batch. The broker then reads and checks each batch only once.
Rules: a shared read is forgotten when the pass ends, so that it is never out of date, and their
number is bounded. A reader outside of the loop's thread shares nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import Final

from onelog.base.ids import Offset
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_TRANSACTIONAL,
    BatchInfo,
    Slices,
    decode_batch,
    pick_records,
)
from onelog.log.handle import PartitionHandle
from onelog.record.headers import Headers

Row = tuple[bytes | None, int, int, bytes | None, bytes | None, Headers]
"""A record with its topic in front: topic, offset, timestamp, key, value, headers."""

HELD_MAX: Final = 4096
"""Shared reads at most. They are views of mapped files, not copies."""

_SPECIAL: Final = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL


class SharedRead:
    """One read: its bytes and its batches, which were checked."""

    __slots__ = ("_slices", "data", "infos", "is_plain")

    def __init__(self, data: memoryview, infos: list[BatchInfo]) -> None:
        self.data = data
        self.infos = infos
        self.is_plain = len(infos) == 1 and not infos[0].attributes & _SPECIAL
        """Whether it is one plain batch that every cursor may read as it is."""
        self._slices: Slices | None = None

    def pick(self, offsets: list[int], *, shared: bool) -> list[Row]:
        """The records of a plain batch at ascending offsets; missing ones are left out.

        When the read is `shared`, the positions of its records are computed once and kept.
        """
        slices = self._slices
        if slices is None:
            info = self.infos[0]
            if not shared or info.count != info.last_offset - info.base_offset + 1:
                return pick_records(self.data, offsets)
            slices = self._slices = decode_batch(self.data, 0, None, False)
        base = self.infos[0].base_offset
        if len(offsets) == 1:
            at = offsets[0] - base
            return [(slices.topic(at), *slices.record(at))]
        return [(slices.topic(at - base), *slices.record(at - base)) for at in offsets]


class SharedReads:
    """The reads of one pass of the loop."""

    __slots__ = ("_count", "_held")

    def __init__(self) -> None:
        self._held: dict[PartitionHandle, tuple[list[int], list[SharedRead]]] = {}
        self._count = 0

    def find(self, partition: PartitionHandle, offset: Offset) -> SharedRead | None:
        """The read that has the record at `offset`; None: there was none in this pass."""
        known = self._held.get(partition)
        if known is None:
            return None
        number = bisect_right(known[0], offset) - 1
        if number < 0:
            return None
        found = known[1][number]
        return found if offset <= found.infos[-1].last_offset else None

    def hold(self, partition: PartitionHandle, held: SharedRead) -> None:
        """Keep a read that is not empty for other cursors."""
        if self._count >= HELD_MAX:
            return
        if self._count == 0:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return
            loop.call_soon(self._forget)
        self._count += 1
        bases, reads = self._held.setdefault(partition, ([], []))
        first = held.infos[0].base_offset
        number = bisect_right(bases, first)
        bases.insert(number, first)
        reads.insert(number, held)

    def _forget(self) -> None:
        self._held.clear()
        self._count = 0
