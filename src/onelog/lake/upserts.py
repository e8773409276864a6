"""Upsert: which files of a table a batch of changed rows replaces, and by what.

Rules: only files that hold a key of the batch are written anew; the others stay, and those whose
statistics say that they hold none are not even opened. A row that is older than the one in the
table changes nothing. A file of a task is used as it is if none of its rows lost, so the first load
of a table costs as much as an append.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onelog.lake.latest import latest_places, places, replaced, without
from onelog.lake.options import TableOptions
from onelog.lake.tables import LakeTable, TableFile
from onelog.lake.writing import FileLayout, FileWriter, WrittenFile

_FILE, _PLACE = "onelog.file", "onelog.place"


@dataclass(frozen=True)
class Merge:
    """The files that an upsert adds and removes."""

    added: Sequence[WrittenFile]
    removed: Sequence[TableFile]


class Upsert:
    """The rows that the tasks of one batch staged, merged into a table as often as it takes."""

    def __init__(self, options: TableOptions, staged: Sequence[WrittenFile]) -> None:
        self._options = options
        self._staged = list(staged)
        self._keys, self._order = options.keys, options.order_by

    def merge(self, table: LakeTable, *, replaces_all: bool = False) -> Merge:
        """The changes that the loaded table needs; with `replaces_all`, its present rows do not
        count."""
        layout = table.layout
        updates = self._updates(layout)
        winners = latest_places(updates, self._keys, self._order)
        if len(winners) < updates.num_rows:
            updates = updates.take(winners)
        writer = FileWriter(layout)
        removed: list[TableFile] = []
        lost: list[pa.Array] = []
        for file in [] if replaces_all else self._touched(table, layout, updates):
            rows = table.read(file, [*self._keys, *self._order])
            gone, older = replaced(rows, updates, self._keys, self._order)
            lost += older.chunks if isinstance(older, pa.ChunkedArray) else [older]
            if len(gone):
                removed.append(file)
                writer.write(without(table.read(file), gone))
        updates = without(updates, pa.chunked_array(lost, pa.int64()))
        added = self._kept_files(updates, writer, layout)
        return Merge([*added, *writer.close()], removed)

    def _touched(
        self, table: LakeTable, layout: FileLayout, updates: pa.Table
    ) -> Iterator[TableFile]:
        """The files that may hold a key of the updates, as far as their statistics tell."""
        keys = [layout.schema.field(name) for name in self._keys]
        for file in table.files():
            may_be: pa.ChunkedArray | None = None
            for key in keys:
                found = table.bounds(file, key)
                if found is not None:
                    values = updates.column(key.name)
                    least, most = found
                    inside = pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most))
                    may_be = inside if may_be is None else pc.and_(may_be, inside)
            if may_be is None or pc.any(may_be).as_py():
                yield file

    def forget(self, table: LakeTable) -> None:
        """Remove staged files that only said which rows go; they are no part of any table."""
        if self._options.delete_column is not None:
            _remove(table.layout, self._staged)

    def discard(self, table: LakeTable, merge: Merge) -> None:
        """Remove what a merge wrote that was not committed; what tasks staged stays."""
        staged = {file.path for file in self._staged}
        _remove(table.layout, [file for file in merge.added if file.path not in staged])

    def _kept_files(
        self, updates: pa.Table, writer: FileWriter, layout: FileLayout
    ) -> list[WrittenFile]:
        """Staged files of which all rows go into the table; rows of the others are written anew."""
        taken = self._survivors(updates)
        kept: list[WrittenFile] = []
        for number, file in enumerate(self._staged):
            mine = taken.filter(pc.equal(taken.column(_FILE), number)).column(_PLACE)
            if len(mine) == file.rows and self._options.delete_column is None:
                kept.append(file)
            elif len(mine):
                writer.write(self._read(file, layout).take(mine).select(layout.schema.names))
        return kept

    def _survivors(self, updates: pa.Table) -> pa.Table:
        """Which staged rows are to be in the table: not the deletes."""
        column = self._options.delete_column
        if column is None:
            return updates
        return updates.filter(pc.invert(pc.fill_null(updates.column(column), False)))

    def _updates(self, layout: FileLayout) -> pa.Table:
        """Keys and order of all staged rows, and where they stand."""
        wanted = [*self._keys, *self._order]
        if self._options.delete_column is not None:
            wanted.append(self._options.delete_column)
        wanted = list(dict.fromkeys(wanted))
        tables = []
        for number, file in enumerate(self._staged):
            rows = self._read(file, layout, wanted).select(wanted)
            rows = rows.append_column(_FILE, pa.repeat(pa.scalar(number, pa.int32()), len(rows)))
            tables.append(rows.append_column(_PLACE, places(rows)))
        return pa.concat_tables(tables).combine_chunks()

    def _read(
        self, file: WrittenFile, layout: FileLayout, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of a staged file, with the partition columns that it leaves out."""
        files, inner = layout.storage.open(file.path)
        source = files.open_input_file(inner)
        with source, pq.ParquetFile(source) as parquet:
            there = parquet.schema_arrow.names
            rows = parquet.read(columns=[one for one in columns or there if one in there])
        made = {name: rows.column(name) for name in rows.column_names}
        for part, value in zip(layout.partitions, file.partition, strict=True):
            if part.source not in there:
                made[part.source] = pa.repeat(pa.scalar(value), rows.num_rows)
        known = {one.name: one.type for one in layout.schema}
        return pa.table({name: made[name].cast(known.get(name, made[name].type)) for name in made})


def _remove(layout: FileLayout, gone: Sequence[WrittenFile]) -> None:
    for file in gone:
        files, inner = layout.storage.open(file.path)
        with contextlib.suppress(OSError):
            files.delete_file(inner)
