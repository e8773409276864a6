"""A driver with Iceberg's and Delta's own jars: it reads tables that a broker's tier wrote.

Usage: python -m tests.spark.engines_child TABLES    (with PySpark 4.1 on the path)
TABLES is JSON: how each table is found, by a name of ours. Prints one line of JSON: the rows of
each, with bytes as hexadecimal digits.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import onelog.spark

QUERY = (
    "SELECT partition, offset, unix_millis(timestamp), hex(key), hex(value),"
    " transform(headers, h -> struct(h.key, hex(h.value))) FROM {}"
)


def catalogs(tables: dict[str, dict[str, str]]) -> dict[str, str]:
    """The settings by which SQL sees all Iceberg tables; each has a catalog of its own."""
    wanted: dict[str, str] = {}
    for table in tables.values():
        if "catalog" in table:
            words = (table["catalog"], table.get("warehouse"), table["name"])
            wanted |= onelog.spark.iceberg_catalog(*words)
    return wanted


def rows(spark: SparkSession, table: dict[str, str]) -> list[list[Any]]:
    """What the engine of the table's format reads."""
    where = table["table"]
    where = f"{table['name']}.{where}" if "catalog" in table else f"delta.`{where}`"
    found = [
        [*row[:5], [[header[0], header[1]] for header in row[5] or ()]]
        for row in spark.sql(QUERY.format(where)).collect()
    ]
    return sorted(found, key=lambda row: row[:2])


def main(tables: dict[str, dict[str, str]]) -> None:
    spark = onelog.spark.session(
        "local[2]",
        jars=[onelog.spark.Jars.ICEBERG, "delta"],
        config={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            **catalogs(tables),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    seen = {name: rows(spark, table) for name, table in tables.items()}
    sys.stdout.write(json.dumps(seen) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
