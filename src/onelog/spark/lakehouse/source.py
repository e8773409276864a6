"""`format("onelog-table")` as Spark sees it."""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from onelog.base.errors import InvalidRequest
from onelog.spark.lakehouse.options import parse_options
from onelog.spark.lakehouse.sink import TableBatchWriter, TableStreamWriter


class TableSource(DataSource):
    """Tables to write to; `onelog.spark.read_table` reads them."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "onelog-table"

    def schema(self) -> NoReturn:
        """Reading goes through Spark's own Parquet reader, which is faster than any Python."""
        raise InvalidRequest("onelog-table is written to: read it by onelog.spark.read_table(…)")

    def writer(self, schema: StructType, overwrite: bool) -> TableBatchWriter:
        """The sink of `df.write`."""
        return TableBatchWriter(parse_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:
        """The sink of `df.writeStream`."""
        return TableStreamWriter(parse_options(self.options), schema, overwrite)
