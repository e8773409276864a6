"""Where a new cursor begins to read.

Rules: a start by time is looked for in the log, and where that is not in memory `offset_in` raises
Cold. Whoever can wait has it `settled` first. It is then a start by offsets, so that it stays the
same however long the cursor takes to open.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, Literal

import msgspec

from onelog.base.errors import PartitionStopped
from onelog.base.ids import TimestampMs
from onelog.cursors.sources import Source


class Start(msgspec.Struct, frozen=True):
    """Where a new cursor begins: earliest, latest, a time, or an offset in every partition."""

    at: Literal["earliest", "latest", "time", "offset"]
    value: int = 0

    def offset_in(self, source: Source) -> int:
        """The first offset to read from a source; of a time, or Cold."""
        partition = source.partition
        if self.at == "earliest":
            return partition.start_offset
        if self.at == "latest":
            return partition.high_watermark
        if self.at == "offset":
            return max(self.value, partition.start_offset)
        if partition.stopped is not None:
            return partition.start_offset
        found = partition.time_offset_now(TimestampMs(self.value))
        return partition.high_watermark if found is None else found[0]

    async def settled(self, sources: Iterable[Source]) -> Start:
        """The same place in these sources, as offsets: nobody has to look for it again."""
        if self.at != "time":
            return self
        places: dict[tuple[str, int], int] = {}
        for source in sources:
            read = partial(self.offset_in, source)
            try:
                places[source.key] = await source.partition.until_here(read)
            except PartitionStopped:
                places[source.key] = self.offset_in(source)  # it is stopped by now
        return SettledStart(self.at, self.value, places)


class SettledStart(Start, frozen=True):
    """A start by time that was looked for."""

    places: dict[tuple[str, int], int] = {}

    def offset_in(self, source: Source) -> int:
        """The first offset to read from a source; all of one that came after the look."""
        return self.places.get(source.key, source.partition.start_offset)


EARLIEST: Final = Start("earliest")
LATEST: Final = Start("latest")
