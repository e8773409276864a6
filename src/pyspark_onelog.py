"""Spark finds `format("onelog")` by the name of this module."""

from onelog.spark.datasource import OnelogSource as DefaultSource

__all__ = ["DefaultSource"]
