"""The columns that a reader makes for Spark. The object travels to the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onelog.kernel import WITH_TOPICS
from onelog.spark.source.cold_planning import ColdPlanner
from onelog.spark.source.columns import VALUE, check_schema, wanted_of
from onelog.spark.source.options import SourceOptions
from onelog.spark.source.planning import Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Shape:
    """The columns of a query, checked."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options
        self._schema = schema

    def cold_planner(self) -> ColdPlanner:
        """Finds what lies in an object store."""
        return ColdPlanner(self._options.cold, with_headers="headers" in self._schema.names)

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """The records of a task, in these columns."""
        # Arrow and the kernel are loaded where they are needed: not where a query is planned.
        from onelog.spark.lakehouse.spark_columns import arrow_schema  # noqa: PLC0415
        from onelog.spark.source.decoding import decoder_of  # noqa: PLC0415
        from onelog.spark.source.reading import read_task  # noqa: PLC0415

        schema = arrow_schema(self._schema)
        want = wanted_of(self._schema, self._options.decode)
        if all(row.shown is not None for row in task.slices):
            want &= ~WITH_TOPICS
        convert = None
        if VALUE in schema.names:
            convert = decoder_of(self._options.decode, schema.field(VALUE).type)
        return read_task(task, self._options, schema, want, convert)
