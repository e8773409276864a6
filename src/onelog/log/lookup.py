"""Reading a partition: whole batches that readers may see, and where to begin.

Rules: no read goes beyond the high watermark, and no read of committed records goes beyond the last
stable offset. Damage that a read finds stops the partition (I9). Every method may raise Cold: then
`Partition.when_here` calls back when the bytes are in memory, and `Partition.in_place` blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from onelog.base.errors import (
    Closed,
    CorruptBatch,
    OffsetOutOfRange,
    OnelogError,
    PartitionCorrupt,
    PartitionStopped,
    again,
)
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import scan_batches, topic_hash
from onelog.log.inflating import slices_now
from onelog.log.visibility import Visibility
from onelog.storage.engine import PartitionLog


class Lookup:
    """The reads of one partition."""

    __slots__ = ("_log", "_place", "_stop", "_visible")

    def __init__(
        self,
        place: str,
        log: PartitionLog,
        visible: Visibility,
        stop: Callable[[OnelogError], None],
    ) -> None:
        self._place = place
        self._log = log
        self._visible = visible
        self._stop = stop
        """Called with the damage that a read found."""

    def read(self, offset: Offset, max_bytes: int, committed: bool = False) -> memoryview:
        """Whole batches from `offset` on that readers may see; empty when there are none yet."""
        visible = self._visible
        upto = visible.last_stable_offset if committed else visible.high_watermark
        if offset >= upto:
            if visible.stopped is not None:
                raise again(visible.stopped)
            if offset > upto and offset > (end := self._log.end_offset):
                raise OffsetOutOfRange(f"offset {offset} lies after the end {end} of {self._place}")
            return memoryview(b"")
        try:
            return self._log.read(offset, max_bytes, upto)
        except Closed:
            if visible.stopped is not None:  # its stream was deleted
                raise again(visible.stopped) from None
            raise
        except PartitionStopped as error:
            self._stop(error)
            raise

    def offsets_of_topic(
        self, topic: bytes, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Offsets whose record probably has this topic; None: no index is kept."""
        return self._log.offsets_of_topic(topic_hash(topic), start, upto, limit)

    def offset_for_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """The first visible record with a timestamp >= this one, and its timestamp."""
        offset = self._log.offset_for_time(timestamp_ms)
        while offset is not None and offset < self._visible.high_watermark:
            data = self.read(offset, 1)
            if not data:
                return None
            info = scan_batches(data)[0]
            if info.max_timestamp_ms >= timestamp_ms:
                slices = slices_now(self, data, info)
                for index in range(len(slices)):
                    if slices.timestamp_ms(index) >= timestamp_ms:
                        return Offset(slices.offset(index)), TimestampMs(slices.timestamp_ms(index))
            offset = Offset(info.last_offset + 1)
        return None

    def max_timestamp(self) -> tuple[Offset, TimestampMs] | None:
        """The first visible record with the greatest timestamp; None: the partition is empty."""
        latest = max((row.max_timestamp_ms for row in self._log.segments()), default=None)
        return None if latest is None else self.offset_for_time(latest)

    def stop_damaged(self, offset: int, error: CorruptBatch) -> PartitionCorrupt:
        """Stop, because stored bytes are damaged. Returns the error to raise."""
        failure = PartitionCorrupt(
            f"{self._place} is damaged at or after offset {offset}: {error}."
            " Restore the partition from a backup or a replica, then restart"
        )
        self._stop(failure)
        return failure
