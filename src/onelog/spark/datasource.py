"""`format("onelog")`: the object that Spark asks for readers and writers.

Rules: nothing connects here. Spark makes this object in several processes and throws it away. The
readers and writers check their options at once and connect when they have to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from onelog.spark.source.columns import source_ddl
from onelog.spark.source.options import source_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class OnelogSource(DataSource):
    """Topics of a OneLog broker."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "onelog"

    def schema(self) -> str:
        """The columns, unless the user gives a schema."""
        # Whether it is a stream is not known here; the columns are the same.
        return source_ddl(source_options(self.options, streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch."""
        from onelog.spark.source.batch import batch_reader  # noqa: PLC0415 - planning needs it

        return batch_reader(schema, source_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream."""
        from onelog.spark.source.stream import StreamReader  # noqa: PLC0415 - planning needs it

        return StreamReader(schema, source_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The rows of a job, into topics."""
        from onelog.spark.sink import batch_writer, sink_options  # noqa: PLC0415 - not to read

        return batch_writer(sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The rows of a query, into topics."""
        from onelog.spark.sink import sink_options, stream_writer  # noqa: PLC0415 - not to read

        return stream_writer(sink_options(self.options), schema, overwrite=overwrite)
