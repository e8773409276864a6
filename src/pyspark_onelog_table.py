"""Spark finds `format("onelog-table")` by the name of this module."""

from onelog.spark.lakehouse.source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
