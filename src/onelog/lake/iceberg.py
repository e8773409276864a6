"""Iceberg tables by pyiceberg: SQL and REST catalogs, no jar.

Rules: files carry the table's field ids, so a column that is renamed or dropped later means the
same in every old file. The marks of queries are table properties, written in the commit that they
belong to: they outlive the expiry of snapshots. The library's own retries are off, since they would
add a batch again that another driver added meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record

from onelog.base.errors import Conflict, InvalidRequest, Unavailable
from onelog.lake.columns import (
    field_id,
    small,
    small_schema,
    widens,
)
from onelog.lake.file_rows import FileRows
from onelog.lake.iceberg_bounds import bound_of
from onelog.lake.options import TableOptions
from onelog.lake.partitions import PartitionField
from onelog.lake.projection import projected
from onelog.lake.storage import Storage
from onelog.lake.tables import (
    JOB,
    LakeTable,
    LogPart,
    TableChange,
    TableFile,
    check_columns,
    check_partitions,
    stored_columns,
)
from onelog.lake.writing import FileLayout, FileWriter, WrittenFile

MARK = "onelog.mark."
END = "onelog.tier."
"""Before the stream and the partition of a log whose history the table is."""
MARKS_MAX = 10_000
"""Queries that may have written to one table; the mark of each stays as long as the table."""
JOB_MARKS_MAX = 64
"""Single writes whose marks a table keeps: nobody writes those batches again once they are over."""
SQLITE = "sqlite:///"
_NO_ANSWER = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    CommitStateUnknownException,
)
NO_RETRIES = {"commit.retry.num-retries": "0"}


def catalog_of(options: TableOptions) -> Catalog:
    """The catalog; its tables are kept under its name, so the name is part of the address."""
    address = dict(options.catalog).get("uri", "")
    if address.startswith(SQLITE):
        folder = Path(address.removeprefix(SQLITE)).parent
        if not folder.is_dir():
            raise InvalidRequest(
                f"the folder {str(folder)!r} of the catalog {address} does not exist: make it, or"
                " check catalog"
            )
    return load_catalog(
        options.catalog_name, **options.storage.for_iceberg(), **dict(options.catalog)
    )


def open_iceberg(options: TableOptions, rows: pa.Schema | None) -> IcebergTable:
    """The table as it is; with rows to come it is made or widened for them first."""
    with _reached(options):
        return _open(options, rows)


@contextlib.contextmanager
def _reached(options: TableOptions) -> Iterator[None]:
    """Say in one line that a catalog is away; what it did of a commit its mark will tell."""
    try:
        yield
    except _NO_ANSWER as error:
        address = dict(options.catalog)["uri"]
        raise Unavailable(
            f"the catalog {address} did not answer for {options.table}: check catalog, and that it"
            " runs"
        ) from error


def _open(options: TableOptions, rows: pa.Schema | None) -> IcebergTable:
    catalog = catalog_of(options)
    name = _identifier(options.table)
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        if rows is None:
            raise InvalidRequest(
                f"the catalog has no table {options.table}: check table, catalogName and warehouse"
            ) from None
        table = _create(catalog, name, options, stored_columns(options, rows))
    if rows is not None:
        if options.evolve:
            _evolve(table, stored_columns(options, rows))
        check_columns(options, small_schema(schema_to_pyarrow(table.schema())), rows)
        check_partitions(options, _partitions(table))
    return IcebergTable(table, options)


def _identifier(text: str) -> tuple[str, ...]:
    parts = tuple(text.split("."))
    if len(parts) < 2 or not all(parts):
        raise InvalidRequest(f"table is {text!r}, but Iceberg wants namespace.name")
    return parts


def _create(
    catalog: Catalog, name: tuple[str, ...], options: TableOptions, schema: pa.Schema
) -> Table:
    for depth in range(1, len(name)):
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(name[:depth])
    try:
        # Ids of the rows' own columns are for matching; a new table numbers its columns itself.
        bare = pa.schema([one.remove_metadata() for one in schema])
        properties = dict(options.properties)
        with (
            catalog.create_table_transaction(name, bare, properties=properties) as made,
            made.update_spec() as spec,
        ):
            for part in options.partitions:
                spec.add_field(part.source, parse_transform(part.transform), part.name)
    except (TableAlreadyExistsError, CommitFailedException):
        pass  # another writer was first
    return catalog.load_table(name)


def _evolve(table: Table, rows: pa.Schema) -> None:
    """Add columns, widen types, and rename where the rows carry the field's id."""
    have = small_schema(schema_to_pyarrow(table.schema()))
    by_id = {field_id(one): one.name for one in have}
    renamed = {
        by_id[number]: one.name
        for one in rows
        if (number := field_id(one)) in by_id and by_id[number] != one.name
    }
    wanted = [one for one in rows if one.name not in renamed.values() and _grows(have, one)]
    if not renamed and not wanted:
        return
    try:
        with table.update_schema() as update:
            for old, new in renamed.items():
                update.rename_column(old, new)
            if wanted:
                _grow(update, wanted)
    except CommitFailedException:
        table.refresh()  # another writer changed it: what is still missing is said by the check


def _grows(have: pa.Schema, field: pa.Field) -> bool:
    at = have.get_field_index(field.name)
    if at < 0:
        return True
    old, new = have.field(at).type, small(field.type)
    return widens(old, new) or (pa.types.is_nested(new) and not old.equals(new))


def _grow(update: UpdateSchema, fields: Sequence[pa.Field]) -> None:
    # What is new cannot be required: the rows that are there do not have it.
    bare = pa.schema([one.remove_metadata().with_nullable(True) for one in fields])
    try:
        update.union_by_name(bare)
    except (ValueError, TypeError, ValidationException) as error:
        raise InvalidRequest(
            f"the table cannot take {', '.join(bare.names)} of the rows: {error}"
        ) from error


def _partitions(table: Table) -> tuple[PartitionField, ...]:
    schema = table.schema()
    return tuple(
        PartitionField(schema.find_column_name(one.source_id) or "", str(one.transform))
        for one in table.spec().fields
        if str(one.transform) != "void"
    )


class IcebergTable(LakeTable):
    """An Iceberg table at one moment."""

    def __init__(self, table: Table, options: TableOptions) -> None:
        self._table = table
        self._options = options
        # Of this copy only: a retry would not look at the mark again.
        table.metadata.properties.update(NO_RETRIES)

    @property
    def inner(self) -> Table:
        """The table as pyiceberg has it."""
        return self._table

    @property
    def storage(self) -> Storage:
        """How its files are reached; the catalog may have lent keys for them."""
        return self._options.storage.joined(self._table.io.properties)

    def expire(self, before: datetime) -> None:
        """Forget snapshots that are older; the current one stays."""
        try:
            self._table.maintenance.expire_snapshots().older_than(before).commit()
        except CommitFailedException as error:
            raise Conflict(f"the table {self._options.table} was changed: {error}") from error

    @property
    def layout(self) -> FileLayout:
        """Files with field ids, under the table's own data directory."""
        return FileLayout(
            schema=small_schema(schema_to_pyarrow(self._table.schema())),
            directory=f"{self._table.location().rstrip('/')}/data",
            storage=self.storage,
            partitions=_partitions(self._table),
            version=(self._table.schema().schema_id, self._table.spec().spec_id),
            compression=self._options.compression,
            file_bytes=self._options.file_bytes,
        )

    def mark(self, query: str) -> int | None:
        """The batch that the table's property names."""
        found = self._table.properties.get(MARK + query)
        return None if found is None else int(found.partition("@")[0])

    def end_of(self, part: LogPart) -> int | None:
        """The offset that the table's property names."""
        found = self._table.properties.get(_end_name(part))
        return None if found is None else int(found)

    def commit(self, change: TableChange) -> None:
        """One snapshot and the marks, in one step."""
        removed = self.files() if change.replaces_all else change.removed
        added = self._under_this_spec(change.added)
        try:
            with _reached(self._options), self._table.transaction() as transaction:
                transaction.set_properties(self._marks(change))
                stale = self._stale_marks(change.query)
                if stale:
                    transaction.remove_properties(*stale)
                update = transaction.update_snapshot(
                    {"onelog.query": change.query, "onelog.batch": str(change.batch)}
                )
                with update.overwrite() if removed else update.fast_append() as snapshot:
                    for old in removed:
                        snapshot.delete_data_file(old.handle.file)
                    for file in added:
                        snapshot.append_data_file(self._data_file(file))
        except (CommitFailedException, ValidationException) as error:
            raise Conflict(
                f"the table {self._options.table} was changed by another writer: {error}"
            ) from error

    def files(self) -> list[TableFile]:
        """The data files of the current snapshot."""
        return [
            TableFile(task.file.file_path, task.file.record_count, task)
            for task in self._table.scan().plan_files()
        ]

    def bounds(self, file: TableFile, field: pa.Field) -> tuple[pa.Scalar, pa.Scalar] | None:
        """From the manifest, where texts and bytes are cut on the safe side."""
        column = self._table.schema().find_field(field.name)
        entry: DataFile = file.handle.file
        found = [
            bound_of(column, field.type, (told or {}).get(column.field_id))
            for told in (entry.lower_bounds, entry.upper_bounds)
        ]
        return None if found[0] is None or found[1] is None else (found[0], found[1])

    def has_deletes(self, file: TableFile) -> bool:
        """Whether delete files of a snapshot speak of it."""
        return bool(file.handle.delete_files)

    def rows_of(self, file: TableFile, columns: Sequence[str] | None = None) -> FileRows:
        """The rows of a file, by field id."""
        if file.handle.delete_files:
            raise InvalidRequest(
                f"{file.path} of the table {self._options.table} has delete files of another "
                "engine, which cannot be read here: let that engine rewrite the table first"
            )
        size = file.handle.file.file_size_in_bytes
        return FileRows(self.storage, file.path, size, self.wanted(columns), by_id=True)

    def _marks(self, change: TableChange) -> dict[str, str]:
        marks = {_end_name(part): str(end) for part, end in change.ends.items()}
        if change.query:
            marks[MARK + change.query] = f"{change.batch}@{int(time.time() * 1000)}"
        return marks

    def _stale_marks(self, query: str) -> list[str]:
        """The marks that go with a commit: of the oldest single writes. Raises InvalidRequest."""
        marks = {k: v for k, v in self._table.properties.items() if k.startswith(MARK)}
        jobs = [name for name in marks if name.startswith(MARK + JOB) and name != MARK + query]
        is_new = bool(query) and MARK + query not in marks and not query.startswith(JOB)
        if is_new and len(marks) - len(jobs) >= MARKS_MAX:
            # A mark that went would let a query that comes back write its last batch again.
            raise InvalidRequest(
                f"the table {self._options.table} has marks of {MARKS_MAX} queries and takes no"
                f" other one: remove the properties {MARK}<query> of queries that never come back"
            )
        jobs.sort(key=lambda name: int(marks[name].partition("@")[2] or 0))
        return jobs[: max(0, len(jobs) - JOB_MARKS_MAX + 1)]

    def _under_this_spec(self, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Files that are divided as the table once was are divided anew: a commit has one way."""
        fresh = [one for one in files if one.version[1] == self._table.spec().spec_id]
        if len(fresh) == len(files):
            return fresh
        layout = self.layout
        writer = FileWriter(layout)
        for file in files:
            if file not in fresh:
                opened, inner = layout.storage.open(file.path)
                with opened.open_input_file(inner) as source:
                    writer.write(projected(pq.read_table(source), layout.schema))
        return fresh + writer.close()

    def _data_file(self, file: WrittenFile) -> DataFile:
        metadata = self._table.metadata
        # The table may have been changed since the query began; the file was not.
        schema = self._table.schemas()[file.version[0]]
        spec = self._table.specs()[file.version[1]]
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=file.footer,
            stats_columns=compute_statistics_plan(schema, metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=_partition(spec, schema, file.partition),
            file_size_in_bytes=file.bytes,
            sort_order_id=None,
            spec_id=spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _end_name(part: LogPart) -> str:
    return f"{END}{part.stream_id}.{part.partition}"


def _partition(spec: PartitionSpec, schema: Schema, values: tuple[Any, ...]) -> Record:
    """The partition values of a file, in the words of its specification."""
    if not spec.fields:
        return Record()
    given = iter(values)
    pairs = [
        PartitionFieldValue(one, None if str(one.transform) == "void" else next(given))
        for one in spec.fields
    ]
    return PartitionKey(pairs, spec, schema).partition
