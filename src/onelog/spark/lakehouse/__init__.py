"""Lakehouse tables without jars: Iceberg, Delta and plain Parquet, written exactly once.

Rules: the libraries are an extra, so each function here imports them when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from onelog.lake.upkeep import Upkeep


def read_table(spark: SparkSession, **options: str) -> DataFrame:
    """A table as it is now, read by Spark's own Parquet reader."""
    from onelog.spark.lakehouse import reading  # noqa: PLC0415 - an extra

    return reading.read_table(spark, **options)


def keep_table_up(**options: str) -> Upkeep:
    """Merge small files, expire old snapshots, remove files that no snapshot names."""
    from onelog.lake.options import parse_options  # noqa: PLC0415 - an extra
    from onelog.lake.upkeep import keep_up  # noqa: PLC0415

    return keep_up(parse_options(options))
