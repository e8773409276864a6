"""A plain directory of Parquet files, in folders by partition, that any engine reads.

Rules: tasks write under `_onelog`, which readers skip. A commit is one record, which only the first
driver can make. After it the files are moved into their places; if the driver dies in between, the
next driver finishes. Readers see whole files, but a batch of several files appears file by file:
users who need more take Iceberg or Delta. Columns keep their numbers in `_onelog/schema.json`.
"""

from __future__ import annotations

import base64
import json
import posixpath
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from onelog.base import faults
from onelog.base.errors import Conflict, InvalidRequest
from onelog.lake.columns import FIELD_ID, field_id, small_schema
from onelog.lake.file_rows import FileRows
from onelog.lake.options import TableOptions
from onelog.lake.partitions import PartitionField
from onelog.lake.storage import create_once, make_folder
from onelog.lake.tables import (
    LakeTable,
    TableChange,
    TableFile,
    check_columns,
    check_partitions,
    stored_columns,
)
from onelog.lake.writing import NULL_PARTITION, FileLayout

OWN = "_onelog"
RECORDS_KEPT = 2


class Kept(NamedTuple):
    """The facts that a directory keeps about itself."""

    schema: pa.Schema
    partitions: tuple[PartitionField, ...]


def open_parquet(options: TableOptions, rows: pa.Schema | None) -> ParquetDirectory:
    """The directory as it is; with rows to come it is made or given their columns first."""
    files, root = options.storage.open(options.table)
    kept = _load(files, root)
    if rows is None:
        if kept is None:
            raise InvalidRequest(f"{options.table} holds no table that OneLog wrote: check table")
        return ParquetDirectory(options, kept)
    wanted = stored_columns(options, rows)
    if kept is None:
        made = Kept(_grown(None, wanted), options.partitions)
    else:
        made = kept._replace(schema=_grown(kept.schema, wanted) if options.evolve else kept.schema)
    check_columns(options, made.schema, rows)
    check_partitions(options, made.partitions)
    if kept is None or made.schema.names != kept.schema.names:
        _save(files, root, made)
    return ParquetDirectory(options, made)


def _load(files: Any, root: str) -> Kept | None:
    path = f"{root}/{OWN}/schema.json"
    if files.get_file_info(path).type == fs.FileType.NotFound:
        return None
    with files.open_input_stream(path) as source:
        told = json.loads(source.read())
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["arrow"])))
    return Kept(schema, tuple(PartitionField(name) for name in told["partitions"]))


def _save(files: Any, root: str, kept: Kept) -> None:
    columns = [
        {"id": field_id(one), "name": one.name, "type": str(one.type)} for one in kept.schema
    ]
    told = {
        "columns": columns,
        "partitions": [part.source for part in kept.partitions],
        "arrow": base64.b64encode(kept.schema.serialize().to_pybytes()).decode(),
    }
    path = f"{root}/{OWN}/schema.json"
    fresh = f"{path}.{uuid.uuid4().hex}"
    make_folder(files, f"{root}/{OWN}")
    with files.open_output_stream(fresh) as out:
        out.write(json.dumps(told, indent=1).encode())
    files.move(fresh, path)


def _grown(schema: pa.Schema | None, rows: pa.Schema) -> pa.Schema:
    """The schema with the columns that it lacks, each with a number that was never used."""
    have = list(schema or [])
    first = max((field_id(one) or 0 for one in have), default=0) + 1
    fresh = [one for one in rows if one.name not in {old.name for old in have}]
    numbered = [
        one.with_nullable(schema is not None or one.nullable).with_metadata(
            {FIELD_ID: str(first + number).encode()}
        )
        for number, one in enumerate(fresh)
    ]
    return small_schema(pa.schema([*have, *numbered]))


class ParquetDirectory(LakeTable):
    """A directory and its commit records."""

    def __init__(self, options: TableOptions, kept: Kept) -> None:
        self._options = options
        self._schema, self._partitions = kept
        self._files, self._root = options.storage.open(options.table)

    @property
    def layout(self) -> FileLayout:
        """Folders by partition, in the part that readers pass over."""
        return FileLayout(
            schema=self._schema,
            directory=f"{self._options.table.rstrip('/')}/{OWN}/staged",
            storage=self._options.storage,
            partitions=self._partitions,
            keeps_partition_columns=False,
            compression=self._options.compression,
            file_bytes=self._options.file_bytes,
        )

    def mark(self, query: str) -> int | None:
        """The newest record of a query; what it promised is made true first."""
        records = self._records(query)
        if not records:
            return None
        self._move_files(records[-1])
        return _batch_of(records[-1])

    def commit(self, change: TableChange) -> None:
        """Write the record, then move the files that it names."""
        if change.replaces_all or change.removed:
            raise InvalidRequest(
                "plain Parquet cannot replace existing rows: write to another directory, or use "
                "iceberg or delta"
            )
        staged = f"{self._root}/{OWN}/staged/"
        moves = []
        for number, file in enumerate(change.added):
            inner = self._options.storage.open(file.path)[1]
            folder = posixpath.dirname(inner.removeprefix(staged))
            name = f"part-{change.query}-{change.batch:06d}-{number:04d}.parquet"
            moves.append([inner.removeprefix(self._root + "/"), posixpath.join(folder, name)])
        record = f"{self._folder(change.query)}/{change.batch:020d}.json"
        if not create_once(self._files, record, json.dumps(moves).encode()):
            raise Conflict(
                f"batch {change.batch} of {change.query} was committed by another driver"
            )
        faults.hit("lakehouse.parquet.recorded")
        self._move_files(record)
        for old in self._records(change.query)[:-RECORDS_KEPT]:
            self._files.delete_file(old)

    def files(self) -> list[TableFile]:
        """The files that readers see."""
        found = self._files.get_file_info(fs.FileSelector(self._root, recursive=True))
        sizes = {
            one.path.removeprefix(self._root + "/"): one.size
            for one in found
            if one.path.endswith(".parquet")
        }
        return [TableFile(one, 0, sizes[one]) for one in sorted(sizes) if not one.startswith(OWN)]

    def rows_of(self, file: TableFile, columns: Sequence[str] | None = None) -> FileRows:
        """The rows of a file; folders give the partition's columns."""
        said = dict(part.split("=", 1) for part in file.path.split("/")[:-1])
        texts = {
            name: None if text == NULL_PARTITION else unquote(text) for name, text in said.items()
        }
        path = f"{self._options.table.rstrip('/')}/{file.path}"
        return FileRows(
            self._options.storage, path, file.handle, self.wanted(columns), partition=texts
        )

    def _folder(self, query: str) -> str:
        return f"{self._root}/{OWN}/commits/{query}"

    def _records(self, query: str) -> list[str]:
        selector = fs.FileSelector(self._folder(query), allow_not_found=True)
        try:
            found = self._files.get_file_info(selector)
        except FileNotFoundError:  # Arrow looks twice, and the folder may come in between
            return []
        return sorted(one.path for one in found if one.path.endswith(".json"))

    def _move_files(self, record: str) -> None:
        """Put files into their places; those that are there already stay."""
        with self._files.open_input_stream(record) as source:
            moves = json.loads(source.read())
        for staged, place in moves:
            start, end = f"{self._root}/{staged}", f"{self._root}/{place}"
            if self._files.get_file_info(start).type == fs.FileType.NotFound:
                continue
            make_folder(self._files, posixpath.dirname(end))
            self._files.move(start, end)


def _batch_of(record: str) -> int:
    return int(posixpath.basename(record).removesuffix(".json"))
