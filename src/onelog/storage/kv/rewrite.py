"""Replaces sealed segments of a kv partition by one, for compaction and thinning.

Rules: the new segment's keys are written under a number that the meta does not name, and a marker
says so; after a crash before the commit, the next open deletes them. The commit is one write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onelog.base.errors import Closed, Conflict, InvalidRequest
from onelog.kernel import BatchInfo
from onelog.storage.engine import Buffer
from onelog.storage.kv import contents, keys
from onelog.storage.kv.database import MAINTENANCE_STALL_S, KvDatabase, new_batch
from onelog.storage.kv.meta import KvSegment
from onelog.storage.topic_pairs import derive_pairs

if TYPE_CHECKING:
    from onelog.storage.kv.partition import KvLog


class KvRewrite:
    """One replacement of the segments in [start, end)."""

    __slots__ = ("_db", "_done", "_end", "_fresh", "_log", "_next", "_number", "_old")

    def __init__(
        self,
        log: KvLog,
        db: KvDatabase,
        number: int,
        old: list[KvSegment],
        fresh: KvSegment,
        end: int,
    ) -> None:
        self._log = log
        self._db = db
        self._number = number
        self._old = old
        self._fresh = fresh
        self._next = fresh.base_offset
        self._end = end
        self._done = False

    def append(self, data: Buffer, batches: Sequence[BatchInfo]) -> None:
        """Add batches, offsets ascending, all inside [start, end)."""
        self._check_running()
        if not batches:
            return
        for info in batches:
            if not self._next <= info.base_offset <= info.last_offset < self._end:
                raise InvalidRequest(
                    f"a rewritten batch of offsets {info.base_offset} to {info.last_offset} is not "
                    f"inside {self._next} to {self._end}"
                )
            self._next = info.last_offset + 1
        segment = self._fresh
        self._db.check_room(sum(info.size_bytes for info in batches))
        change = new_batch()
        contents.put_batches(change, self._number, segment.number, data, batches)
        if segment.indexed:
            pairs = derive_pairs(data, batches)
            first = batches[0].base_offset
            contents.put_pairs(change, self._number, segment.number, pairs, first)
        self._db.write(change, stall_s=MAINTENANCE_STALL_S)
        for info in batches:
            segment.count(info.last_offset, info.size_bytes, info.max_timestamp_ms)

    def commit(self) -> None:
        """Make the replacement durable and visible."""
        self._check_running()
        try:
            self._log.swap(self._old, self._fresh)
        except Conflict:
            self.abort()
            raise
        self._done = True

    def abort(self) -> None:
        """Throw the replacement away. Idempotent."""
        if self._done:
            return
        self._done = True
        change = new_batch()
        contents.drop_segment(change, self._number, self._fresh.number)
        change.delete(keys.of_segment(self._number, keys.STAGED, self._fresh.number))
        self._db.write(change, stall_s=MAINTENANCE_STALL_S)

    def _check_running(self) -> None:
        if self._done:
            raise Closed("this rewrite was committed or aborted")
