"""Spark through PySpark: topics and tables as data sources, and the session that runs them.

Rules: this is a client. It speaks the wire to the broker and shares only `base`, `kernel` and
`record` with it; nothing of the broker imports it. The libraries come with `onelog[spark]` and are
imported where they are used, so that the rest of OneLog does without them.
"""

from __future__ import annotations

from onelog.spark.java import java_home
from onelog.spark.lakehouse import keep_table_up, read_table
from onelog.spark.sessions import Jars, iceberg_catalog, session
from onelog.spark.source.offsets import lag

__all__ = ["session", "Jars", "iceberg_catalog", "java_home", "lag", "read_table", "keep_table_up"]
