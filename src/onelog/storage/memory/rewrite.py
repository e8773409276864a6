"""Replaces sealed segments of the ring by one, for compaction and thinning.

Rules: the new segment grows beside the log and takes the place of the old ones in one step. Batches
that the ring dropped meanwhile stay dropped; a log that was truncated meanwhile refuses the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onelog.base.errors import Closed, InvalidRequest
from onelog.kernel import BatchInfo
from onelog.storage.batch_segment import MemorySegment
from onelog.storage.engine import Buffer
from onelog.storage.topic_pairs import derive_pairs

if TYPE_CHECKING:
    from onelog.storage.memory.ring import MemoryLog


class MemoryRewrite:
    """A segment that grows beside the log until it replaces others."""

    __slots__ = ("_cuts", "_end", "_log", "_next", "_segment", "_start")

    def __init__(self, log: MemoryLog, fresh: MemorySegment, end: int) -> None:
        self._log = log
        self._start = self._next = fresh.base_offset
        self._end = end
        self._cuts = log.cuts
        self._segment: MemorySegment | None = fresh

    def append(self, data: Buffer, batches: Sequence[BatchInfo]) -> None:
        """Add batches, offsets ascending, all inside [start, end)."""
        segment = self._need_segment()
        view = memoryview(data)
        for info in batches:
            if not self._next <= info.base_offset <= info.last_offset < self._end:
                raise InvalidRequest(
                    f"a rewritten batch of offsets {info.base_offset} to {info.last_offset} is not "
                    f"inside {self._next} to {self._end}"
                )
            segment.add(info, bytes(view[info.position : info.position + info.size_bytes]))
            self._next = info.last_offset + 1
        if batches and segment.indexed:
            segment.add_topics(derive_pairs(data, batches), batches[0].base_offset)

    def commit(self) -> None:
        """Make the replacement visible."""
        segment, self._segment = self._need_segment(), None
        self._log.swap(self._start, self._end, segment, self._cuts)

    def abort(self) -> None:
        """Throw the replacement away."""
        self._segment = None

    def _need_segment(self) -> MemorySegment:
        if self._segment is None:
            raise Closed("this rewrite was committed or aborted")
        return self._segment
