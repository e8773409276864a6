"""Replaces sealed runs of the ring by one run: what compaction writes.

Rules: the new run grows beside the log and takes the place of the old ones in one step. What the
ring dropped meanwhile stays dropped; a log that was truncated meanwhile refuses the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onelog.base.errors import Closed, InvalidRequest
from onelog.kernel import BatchInfo
from onelog.storage.engine import Buffer
from onelog.storage.memory.run import Run
from onelog.storage.topic_pairs import derive_pairs

if TYPE_CHECKING:
    from onelog.storage.memory.ring import MemoryLog


class MemoryRewrite:
    """A run that grows beside the log until it replaces others."""

    __slots__ = ("_cuts", "_end", "_log", "_next", "_run", "_start")

    def __init__(self, log: MemoryLog, fresh: Run, end: int) -> None:
        self._log = log
        self._start = self._next = fresh.base_offset
        self._end = end
        self._cuts = log.cuts
        self._run: Run | None = fresh

    def append(self, data: Buffer, batches: Sequence[BatchInfo]) -> None:
        """Add batches, offsets ascending, all inside [start, end)."""
        run = self._need_run()
        view = memoryview(data)
        for info in batches:
            if not self._next <= info.base_offset <= info.last_offset < self._end:
                raise InvalidRequest(
                    f"a rewritten batch of offsets {info.base_offset} to {info.last_offset} is not "
                    f"inside {self._next} to {self._end}"
                )
            run.add(info, bytes(view[info.position : info.position + info.size_bytes]))
            self._next = info.last_offset + 1
        if batches and run.indexed:
            run.add_topics(derive_pairs(data, batches), batches[0].base_offset)

    def commit(self) -> None:
        """Make the replacement visible."""
        run, self._run = self._need_run(), None
        self._log.swap(self._start, self._end, run, self._cuts)

    def abort(self) -> None:
        """Throw the replacement away."""
        self._run = None

    def _need_run(self) -> Run:
        if self._run is None:
            raise Closed("this rewrite was committed or aborted")
        return self._run
