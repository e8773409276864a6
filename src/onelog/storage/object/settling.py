"""Settling: batches in memory become data objects; and joining: small rows become larger ones.

Rules: both write an object first, then a note that puts its rows in place of what they were made
of. If the log changed meanwhile, the rows are not named, and the object is deleted: nothing ever
named it. Settling reads nothing from the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onelog.base import faults
from onelog.kernel import REL_MAX
from onelog.objects.access import Buffer
from onelog.objects.piece_building import BuiltPiece
from onelog.objects.rows import Row
from onelog.storage.batch_segment import MemorySegment
from onelog.storage.object.building import piece_of_rows, piece_of_segments
from onelog.storage.object.content import PartitionContent
from onelog.storage.object.core import ObjectCore


class SettlingRun(NamedTuple):
    """Neighbouring segments of a partition that become one row."""

    content: PartitionContent
    cuts: int
    segments: list[MemorySegment]

    @property
    def size_bytes(self) -> int:
        """Bytes of batches."""
        return sum(segment.size_bytes for segment in self.segments)


class Settling:
    """Makes data objects."""

    def __init__(self, core: ObjectCore) -> None:
        self._core = core
        self.settled_bytes = 0
        self.settled_objects = 0
        self.joined_rows = 0

    # Memory to rows.

    def settle(self) -> int:
        """Bring all batches that are in memory now into rows. Blocks. Returns the bytes."""
        core = self._core
        with core.chain.lock:
            core.chain.check()
            for content in core.contents.values():
                content.roll()
        core.chain.wait()  # a note about batches comes behind them in the chain
        with core.chain.lock:
            runs = [run for key in sorted(core.contents) for run in _runs(core.contents[key])]
        before = self.settled_bytes
        for group in self._objects(runs):
            self._settle(group)
        if self.settled_bytes > before:
            core.chain.wait()
        return self.settled_bytes - before

    def _objects(self, runs: Sequence[SettlingRun]) -> Iterator[list[SettlingRun]]:
        """Runs that lie in one object."""
        settings = self._core.settings
        shared: list[SettlingRun] = []
        size = 0
        for run in runs:
            if run.size_bytes >= settings.own_object_bytes:
                yield [run]
                continue
            if shared and size + run.size_bytes > settings.settle_bytes:
                yield shared
                shared, size = [], 0
            shared.append(run)
            size += run.size_bytes
        if shared:
            yield shared

    def _settle(self, runs: Sequence[SettlingRun]) -> None:
        core = self._core
        made = [piece_of_segments(run.segments) for run in runs]
        parts: list[Buffer] = [part for built, _ in made for part in built.parts]
        faults.hit("settle.put")
        name = core.put_data(parts)
        faults.hit("settle.note")
        rows, position = [], 0
        for run, (built, leader_epoch) in zip(runs, made, strict=True):
            created_ms = run.segments[0].created_ms
            rows.append(
                built.row(name, created_ms=created_ms, leader_epoch=leader_epoch, position=position)
            )
            position += built.size_bytes
        named = 0
        with core.chain.lock:
            core.chain.check()
            for run, row in zip(runs, rows, strict=True):
                if self._is_as_it_was(run) and not is_crossed(run.content, row):
                    core.name_rows(run.content, row.base, row.end, [row])
                    named += row.log_bytes
        self.settled_bytes += named
        self.settled_objects += 1
        if not named:
            core.store.delete([name])

    def _is_as_it_was(self, run: SettlingRun) -> bool:
        content, first = run.content, run.segments[0]
        if content.cuts != run.cuts or self._core.contents.get(content.key) is not content:
            return False
        ids = [id(row) for row in content.segments]
        if id(first) not in ids:
            return False
        at = ids.index(id(first))
        return ids[at : at + len(run.segments)] == [id(row) for row in run.segments]

    # Rows to larger rows.

    def join(self) -> int:
        """Join small neighbours. Blocks. Returns how many rows went."""
        core = self._core
        with core.chain.lock:
            contents = list(core.contents.values())
        before = self.joined_rows
        for content in contents:
            while (rows := self._small_rows(content)) and self._join(content, rows):
                pass
        return self.joined_rows - before

    def _small_rows(self, content: PartitionContent) -> list[Row]:
        """The first neighbours that may become one; empty: none."""
        settings = self._core.settings
        with self._core.chain.lock:
            table = content.cold.rows
            if len(table) < settings.join_rows:
                return []
            most = min(settings.join_bytes, content.settings.segment_bytes)
            memory = [row.base_offset for row in content.segments if len(row)]
            bounds = {*(+content.boundaries), *memory}
        found: list[Row] = []
        size = 0
        for row in table:
            fits = (
                found
                and size + row.log_bytes <= most
                and row.end - found[0].base <= REL_MAX
                and not any(found[-1].end <= bound <= row.base for bound in bounds)
            )
            if not fits or row.log_bytes >= settings.join_small_bytes:
                if len(found) >= settings.join_rows:
                    return found
                found, size = [], 0
            if row.log_bytes < settings.join_small_bytes:
                found.append(row)
                size += row.log_bytes
        return found if len(found) >= settings.join_rows else []

    def _join(self, content: PartitionContent, rows: Sequence[Row]) -> bool:
        core = self._core
        cuts = content.cuts
        made: tuple[BuiltPiece, int] | None = piece_of_rows(core.store, rows)
        if made is None:
            return False
        built, leader_epoch = made
        name = core.put_data(built.parts)
        row = built.row(name, created_ms=rows[0].created_ms, leader_epoch=leader_epoch)
        with core.chain.lock:
            core.chain.check()
            table = content.cold.rows
            at = table.number_at(rows[0].base)
            is_same = (
                content.cuts == cuts
                and core.contents.get(content.key) is content
                and table[at : at + len(rows)] == list(rows)
                and not is_crossed(content, row)
            )
            if is_same:
                core.name_rows(content, row.base, row.end, [row])
        if not is_same:
            core.store.delete([name])
            return False
        self.joined_rows += len(rows) - 1
        core.chain.wait()
        return True


def _runs(content: PartitionContent) -> Iterator[SettlingRun]:
    """The sealed segments with batches, as the rows that they become."""
    most = content.settings.segment_bytes
    held: list[MemorySegment] = []
    for segment in content.segments[:-1]:
        if not len(segment):
            continue
        if held and not (
            held[-1].end_offset == segment.base_offset
            and held[-1].indexed == segment.indexed
            and sum(row.size_bytes for row in held) + segment.size_bytes <= most
            and segment.end_offset - held[0].base_offset <= REL_MAX
            and not content.boundaries[segment.base_offset]
        ):
            yield SettlingRun(content, content.cuts, held)
            held = []
        held.append(segment)
    if held:
        yield SettlingRun(content, content.cuts, held)


def is_crossed(content: PartitionContent, row: Row) -> bool:
    """Whether a rewrite that is under way begins or ends inside a row: it would take all of the
    row."""
    return any(row.base < bound < row.end for bound in +content.boundaries)
