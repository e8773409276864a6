"""When batches were written: what a broker with tracing remembers until they are visible.

Rules: only a broker with tracing has this publisher; the plain one notes nothing. Of each partition
the newest `WRITES_MAX` writes are known, of at most `PARTITIONS_MAX` partitions (I8): a span whose
write is forgotten begins with its message instead.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from onelog.broker.publish import Publisher
from onelog.kernel import BatchInfo, Stage
from onelog.log.handle import PartitionHandle

WRITES_MAX: Final = 256
PARTITIONS_MAX: Final = 10_000


class WriteTimes:
    """The times of writes that are not visible yet, or were just made visible."""

    def __init__(self) -> None:
        self._rows: dict[PartitionHandle, deque[tuple[int, int]]] = {}
        """Per partition: the first offset of a write, and its time in ns."""

    def note(self, partition: PartitionHandle, now_ns: int) -> None:
        """A write to a partition begins."""
        rows = self._rows.get(partition)
        if rows is None:
            if len(self._rows) >= PARTITIONS_MAX:
                self._rows.clear()
            rows = self._rows[partition] = deque(maxlen=WRITES_MAX)
        rows.append((int(partition.end_offset), now_ns))

    def find(self, partition: PartitionHandle, offset: int) -> int | None:
        """When the record at an offset was written; None: nobody knows.

        The offsets that are asked for do not go back.
        """
        rows = self._rows.get(partition)
        if not rows:
            return None
        while len(rows) > 1 and rows[1][0] <= offset:
            rows.popleft()
        first, written_ns = rows[0]
        return written_ns if first <= offset else None


class NotedPublisher(Publisher):
    """A publisher that notes when it writes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.write_times = WriteTimes()
        self.on_tick.append(self._note)

    def _note(self, dirty: list[Stage]) -> None:
        now_ns = self._clock.now_ns()
        for stage in dirty:
            self.write_times.note(stage.owner.partition, now_ns)

    def put_batches(self, target: PartitionHandle, data: bytearray | memoryview) -> list[BatchInfo]:
        """Append batches that were admitted."""
        if self.dirty:
            self.tick()  # its writes come first, and are noted first
        self.write_times.note(target, self._clock.now_ns())
        return super().put_batches(target, data)
