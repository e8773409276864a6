"""Which run leaves a full cache: two queues, so that runs that are read once push nothing out.

Rules (2Q, Johnson and Shasha 1994): a new run stands in the queue of new ones. A run that is read
from its beginning again, or is brought again soon after it left, comes to the kept ones, of which
the one used longest ago leaves first. New ones leave while they take more than a quarter of the
cache, those that were read to their end before the others. A run that a reader waits for does not
leave before it was read. The caller locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from onelog.storage.cold.runs import PieceKey, Run

GHOSTS_MAX: Final = 4096
"""Runs that left and are remembered."""


class TwoQueues:
    """The runs of a cache, in the order in which they leave it."""

    __slots__ = ("_ghosts", "_kept", "_new", "_new_bytes")

    def __init__(self) -> None:
        self._new: OrderedDict[Run, None] = OrderedDict()
        self._kept: OrderedDict[Run, None] = OrderedDict()
        self._ghosts: OrderedDict[tuple[PieceKey, int], None] = OrderedDict()
        self._new_bytes = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._kept)

    def __iter__(self) -> Iterator[Run]:
        yield from self._new
        yield from self._kept

    def add(self, run: Run) -> None:
        """A run came."""
        ghost = (run.piece, run.first)
        if ghost in self._ghosts:
            del self._ghosts[ghost]
            self._kept[run] = None
        else:
            self._new[run] = None
            self._new_bytes += run.size_bytes

    def note_use(self, run: Run) -> None:
        """A run was read."""
        if run in self._kept:
            self._kept.move_to_end(run)
        elif run.again and run in self._new:
            del self._new[run]
            self._new_bytes -= run.size_bytes
            self._kept[run] = None

    def remove(self, run: Run) -> None:
        """A run leaves."""
        if run in self._kept:
            del self._kept[run]
            return
        del self._new[run]
        self._new_bytes -= run.size_bytes
        self._ghosts[run.piece, run.first] = None
        if len(self._ghosts) > GHOSTS_MAX:
            self._ghosts.popitem(last=False)

    def pick(self, cache_bytes: int, may_go: Callable[[Run], bool]) -> Run | None:
        """The run that leaves next, among those that may; None: there is none."""
        for is_free in (_is_unused, _was_served):
            for run in self._in_order(cache_bytes):
                if is_free(run) and may_go(run):
                    return run
        return None

    def _in_order(self, cache_bytes: int) -> Iterator[Run]:
        is_new_full = self._new_bytes > cache_bytes // 4
        if not is_new_full:
            yield from self._kept
        for run in self._new:
            if run.was_read_whole:
                yield run
        yield from self._new
        if is_new_full:
            yield from self._kept


def _is_unused(run: Run) -> bool:
    return run.leases == 0


def _was_served(run: Run) -> bool:
    return not run.fresh
