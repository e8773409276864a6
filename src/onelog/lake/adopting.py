"""Adopts rows that somebody else rewrote: a managed catalog's compaction, or a rewrite by hand.

Rules: the frames of a row that lost its file say which offsets are rows, and which CRC each batch
has. Rows are found by the statistics of the files that the table has now, and put in order; every
batch is rebuilt and must have its CRC. The batches are then written as they were the first time,
and one commit puts the new files in the place of the foreign ones. Before that nothing is changed:
what cannot be proved is named, and the files that were written for it go. A foreign file leaves as
a whole, so each of its rows must be proved, or lie before the log's start: those rows stay if the
table keeps them longer, and go if it does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onelog.base import faults
from onelog.base.errors import ColdDamaged, Conflict, CorruptBatch, NotFound
from onelog.kernel import PLACE_ROWS, rebuild_batches, scan_batches
from onelog.lake.adopting_sources import Sources
from onelog.lake.arrow import kernel_columns
from onelog.lake.framing import EMPTY, Framing
from onelog.lake.jobs import AdoptJob, AdoptPart
from onelog.lake.log_rows import RowMaker
from onelog.lake.log_table import REBUILT_FROM, file_name
from onelog.lake.log_tables import LogTable
from onelog.lake.placing import put_file
from onelog.lake.rebuilding import OpenedFrames, read_frames, state_of
from onelog.lake.storage import Storage
from onelog.lake.tables import LogPart
from onelog.objects import names
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore

CHUNK_BYTES: Final = 64 << 20
"""Bytes of batches that are rebuilt at a time."""
_AS_LOG: Final = -2
TOLD_MAX: Final = 20
"""Ranges of offsets that a refusal names."""


class Unproved(NamedTuple):
    """Offsets of a partition whose rows are not what was written."""

    partition: int
    first: int
    end: int
    why: str


class Adopting:
    """One adoption."""

    def __init__(
        self, store: ObjectStore, storage: Storage, folder: Path, log: LogTable, job: AdoptJob
    ) -> None:
        self._store = store
        self._storage = storage
        self._folder = folder
        self._log = log
        self._job = job
        self._table = log.open()
        self._files: list[str] = []
        self._frames: list[str] = []
        self._bad: list[Unproved] = []

    def run(self, committing: AbstractContextManager[object]) -> list[tuple[int, Row]]:
        """Rows of the new files, with their partitions; `committing` is held for the commit only.

        Raises Conflict and changes nothing when something is not proved, or when the table changed
        meanwhile.
        """
        self._check_marks()
        there = self._log.files(self._table)
        lost = {
            part.partition: [
                row
                for row in part.rows
                if row.file not in there or self._table.has_deletes(there[row.file])
            ]
            for part in self._job.parts
        }
        if not any(lost.values()):
            return []
        gone = {row.file for rows in lost.values() for row in rows}
        kept = {row.file for part in self._job.parts for row in part.rows} - gone
        sources = Sources(
            self._table,
            [file for path, file in there.items() if path not in kept],
            lost,
            {part.partition: part.rows[0].base for part in self._job.parts if part.rows},
            self._log.typed.names,
        )
        try:
            sources.check()
            made = [
                (part.partition, row)
                for part in self._job.parts
                for one in lost[part.partition]
                if (row := self._adopt(part, one, sources)) is not None
            ]
            self._refuse_unproved()
            if self._job.table_age_ms != _AS_LOG:
                self._files += sources.rest(self._folder, self._storage)
            faults.hit("lake.adopt")
            with committing:
                self._commit(sources)
        except Conflict:
            self._discard()
            raise
        return made

    def _commit(self, sources: Sources) -> None:
        if not self._log.replace(self._table, self._files, sources.used):
            raise Conflict(
                f"the table {self._job.place.table} was changed while its rows were read: turn the"
                " other writer off, and try again"
            )

    def _check_marks(self) -> None:
        for part in self._job.parts:
            mark = self._table.end_of(LogPart(self._job.stream_id, part.partition))
            end = part.rows[-1].end if part.rows else -1
            if (-1 if mark is None else mark) < end:
                raise Conflict(
                    f"the table {self._job.place.table} says that partition {part.partition} ends"
                    f" at {mark}, and its manifest {end}: it was dropped and made again, or"
                    " restored from a copy. Set tier.table to another name to begin anew"
                )

    # One row of a manifest.

    def _adopt(self, part: AdoptPart, row: Row, sources: Sources) -> Row | None:
        """The row of a new file for the offsets of a lost one; None: they are not proved."""
        try:
            frames = read_frames(self._store, row)
        except NotFound:
            raise Conflict(
                f"the frames {row.object} of offsets {row.base} to {row.end} are gone: nothing can"
                " be proved without them. Restore the object from a copy of the bucket"
            ) from None
        known = len(self._bad)
        path = self._folder / f"{names.new_tag()}.parquet"
        maker = RowMaker(
            self._table.layout.schema, part.partition, topic=self._job.topic, typed=self._log.typed
        )
        framing = Framing(
            row.base, path, maker, index_topics=part.index_topics, aborted=frames.part.aborted
        )
        try:
            for data in self._batches(part.partition, row, frames, sources):
                if len(self._bad) == known:
                    framing.add(memoryview(data), scan_batches(data))
            if len(self._bad) > known:
                return None
            return self._written(part.partition, row, frames, framing, path)
        finally:
            framing.discard()

    def _written(
        self, partition: int, row: Row, frames: OpenedFrames, framing: Framing, path: Path
    ) -> Row:
        """Put a proved file and its frames in place."""
        directory = self._table.layout.directory.rstrip("/")
        target = f"{directory}/{file_name(partition, row.base, row.end, names.new_tag())}"
        created_ms = frames.file.created_ms
        made = framing.finish(
            row.end, target, created_ms=created_ms, state=state_of(self._store, row, frames.part)
        )
        faults.hit("lake.file")
        self._files.append(target)
        put_file(self._storage, path, target)
        name = names.frames(self._job.stream_id, partition, row.base, row.end, names.new_tag())
        self._frames.append(name)
        self._store.put(name, made.frames.parts)
        return made.frames.row(
            name, created_ms=created_ms, leader_epoch=made.leader_epoch, file=target
        )

    def _batches(
        self, partition: int, row: Row, frames: OpenedFrames, sources: Sources
    ) -> Iterator[bytes]:
        """The batches of a row, rebuilt from the rows of today; unproved ones are noted."""
        groups = frames.file.groups
        first = 0
        while first < len(groups):
            last, size = first, 0
            while last < len(groups) and (last == first or size < CHUNK_BYTES):
                size += groups[last].log_bytes
                last += 1
            begins = groups[first].first_batch
            ends = groups[last].first_batch if last < len(groups) else len(frames.table)
            raw_bytes = sum(group.raw_bytes for group in groups[first:last])
            start = row.position + groups[first].raw_position
            raw = self._store.get_range(row.object, start, raw_bytes) if raw_bytes else b""
            low = frames.table.base(begins)
            high = frames.table.base(ends) if ends < len(frames.table) else row.end
            rows = self._in_order(sources.rows(partition, low, high, REBUILT_FROM))
            first_row = groups[first].first_row
            if self._counted(partition, frames, (begins, ends), rows):
                yield self._rebuilt(partition, frames, (begins, ends), rows, first_row, bytes(raw))
            first = last

    def _in_order(self, parts: Iterable[pa.Table]) -> pa.Table:
        """Rows by offset, as one table whose columns are whole."""
        rows = pa.concat_tables([self._table.wanted(REBUILT_FROM).empty_table(), *parts])
        return rows.take(pc.sort_indices(rows, [("offset", "ascending")])).combine_chunks()

    def _counted(
        self, partition: int, frames: OpenedFrames, span: tuple[int, int], rows: pa.Table
    ) -> bool:
        """Whether each batch has as many rows as it had; those that do not are noted."""
        offsets = rows.column("offset").to_numpy()
        if len(offsets) > 1 and bool((np.diff(offsets) <= 0).any()):
            at = int(offsets[np.flatnonzero(np.diff(offsets) <= 0)[0]])
            self._bad.append(Unproved(partition, at, at + 1, "the table has it twice"))
            return False
        before, taken = len(self._bad), 0
        for number in range(*span):
            frame = frames.table[number]
            end = frame.base + frame.last_delta + 1
            low, high = np.searchsorted(offsets, [frame.base, end])
            taken += int(high - low)
            if high - low != frame.rows:
                why = f"the table has {high - low} of its {frame.rows} rows"
                self._bad.append(Unproved(partition, frame.base, end, why))
        if before == len(self._bad) and taken != len(offsets):
            why = f"the table has {len(offsets) - taken} rows that no batch had"
            low, end = frames.table.base(span[0]), int(offsets[-1]) + 1
            self._bad.append(Unproved(partition, low, end, why))
        return before == len(self._bad)

    def _rebuilt(
        self,
        partition: int,
        frames: OpenedFrames,
        span: tuple[int, int],
        rows: pa.Table,
        first_row: int,
        raw: bytes,
    ) -> bytes:
        columns = kernel_columns(rows) if rows.num_rows else EMPTY
        try:
            return rebuild_batches(frames.table.packed(*span), columns, first_row, raw, True)
        except CorruptBatch:
            found = self._unproved(partition, frames, span, rows)
            if not found:
                raise ColdDamaged(
                    f"the raw batches in {frames.file.path}'s frames are damaged: restore the"
                    " object from a copy of the bucket"
                ) from None
            self._bad += found
            return b""

    @staticmethod
    def _unproved(
        partition: int, frames: OpenedFrames, span: tuple[int, int], rows: pa.Table
    ) -> list[Unproved]:
        """Batches whose rows do not give their CRC."""
        found, at = [], 0
        for number in range(*span):
            frame = frames.table[number]
            if frame.place == PLACE_ROWS:
                one = kernel_columns(rows.slice(at, frame.rows).combine_chunks())
                try:
                    packed = frames.table.packed(number, number + 1)
                    rebuild_batches(packed, one, frame.first_row, b"", True)
                except CorruptBatch:
                    end = frame.base + frame.last_delta + 1
                    why = "its rows do not have the checksum of what was written"
                    found.append(Unproved(partition, frame.base, end, why))
            at += frame.rows
        return found

    # Refusals.

    def _refuse_unproved(self) -> None:
        if not self._bad:
            return
        told = [
            f"offsets {one.first} to {one.end - 1} of partition {one.partition}: {one.why}"
            for one in self._bad[:TOLD_MAX]
        ]
        more = f"; and {len(self._bad) - TOLD_MAX} more" if len(self._bad) > TOLD_MAX else ""
        raise Conflict(
            f"the table {self._job.place.table} does not hold what was written, and nothing was"
            f" changed: {'; '.join(told)}{more}. Restore these rows from an older snapshot of the"
            " table and try again, or set tier.table to another name: history goes on in a new"
            " table, and what is only in the old files is read while they exist"
        )

    def _discard(self) -> None:
        """Remove what was written and is named by nothing; what stays is swept."""
        for path in self._files:
            with contextlib.suppress(Exception):
                files, inner = self._storage.open(path)
                files.delete_file(inner)
        if self._frames:
            with contextlib.suppress(Exception):
                self._store.delete(self._frames)
