"""The topic sink of `make bench-spark`, beside Spark's own Kafka sink on the same broker.

Rules: the same rows, read from Parquet, go into a topic of the broker by each sink, in turns. Ours
writes them once whatever fails; Spark's writes twice what is retried. The reading alone (`noop`)
is shown beside. Spark's Kafka sink needs its jar (Maven).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.report import Row, median, row, say, seconds
from bench.spark_reads import drain, has_kafka_source
from tests.conformance.kafka_brokers import KafkaOnelog

ROUNDS = 5
SIZES = {"1 KB": (1024, 300_000), "100 B": (100, 1_000_000)}
"""Bytes of a value, and how many."""
KAFKA_BARS = {"100 B": 1.0}
"""The bar of our rows a second beside those of Spark's Kafka sink, by size."""
TASKS = 4

_numbers = itertools.count()


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Measure each size."""
    place = folder / "sink-broker"
    place.mkdir()
    broker = KafkaOnelog(place).start()
    try:
        address = f"127.0.0.1:{broker.port}"
        return [found for name in SIZES for found in writes(spark, folder, address, name)]
    finally:
        broker.stop()


def writes(spark: SparkSession, folder: Path, address: str, name: str) -> list[Row]:
    """One size of rows, by every way there is."""
    size, count = SIZES[name]
    place = str(folder / f"sink-rows-{size}")
    spark.range(0, count, 1, TASKS).selectExpr(
        "encode(concat('key-', id % 1000), 'utf-8') AS key",
        f"encode(rpad(concat(id, uuid()), {size}, uuid()), 'utf-8') AS value",
    ).write.parquet(place)

    def frame() -> DataFrame:
        return spark.read.parquet(place)

    cases: dict[str, Callable[[], None]] = {
        "noop": lambda: drain(frame()),
        "onelog": lambda: ours(frame(), address),
    }
    if has_kafka_source(spark):
        cases["Kafka sink"] = lambda: theirs(frame(), address)
    taken: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(ROUNDS + 1):
        for case, work in cases.items():
            took = seconds(work)
            if number:  # the first round warms the JVM up
                taken[case].append(took)
    rates = {case: count / median(times) for case, times in taken.items()}
    for case, rate in rates.items():
        spread = ", ".join(f"{took:.2f}" for took in taken[case])
        say(f"{name} {case}: {rate:,.0f} rows/s, {rate * size / 1e6:,.0f} MB/s ({spread})")
    rows = [row(f"write {name} rows into a topic, exactly once", rates["onelog"], "rows/s")]
    if "Kafka sink" in rates:
        rows.append(
            row(
                f"write {name} rows beside Spark's Kafka sink",
                rates["onelog"] / rates["Kafka sink"],
                "ratio",
                KAFKA_BARS.get(name),
                peer=("Spark's Kafka sink, rows/s", rates["Kafka sink"]),
            )
        )
    return rows


def ours(frame: DataFrame, address: str) -> None:
    """Our sink, into a topic of its own."""
    writer = frame.write.format("onelog").mode("append")
    writer.options(servers=address, topic=f"ours-{next(_numbers)}").save()


def theirs(frame: DataFrame, address: str) -> None:
    """Spark's Kafka sink, into a topic of our broker."""
    options = {"kafka.bootstrap.servers": address, "topic": f"theirs-{next(_numbers)}"}
    frame.write.format("kafka").options(**options).save()
