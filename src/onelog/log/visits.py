"""Visits: how maintenance goes over all partitions without holding the loop.

Rules:
- Partitions are taken in small chunks. The loop notes what is true of them, a thread looks at their
  files, the loop acts. Ten thousand partitions hold nobody up.
- The error of one partition goes to `Troubles` and is counted, and the others go on; damage in its
  log stops it (I9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import (
    Closed,
    CorruptBatch,
    NotLeader,
    PartitionStopped,
    StorageFull,
    Unavailable,
)
from onelog.base.ids import Offset
from onelog.log.catalog import Catalog
from onelog.log.compaction import compactable
from onelog.log.config import StreamConfig
from onelog.log.partition import Partition
from onelog.log.pool import Pool
from onelog.log.stream import Stream
from onelog.storage.engine import PartitionKey

CHUNK: Final = 32
"""Partitions per visit to a thread."""
FAILED: Final = "maintenance"
"""Incidents: maintenance of a partition failed."""

Pins = Callable[[str, int], Offset | None]
"""(stream, partition) → the lowest offset that a durable cursor needs; None: there is none.

Raises Unavailable when that is not known."""
_T = TypeVar("_T")


class Counters(msgspec.Struct):
    """What was done since the start."""

    runs: int = 0
    segments_rolled: int = 0
    segments_deleted: int = 0
    bytes_deleted: int = 0
    compactions: int = 0
    records_compacted: int = 0
    bytes_compacted: int = 0
    """Bytes that compaction gave back."""
    thinnings: int = 0
    bytes_thinned: int = 0
    """Bytes that thinning gave back."""
    producers_expired: int = 0
    alarms: int = 0
    """How often durable cursors lost records because they held back too much."""
    errors: int = 0


class Visit(NamedTuple):
    """One partition in a thread, with what was true of it on the loop."""

    key: PartitionKey
    partition: Partition
    config: StreamConfig
    now_ms: int
    pin: Offset | None
    pins_known: bool
    droppable: Offset
    """Retention may take what lies below it."""
    compactable: Offset
    """Compaction may work below it."""

    @property
    def has_tier(self) -> bool:
        """Whether records of it are in the object store, or go there."""
        status = self.partition.tier_status()
        return self.config.tier.is_on or (status is not None and status.rows > 0)


class Visits:
    """Goes over the partitions of a catalog."""

    def __init__(
        self, catalog: Catalog, threads: Pool, clock: Clock, pins: Pins, counters: Counters
    ) -> None:
        self._catalog = catalog
        self._threads = threads
        self._clock = clock
        self._pins = pins
        self.spoken_for: Pins = _up_to_the_end
        """Up to where `pins` names all that durable cursors need; None: up to the end."""
        self.counters = counters

    def partitions(self) -> list[tuple[Stream, Partition]]:
        """Every partition that lies here."""
        return [
            (stream, partition) for stream in self._catalog.streams() for partition in stream.local
        ]

    def chunks(
        self, wanted: Callable[[StreamConfig], bool], *, copies: bool = False
    ) -> Iterator[list[Visit]]:
        """Running partitions of the wanted streams that are led here, and `copies` of those that
        are led elsewhere, if they are wanted, too; each chunk is looked at when it is due."""
        rows = [row for row in self.partitions() if wanted(row[0].config)]
        for chunk in chunks_of(rows, CHUNK):
            visits = []
            for stream, partition in chunk:
                is_copy = isinstance(partition.refusal, NotLeader)
                if partition.stopped is None and (copies or not is_copy):
                    try:
                        visits.append(self._visit(stream, partition))
                    except Exception as error:  # noqa: BLE001 - the others go on
                        self.failed(partition, "looking up its pin", error)
            yield visits

    def _visit(self, stream: Stream, partition: Partition) -> Visit:
        pin, pins_known, droppable = None, True, partition.high_watermark
        try:
            pin = self._pins(stream.name, partition.id)
            spoken_for = self.spoken_for(stream.name, partition.id)
            if spoken_for is not None:
                droppable = min(droppable, spoken_for)
        except Unavailable:
            pins_known = False
        return Visit(
            stream.key(partition.id),
            partition,
            stream.config,
            self._clock.now_ms(),
            pin,
            pins_known,
            droppable,
            compactable(partition),
        )

    async def in_thread(
        self, visits: list[Visit], look: Callable[[Visit], _T]
    ) -> list[tuple[Visit, _T]]:
        """What `look` found in a thread, of the partitions where it did not fail."""

        def work() -> list[tuple[Visit, _T | Exception]]:
            found: list[tuple[Visit, _T | Exception]] = []
            for visit in visits:
                try:
                    found.append((visit, look(visit)))
                except Exception as error:  # noqa: BLE001 - the others go on
                    found.append((visit, error))
            return found

        good: list[tuple[Visit, _T]] = []
        for visit, result in await self._threads.run(work):
            if isinstance(result, Exception):
                self.failed(visit.partition, "looking at it", result)
            else:
                good.append((visit, result))
        return good

    def failed(self, partition: Partition, what: str, error: Exception) -> None:
        """Work on a partition failed: report it, and stop the partition if its log is damaged."""
        if isinstance(error, Closed) or partition.stopped is not None:
            return  # deleted or stopped meanwhile
        self.counters.errors += 1
        self._catalog.troubles.note(FAILED, partition.place, error, at=what)
        if isinstance(error, StorageFull):
            self._catalog.shared.room.refused(error)
        if isinstance(error, CorruptBatch):
            partition.stop_damaged(partition.start_offset, error)
        elif isinstance(error, PartitionStopped):
            partition.stop(error)


def _up_to_the_end(_stream: str, _partition: int) -> Offset | None:
    return None  # all durable cursors are here


def chunks_of(rows: list[_T], size: int) -> Iterator[list[_T]]:
    """The rows in their order, so many at a time."""
    left = iter(rows)
    while chunk := list(islice(left, size)):
        yield chunk
