"""The foreign files of a table that hold rows which OneLog wrote.

Rules: files and row groups are chosen by the statistics of `partition` and `offset`; without
statistics a file is looked at. A file that holds a row which is neither looked for nor older than
the log is refused: it would be lost when the file leaves the table. So is a column of somebody
else that has values.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from onelog.base.errors import Conflict
from onelog.lake.column_words import OWN_COLUMNS
from onelog.lake.delta import DeltaLake
from onelog.lake.log_table import GROUP_ROWS, file_name, log_writer
from onelog.lake.placing import put_file
from onelog.lake.storage import Storage
from onelog.lake.tables import LakeTable, TableFile
from onelog.objects import names
from onelog.objects.rows import Row

_PLACE: Final = ("partition", "offset")


class Sources:
    """Files of the table's present snapshot, and which of their rows are wanted."""

    def __init__(
        self,
        table: LakeTable,
        files: Iterable[TableFile],
        lost: Mapping[int, Sequence[Row]],
        starts: Mapping[int, int],
        typed: Sequence[str],
    ) -> None:
        """`lost` are the rows of manifests whose files are gone, `starts` the offsets that each
        partition's log begins at in the table, `typed` our own columns of fields."""
        self._table = table
        self._lost = {number: list(rows) for number, rows in lost.items() if rows}
        self._starts = starts
        self._foreign = [
            name for name in table.layout.schema.names if name not in {*OWN_COLUMNS, *typed}
        ]
        self.used = [file for file in files if self._may_have(file, self._lost)]
        """The files that are looked at; all of them leave the table together."""

    def _may_have(self, file: TableFile, lost: Mapping[int, Sequence[Row]]) -> bool:
        """Whether a file may hold rows of these ranges, by its statistics."""
        low, high = self._bounds(file, "partition")
        first, last = self._bounds(file, "offset")
        return any(
            low <= number <= high and row.base <= last and first < row.end
            for number, rows in lost.items()
            for row in rows
        )

    def _bounds(self, file: TableFile, column: str) -> tuple[int, int]:
        found = self._table.bounds(file, self._table.layout.schema.field(column))
        if found is None:
            return 0, 1 << 63
        return int(found[0].as_py()), int(found[1].as_py())

    # Looking.

    def check(self) -> None:
        """Refuse files with rows that nobody looks for. Raises Conflict."""
        if isinstance(self._table, DeltaLake):
            features = self._table.inner.protocol().reader_features or []
            if "deletionVectors" in features:
                raise Conflict(
                    "the table has deletion vectors of another engine, which cannot be read here:"
                    " let that engine rewrite its files first (REORG … APPLY (PURGE))"
                )
        wanted = (*_PLACE, *self._foreign)
        for file in self.used:
            for part in self._table.rows_of(file, wanted).parts():
                self._check_part(file, part)

    def _check_part(self, file: TableFile, part: pa.Table) -> None:
        for name in self._foreign:
            if part.column(name).null_count != part.num_rows:
                raise Conflict(
                    f"{file.path} has values in the column {name}, which is none of tier.columns"
                    " and would be lost: add it there, drop the column, or choose a new table by"
                    " tier.table. Nothing was changed"
                )
        if part.column("partition").null_count or part.column("offset").null_count:
            raise Conflict(f"{file.path} has rows without a partition or an offset: delete them")
        places = (
            part.select(_PLACE)
            .group_by("partition", use_threads=False)
            .aggregate([("offset", "min"), ("offset", "max")])
        )
        for one in places.to_pylist():
            number = one["partition"]
            if self._is_simple(number, one["offset_min"], one["offset_max"]):
                continue
            rows = part.filter(pc.equal(part.column("partition"), number)).column("offset")
            for offset in rows.to_pylist():
                if not self._is_known(number, offset):
                    raise Conflict(
                        f"{file.path} has a row with offset {offset} of partition {number}, which"
                        " OneLog did not write there, or which another file has, too: delete it,"
                        " or choose a new table by tier.table. Nothing was changed"
                    )

    def _is_simple(self, partition: int, low: int, high: int) -> bool:
        """Whether a whole range of offsets lies in one lost row, or before the log."""
        if high < self._starts.get(partition, 0):
            return True
        row = self._row_at(partition, low)
        return row is not None and high < row.end

    def _is_known(self, partition: int, offset: int) -> bool:
        if offset < self._starts.get(partition, 0):
            return True
        return self._row_at(partition, offset) is not None

    def _row_at(self, partition: int, offset: int) -> Row | None:
        rows = self._lost.get(partition, [])
        at = bisect_right(rows, offset, key=lambda row: row.base) - 1
        return rows[at] if at >= 0 and offset < rows[at].end else None

    def rows(
        self, partition: int, low: int, high: int, columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Rows of a partition with offsets from `low` to before `high`, as they lie there."""
        wanted = list(dict.fromkeys((*columns, *_PLACE)))
        schema = self._table.wanted(columns)
        for file in self.used:
            first, last = self._bounds(file, "offset")
            if last < low or first >= high:
                continue
            for part in self._table.rows_of(file, wanted).parts("offset", low, high):
                offset = part.column("offset")
                mask = pc.and_(
                    pc.equal(part.column("partition"), partition),
                    pc.and_(pc.greater_equal(offset, low), pc.less(offset, high)),
                )
                chosen = part.filter(mask)
                if chosen.num_rows:
                    yield chosen.select(columns).cast(schema)

    # What the log no longer has.

    def rest(self, folder: Path, storage: Storage) -> list[str]:
        """Write rows that lie before the log's start into files of their own; their paths."""
        made = []
        for partition, start in self._starts.items():
            path = folder / f"{names.new_tag()}.parquet"
            try:
                first = self._write_rest(path, partition, start)
                if first is None:
                    continue
                directory = self._table.layout.directory.rstrip("/")
                target = f"{directory}/{file_name(partition, first, start, names.new_tag())}"
                put_file(storage, path, target)
                made.append(target)
            finally:
                path.unlink(missing_ok=True)
        return made

    def _write_rest(self, path: Path, partition: int, start: int) -> int | None:
        """Write the rows of a partition before `start`; the least offset, None: there is none."""
        schema, lowest = self._table.layout.schema, None
        writer = None
        try:
            for part in self.rows(partition, 0, start, schema.names):
                least = pc.min(part.column("offset")).as_py()
                lowest = least if lowest is None else min(lowest, least)
                if writer is None:
                    writer = log_writer(str(path), schema)
                writer.write_table(part, row_group_size=GROUP_ROWS)
        finally:
            if writer is not None:
                writer.close()
        return lowest
