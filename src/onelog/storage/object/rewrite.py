"""Replaces sealed batches, for compaction and thinning: a new object, then a note in the chain.

Rules: the new object grows beside the log; one note puts it in place of all that was in its range.
Before the note nothing names it, so a crash leaves an object for the sweep. While a rewrite runs,
its bounds stay bounds of segments. A log that was truncated meanwhile refuses the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from onelog.base.errors import Closed, Conflict, InvalidRequest
from onelog.kernel import BatchInfo
from onelog.objects.piece_building import PieceBuilder
from onelog.storage.engine import Buffer
from onelog.storage.object.content import PartitionContent
from onelog.storage.object.core import ObjectCore
from onelog.storage.topic_pairs import derive_pairs


class ObjectRewrite:
    """A piece that grows beside the log until it replaces others."""

    def __init__(self, core: ObjectCore, content: PartitionContent, start: int, end: int) -> None:
        """The caller holds the lock."""
        rows = content.infos()
        bases = [int(row.base_offset) for row in rows]
        if start not in bases[:-1] or end not in bases or start >= end:
            raise InvalidRequest(
                f"{content.place}: {start} to {end} are not the bounds of sealed segments"
            )
        self._core = core
        self._content = content
        self._start = self._next = start
        self._end = end
        self._cuts = content.cuts
        self._created_ms = int(rows[bases.index(start)].created_ms)
        self._is_indexed = content.settings.topic_index
        self._builder: PieceBuilder | None = PieceBuilder(start, index_topics=self._is_indexed)
        content.boundaries.update((start, end))

    def append(self, data: Buffer, batches: Sequence[BatchInfo]) -> None:
        """Add batches, offsets ascending, all inside [start, end)."""
        builder = self._need_builder()
        for info in batches:
            if not self._next <= info.base_offset <= info.last_offset < self._end:
                raise InvalidRequest(
                    f"a rewritten batch of offsets {info.base_offset} to {info.last_offset} is not"
                    f" inside {self._next} to {self._end}"
                )
            self._next = info.last_offset + 1
        if batches:
            kept = bytes(data)
            pairs = derive_pairs(kept, batches) if self._is_indexed else None
            builder.add(kept, batches, pairs)

    def commit(self) -> None:
        """Make the replacement durable and visible."""
        builder = self._need_builder()
        core, content = self._core, self._content
        core.wait()  # the batches that are replaced come before the note
        built = builder.finish(self._end)
        name = core.put_data(built.parts)
        row = built.row(name, created_ms=self._created_ms, leader_epoch=builder.leader_epoch)
        with core.chain.lock:
            core.chain.check()
            if content.cuts != self._cuts:
                raise Conflict(f"{content.place} was truncated during a rewrite: begin it again")
            if core.contents.get(content.key) is not content:
                raise Conflict(f"{content.place} was deleted during a rewrite")
            if any(
                one.base < bound < one.end
                for one in content.cold.rows
                for bound in (self._start, self._end)
            ):
                raise Conflict(f"rows of {content.place} were joined during a rewrite")
            self._let_go()
            if content.start < self._end:
                core.name_rows(content, self._start, self._end, [row])
        core.wait()

    def abort(self) -> None:
        """Throw the replacement away."""
        with self._core.chain.lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._builder is not None:
            self._builder = None
            self._content.boundaries.subtract((self._start, self._end))

    def _need_builder(self) -> PieceBuilder:
        if self._builder is None:
            raise Closed("this rewrite was committed or aborted")
        return self._builder
