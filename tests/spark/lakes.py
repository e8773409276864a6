"""Tables of every format, written as the sink writes them, with and without Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from onelog.lake.formats import open_table
from onelog.lake.options import TableOptions, parse_options
from onelog.lake.tables import LakeTable
from onelog.spark.lakehouse.sink import Staged, TableSink

FORMATS = ("iceberg", "delta", "parquet")
WITH_UPSERT = ("iceberg", "delta")


@dataclasses.dataclass(frozen=True)
class Lake:
    """A place for tables of one format."""

    format: str
    folder: Path

    def options(self, name: str = "t", **more: str) -> dict[str, str]:
        """The options of a table, as a user writes them."""
        given = {"tableFormat": self.format, "table": self.table(name), **more}
        if "deadLetterTable" in given:
            given["deadLetterTable"] = self.table(given["deadLetterTable"])
        if self.format == "iceberg":
            given |= {
                "catalog": f"sqlite:///{self.folder}/catalog.db",
                "warehouse": str(self.folder / "warehouse"),
            }
        return given

    def table(self, name: str) -> str:
        return f"db.{name}" if self.format == "iceberg" else str(self.folder / name)

    def parsed(self, name: str = "t", **more: str) -> TableOptions:
        return parse_options(self.options(name, **more))

    def open(self, name: str = "t") -> LakeTable:
        return open_table(self.parsed(name))

    def rows(self, name: str = "t") -> list[dict[str, Any]]:
        """Every row that a reader sees now."""
        table = self.open(name)
        return [row for file in table.files() for row in table.read(file).to_pylist()]

    def sink(self, schema: str, name: str = "t", overwrite: bool = False, **more: str) -> TableSink:
        return TableSink(self.parsed(name, **more), struct(schema), overwrite)


def struct(ddl: str) -> StructType:
    """`id BIGINT, name STRING` as a schema; Spark's own reading of it needs a session."""
    names = {"BIGINT": "long", "INT": "integer", "TIMESTAMP": "timestamp"}
    fields = [part.split() for part in ddl.split(",")]
    return StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {
                    "name": name,
                    "type": names.get(kind, kind.lower()),
                    "nullable": True,
                    "metadata": {},
                }
                for name, kind in fields
            ],
        }
    )


def batches(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows in two batches, as a task gets them."""
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        yield pa.RecordBatch.from_pylist([dict(row) for row in part], schema=schema)


def write(
    sink: TableSink, schema: pa.Schema, query: str, batch: int, *tasks: Sequence[Mapping[str, Any]]
) -> bool:
    """Write a batch as Spark does: every task, then the commit."""
    return sink.commit(stage(sink, schema, query, *tasks, batch=batch), query, batch)


def stage(
    sink: TableSink,
    schema: pa.Schema,
    query: str,
    *tasks: Sequence[Mapping[str, Any]],
    batch: int = 0,
) -> list[Staged]:
    return [sink.stage(batches(rows, schema), query, batch) for rows in tasks]
