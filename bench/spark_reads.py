"""The reads of `make bench-spark`: our source beside Spark's own Parquet and its own Kafka source.

Rules: the same records lie in the broker's log and in Parquet that Spark wrote; every case reads
the value of each and throws it away (`noop`), and is counted once beforehand. Rounds are measured
in turns. Spark's Kafka source reads from the same broker; it needs its jar (Maven).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.report import Row, median, row, say, seconds
from onelog.kafka_client import Access, Client
from onelog.record.batch import build_batch
from tests.conformance.kafka_brokers import KafkaOnelog

ROUNDS = 5
PARTITIONS = 4
SIZES = {"1 KB": (1024, 600_000, 0.8), "100 B": (100, 3_000_000, 0.6)}
"""Bytes of a value, how many, and the bar against Parquet."""
KAFKA_BAR = 1.5
BATCH_BYTES = 64 << 10


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Measure each size."""
    place = folder / "broker"
    place.mkdir()
    broker = KafkaOnelog(place).start()
    try:
        address = f"127.0.0.1:{broker.port}"
        return [found for name in SIZES for found in reads(spark, folder, address, name)]
    finally:
        broker.stop()


def reads(spark: SparkSession, folder: Path, address: str, name: str) -> list[Row]:
    """One size of records, by every way there is."""
    size, count, bar = SIZES[name]
    topic = f"records-{size}"
    fill(address, topic, size, count)
    parquet = str(folder / topic)
    ours(spark, address, topic).write.parquet(parquet)
    cases: dict[str, Callable[[], DataFrame]] = {
        "Parquet": lambda: spark.read.parquet(parquet),
        "onelog": lambda: ours(spark, address, topic),
        "onelog, all columns": lambda: ours(spark, address, topic, None),
    }
    if has_kafka_source(spark):
        cases["Kafka source"] = lambda: theirs(spark, address, topic)
    for case, frame in cases.items():
        found = frame().count()
        if found != count:
            raise AssertionError(f"{case} of {name}: {found} rows of {count}")
    taken: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(ROUNDS + 2):
        for case, frame in cases.items():
            took = seconds(lambda: drain(frame()))  # noqa: B023 - it is called at once
            if number > 1:  # the first rounds warm the JVM up
                taken[case].append(took)
    for case, times in taken.items():
        rate = count / median(times)
        spread = ", ".join(f"{took:.2f}" for took in times)
        say(f"{name} {case}: {rate:,.0f} rows/s, {rate * size / 1e6:,.0f} MB/s ({spread})")
    return ratios(name, {case: median(times) for case, times in taken.items()}, count, bar)


def ratios(name: str, medians: dict[str, float], count: int, bar: float) -> list[Row]:
    """The bars of one size."""
    mine = medians["onelog"]
    rows = [
        row(
            f"read {name} records, value only",
            medians["Parquet"] / mine,
            "ratio",
            bar,
            peer=("Spark's Parquet, rows/s", count / medians["Parquet"]),
        ),
        row(f"read {name} records, all columns", count / medians["onelog, all columns"], "rows/s"),
    ]
    if "Kafka source" in medians:
        rows.append(
            row(
                f"read {name} records beside Spark's Kafka source",
                medians["Kafka source"] / mine,
                "ratio",
                KAFKA_BAR if name == "1 KB" else None,
                peer=("Spark's Kafka source, rows/s", count / medians["Kafka source"]),
            )
        )
    else:
        say("Spark's Kafka source is missing: it needs Maven")
    return rows


def fill(address: str, topic: str, size: int, count: int) -> None:
    """Write records of a size, spread over the partitions."""
    host, port = address.split(":")
    chosen = random.Random(size)
    text = readings(chosen, 1 << 20)
    each = max(BATCH_BYTES // (size + 30), 1)
    with Client(Access(servers=((host, int(port)),))) as client:
        client.topics([topic], create=True)
        sent = number = 0
        while sent < count:
            batches: dict[tuple[str, int], bytes] = {}
            for partition in range(PARTITIONS):
                few = min(each, count - sent)
                if few <= 0:
                    break
                places = [chosen.randrange(len(text) - size) for _ in range(few)]
                rows = [
                    (None, b"key-%d" % (at % 1000), text[at : at + size], (), NOW_MS + number)
                    for at in places
                ]
                batches[topic, partition] = build_batch(rows)
                sent += few
                number += 1
            for found in client.produce(batches).values():
                assert found.code == 0, found


def readings(chosen: random.Random, size: int) -> bytes:
    """JSON of devices, as much of it; a value is a piece of it."""
    text = b""
    while len(text) < size:
        text += (
            b'{"device":"d%04d","temperature":%.2f,"humidity":%.3f,"at":%d,"status":"%s"},'
            % (
                chosen.randrange(5000), chosen.uniform(-20, 45), chosen.random(),
                NOW_MS + chosen.randrange(10**9), chosen.choice((b"ok", b"low battery", b"lost")),
            )
        )  # fmt: skip
    return text[:size]


NOW_MS = 1_800_000_000_000


def ours(spark: SparkSession, address: str, topic: str, columns: str | None = "value") -> DataFrame:
    """Our source."""
    reader = spark.read.format("onelog").options(servers=address, subscribe=topic)
    return (reader.option("columns", columns) if columns else reader).load()


def theirs(spark: SparkSession, address: str, topic: str) -> DataFrame:
    """Spark's Kafka source, on our broker."""
    options = {"kafka.bootstrap.servers": address, "subscribe": topic}
    return spark.read.format("kafka").options(**options).load().select("value")


def has_kafka_source(spark: SparkSession) -> bool:
    """Whether this session has the jar."""
    return "spark-sql-kafka" in (spark.conf.get("spark.jars", "") or "")


def drain(frame: DataFrame) -> None:
    """Read everything, keep nothing."""
    frame.write.format("noop").mode("overwrite").save()
