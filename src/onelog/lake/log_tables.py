"""Tables that are the history of streams: opened by their place, changed by commits with marks.

Rules: a commit moves the mark of a partition from the offset that its first file begins at to the
one that its last file ends at, and is refused if the table says something else. A commit whose
outcome is not known is decided by loading the table again. A table that lacks a file that a
manifest names was changed by somebody else: nothing more is committed to it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from onelog.base import faults
from onelog.base.errors import Conflict, OnelogError, Unavailable
from onelog.lake.formats import open_table
from onelog.lake.iceberg import IcebergTable
from onelog.lake.jobs import AddedFile, TablePlace
from onelog.lake.log_table import LOG_COLUMNS, span_of
from onelog.lake.options import Format, TableOptions, parse_options
from onelog.lake.storage import Storage
from onelog.lake.tables import COMMIT_ATTEMPTS, LakeTable, LogPart, TableChange, TableFile
from onelog.lake.typed_columns import TypedColumns, parse_columns
from onelog.lake.writing import WrittenFile

MANAGED: Final = "onelog.managed"
_SPANS_TOLD: Final = 10
"""Ranges of offsets that an error names."""
_PROPERTIES: Final = {
    Format.ICEBERG: (
        (MANAGED, "true"),
        ("write.metadata.delete-after-commit.enabled", "true"),
        ("write.metadata.previous-versions-max", "20"),
        ("commit.manifest-merge.enabled", "true"),
    ),
    Format.DELTA: (),  # it takes no properties of others
}


class LogTable:
    """The table of one stream."""

    def __init__(self, place: TablePlace, storage: Storage) -> None:
        self.place = place
        self.typed: TypedColumns = parse_columns(place.columns)
        self._options = _options(place, storage)
        self.storage = storage

    def open(self, *, make: bool = False) -> LakeTable:
        """The table as it is now; made, or given columns that it lacks, if asked for."""
        columns = pa.schema([*LOG_COLUMNS, *self.typed.schema]) if make else None
        return open_table(self._options, columns)

    def full_path(self, table: LakeTable, file: TableFile) -> str:
        """The path of a file as manifests have it."""
        if "/" in file.path:
            return file.path
        return f"{table.layout.directory}/{file.path}"

    def files(self, table: LakeTable) -> dict[str, TableFile]:
        """The files of the table, by their paths."""
        return {self.full_path(table, file): file for file in table.files()}

    def add(
        self,
        stream_id: str,
        added: Sequence[AddedFile],
        before: Mapping[int, int],
        known: Iterable[str],
    ) -> None:
        """Commit files to partitions whose ends were as `before` says (-1: none).

        Raises Conflict when the table is not what the manifests say.
        """
        wanted = list(known)
        ends = _moves(stream_id, added, before)
        for _attempt in range(COMMIT_ATTEMPTS):
            table = self.open()
            states = {part: table.end_of(part) for part in ends}
            if all(states[part] == move[1] for part, move in ends.items()):
                return  # an earlier try was done after all
            self._check_marks(ends, states)
            self._check_files(table, wanted)
            change = TableChange(
                "", 0, [self._written(table, file) for file in added],
                ends={part: move[1] for part, move in ends.items()},
            )  # fmt: skip
            if self._commit(table, change):
                return
        raise Conflict(f"the table {self.place.table} was changed by others during every commit")

    def replace(self, table: LakeTable, added: Sequence[str], removed: Sequence[TableFile]) -> bool:
        """Commit a change that moves no mark. False: somebody else was first."""
        return self._commit(
            table, TableChange("", 0, [self._new_file(table, path) for path in added], removed)
        )

    def _commit(self, table: LakeTable, change: TableChange) -> bool:
        faults.hit("lake.commit")
        try:
            table.commit(change)
        except Conflict:
            return False
        except OnelogError:
            raise
        except OSError as error:
            raise Unavailable(f"the table {self.place.table} did not answer: {error}") from error
        if not self._options.place.startswith(("s3://", "s3a://", "gs://", "abfs")):
            os.sync()  # the libraries of tables do not sync the files of a folder
        faults.hit("lake.commit.after")
        return True

    def _check_marks(
        self, ends: Mapping[LogPart, tuple[int, int]], states: Mapping[LogPart, int | None]
    ) -> None:
        for part, (first, _last) in ends.items():
            state = states[part]
            if (-1 if state is None else state) != first:
                raise Conflict(
                    f"the table {self.place.table} has partition {part.partition} up to offset"
                    f" {state}, and its manifest says {first}: another broker writes to"
                    " the table, or it was restored from a copy; give each broker a table of its"
                    " own"
                )

    def _check_files(self, table: LakeTable, known: Sequence[str]) -> None:
        there = self.files(table)
        missing = [path for path in known if path not in there or table.has_deletes(there[path])]
        if missing:
            raise Conflict(
                f"the table {self.place.table} no longer has {len(missing)} files as OneLog"
                f" wrote them ({_told(missing)}): somebody rewrote or deleted rows. Nothing more is"
                " committed; cold reads go on while the files exist. Turn the other writer off and"
                " keep its old snapshots. `onelog store adopt STREAM` takes the rows over if all"
                " of them are still there; else set tier.table to another name: history goes on in"
                " a new table"
            )

    def _written(self, table: LakeTable, file: AddedFile) -> WrittenFile:
        return self._new_file(table, file.path)

    def _new_file(self, table: LakeTable, path: str) -> WrittenFile:
        files, inner = self.storage.open(path)
        with files.open_input_file(inner) as source:
            size = source.size()
            footer = pq.read_metadata(source)
        return WrittenFile(path, size, footer, (), table.layout.version)

    def snapshot(self, table: LakeTable) -> str:
        """Which state of the table this is, in its own words."""
        if isinstance(table, IcebergTable):
            current = table.inner.current_snapshot()
            return "" if current is None else str(current.snapshot_id)
        return str(getattr(table, "inner").version())  # noqa: B009 - of delta-rs


def _told(missing: Sequence[str]) -> str:
    """Which offsets some files held."""
    spans = sorted(span for path in missing if (span := span_of(path)) is not None)
    joined: list[tuple[int, int, int]] = []
    for partition, base, end in spans:
        if joined and joined[-1][0] == partition and joined[-1][2] == base:
            joined[-1] = (partition, joined[-1][1], end)
        else:
            joined.append((partition, base, end))
    told = [
        f"offsets {base} to {end - 1} of partition {partition}"
        for partition, base, end in joined[:_SPANS_TOLD]
    ]
    more = f" and {len(joined) - _SPANS_TOLD} more ranges" if len(joined) > _SPANS_TOLD else ""
    return ", ".join(told) + more


def _moves(
    stream_id: str, added: Sequence[AddedFile], before: Mapping[int, int]
) -> dict[LogPart, tuple[int, int]]:
    """From where to where each partition's mark moves."""
    found: dict[LogPart, tuple[int, int]] = {}
    for file in sorted(added, key=lambda one: (one.partition, one.base)):
        part = LogPart(stream_id, file.partition)
        found[part] = (before.get(file.partition, -1), file.end)
    return found


def _options(place: TablePlace, storage: Storage) -> TableOptions:
    given = {"tableFormat": place.format, "table": place.table}
    if place.format == Format.ICEBERG.value:
        given |= {
            "catalog": place.catalog,
            "catalogName": place.catalog_name,
            "warehouse": place.warehouse,
            **{f"catalog.{name}": value for name, value in place.options.items()},
        }
        if not place.warehouse:
            del given["warehouse"]
    options = parse_options(given)
    return dataclasses.replace(options, storage=storage, properties=_PROPERTIES[options.format])
