"""`format("onelog-table")` as Spark sees it: the sinks, and a reader for object stores.

Rules: a query reads the whole table as it is when the query is planned. A task gets a list of files
and needs no catalog; one task reads several small files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from onelog.lake.file_rows import FileRows
from onelog.lake.formats import open_table
from onelog.lake.options import TableOptions, parse_options
from onelog.spark.lakehouse.home import at_home
from onelog.spark.lakehouse.reading import spark_schema
from onelog.spark.lakehouse.sink import TableBatchWriter, TableStreamWriter
from onelog.spark.lakehouse.spark_columns import arrow_schema
from onelog.spark.worker import settle_worker

TASK_BYTES = 64 << 20
"""A task is given files up to this; a Python task for each small file would cost more than it."""
BATCH_ROWS = 1 << 16


@dataclass
class TableTask(InputPartition):
    """The files of one task."""

    files: tuple[FileRows, ...]

    def __init__(self, files: Sequence[FileRows]) -> None:
        self.files = tuple(files)


class TableReader(DataSourceReader):
    """Reads files of tables by Arrow, which knows object stores without a jar."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The files of the table, in tasks."""
        with self._options.storage.explained(self._options.place):
            table = open_table(self._options)
            files = [table.rows_of(file, self._schema.names) for file in table.files()]
        return list(_tasks(files)) or [TableTask(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's files."""
        assert isinstance(partition, TableTask)
        with self._options.storage.explained(self._options.place):
            for file in partition.files:
                for rows in file.parts():
                    yield from rows.cast(self._schema).to_batches(max_chunksize=BATCH_ROWS)
        settle_worker()


def _tasks(files: Sequence[FileRows]) -> Iterator[TableTask]:
    """Files in the order of the table, as many in a task as are small enough together."""
    waiting: list[FileRows] = []
    for file in files:
        if waiting and sum(one.bytes for one in waiting) + file.bytes > TASK_BYTES:
            yield TableTask(waiting)
            waiting = []
        waiting.append(file)
    if waiting:
        yield TableTask(waiting)


class TableSource(DataSource):
    """Tables to write to and to read; `onelog.spark.read_table` is faster on local disks."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "onelog-table"

    def schema(self) -> StructType:
        """The columns of the table as it is now."""
        return spark_schema(open_table(parse_options(at_home(self.options))).layout.schema)

    def reader(self, schema: StructType) -> TableReader:
        """The reader of `spark.read`."""
        return TableReader(parse_options(at_home(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableBatchWriter:
        """The sink of `df.write`."""
        return TableBatchWriter(parse_options(at_home(self.options)), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:
        """The sink of `df.writeStream`."""
        return TableStreamWriter(parse_options(at_home(self.options)), schema, overwrite)
