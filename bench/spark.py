"""`make bench-spark`: sources and sinks of OneLog beside Spark's own, in one session.

Rules: bars are ratios of medians of rounds that were measured in turns, after each case ran once to
warm the JVM up. Each part is a module of its own with `run(session, folder) -> rows`; arguments
choose parts by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import onelog.spark
from bench import spark_latency, spark_reads, spark_sink, spark_tables
from bench.report import Row, data_dir, report
from bench.spark_jars import spark_kafka_jars

Part = Callable[[SparkSession, Path], list[Row]]
PARTS: dict[str, Part] = {
    "reads": spark_reads.run,
    "latency": spark_latency.run,
    "sink": spark_sink.run,
    "tables": spark_tables.run,
}


def session(folder: Path) -> SparkSession:
    """The session of all parts: two cores, and no display beside the measurement."""
    made = onelog.spark.session(
        "local[2]",
        name="bench",
        config={
            "spark.driver.memory": "4g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.jars": ",".join(map(str, spark_kafka_jars(pyspark.__version__))),
        },
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def main(arguments: list[str]) -> int:
    """Measure the parts that were asked for, or all."""
    asked = [name for name in PARTS if name in arguments]
    rows: list[Row] = []
    with data_dir("spark") as folder:
        spark = session(folder)
        try:
            for name in asked or PARTS:
                rows += PARTS[name](spark, folder)
        finally:
            spark.stop()
    report("spark", rows, *asked)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
