"""Reading single records and batches: for protocols that keep their own cursors.

Rules: only what is visible and committed is read. A read now raises Cold for bytes that are not in
memory; the others wait for them while the loop goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from onelog.base.ids import Offset
from onelog.cursors.cursor import Position, Reading
from onelog.cursors.reader import read_batch, read_places, read_records, record_in
from onelog.cursors.shared_reads import SharedRead
from onelog.cursors.sources import Source, SourceRegistry, SourceSet
from onelog.record.record import Record


class RecordDesk:
    """Reads of sources."""

    def __init__(self, registry: SourceRegistry) -> None:
        self._registry = registry

    def sources(self, filters: Sequence[str]) -> SourceSet:
        """The sources of these filters."""
        return self._registry.resolve(filters)

    def elsewhere(self, text: str) -> Iterator[Source]:
        """The partitions of a filter of which this node has no copy for good."""
        return self._registry.elsewhere(text)

    def reading(self, filters: Sequence[str], positions: Iterable[Position]) -> Reading:
        """Read these filters from these positions on."""
        return Reading.restore(self._registry, filters, positions)

    def record_now(self, source: Source, offset: int) -> Record | None:
        """The committed record at one offset, of any topic, or Cold; None: retention took it."""
        found = read_places(source, (offset,))
        return found[0] if found else None

    async def record_at(self, source: Source, offset: int) -> Record | None:
        """As `record_now`, waiting for what is cold while the loop goes on."""
        return await source.partition.until_here(partial(self.record_now, source, offset))

    async def has_later(self, source: Source, topic: str, offset: int) -> bool:
        """Whether a source has a committed record of a topic from an offset on."""
        position, end = Offset(offset), source.partition.last_stable_offset
        while position < end:
            read = partial(read_records, SourceSet((topic,), (source,), 0), source, position, 1)
            records, position = await source.partition.until_here(read)
            if records:
                return True
        return False

    def record_in(
        self, source: Source, data: bytes | bytearray | memoryview, offset: int
    ) -> Record | None:
        """The record at an offset of batches that are at hand, if it lies in a plain one."""
        return record_in(source, data, offset)

    def records_now(self, source: Source, offsets: Sequence[int]) -> list[Record]:
        """The committed records at ascending offsets, as far as they are there; or Cold."""
        return read_places(source, offsets)

    def batch_now(self, source: Source, offset: Offset) -> SharedRead | None:
        """The checked batch with an offset, or the next one behind it, or Cold; None: there is
        none."""
        return read_batch(source, offset)
