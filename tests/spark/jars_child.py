"""A driver with Iceberg's and Delta's own jars: it reads and writes tables that the sink made.

Usage: python -m tests.spark.jars_child FOLDER    (with PySpark 4.1 on the path)
Prints one line of JSON: what each reader saw, at each step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onelog.spark
from tests.spark.lakes import Lake


def main(folder: Path) -> None:
    iceberg, delta = Lake("iceberg", folder / "iceberg"), Lake("delta", folder / "delta")
    for lake in (iceberg, delta):
        lake.folder.mkdir(parents=True)
    catalog = iceberg.options()
    spark = onelog.spark.session(
        "local[2]",
        jars=[onelog.spark.Jars.ICEBERG, "delta"],
        config={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            **onelog.spark.iceberg_catalog(catalog["catalog"], catalog["warehouse"]),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    names = {"iceberg": "onelog.db.t", "delta": f"delta.`{delta.table('t')}`"}
    seen: dict[str, dict[str, object]] = {}
    for lake in (iceberg, delta):
        name = names[lake.format]
        step = seen[lake.format] = {}

        def ours(first: int, extra: bool = False, lake: Lake = lake) -> None:
            rows = spark.range(first, first + 3).selectExpr(
                "id", "concat('v', id) AS value", *(["id * 2 AS more"] if extra else [])
            )
            rows.write.format("onelog-table").options(**lake.options()).mode("append").save()

        def by_sql(what: str, name: str = name) -> list[list[object]]:
            spark.catalog.clearCache()
            return sorted([*row] for row in spark.sql(f"SELECT {what} FROM {name}").collect())

        ours(0)
        step["sql reads what the sink wrote"] = by_sql("id, value")
        spark.sql(f"INSERT INTO {name} VALUES (10, 'v10')")
        spark.sql(f"REFRESH TABLE {name}") if lake.format == "iceberg" else None
        step["the sink reads what sql wrote"] = sorted(
            [row["id"], row["value"]] for row in lake.rows()
        )
        ours(20, extra=True)
        spark.sql(f"REFRESH TABLE {name}") if lake.format == "iceberg" else None
        step["sql reads what the sink added a column to"] = by_sql("id, more")
        read = onelog.spark.read_table(spark, **lake.options())
        step["without the jar"] = sorted([row["id"], row["value"]] for row in read.collect())
    spark.stop()
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
