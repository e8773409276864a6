"""Spark on records that lie in the object store: read there, against through the broker.

Rules: the broker and SeaweedFS are processes of their own; the whole range lies in the store and no
longer on the broker's disk. Both ways read the same offsets, in turns, and throw the values away
(`noop`). The broker starts anew before it is read through: its cache of cold runs is empty then.
The broker's CPU is that of its process while tasks read the store.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import onelog.spark
from bench import spark_reads
from bench.object_broker import cold_broker, cold_topic, cpu_s, wait_until_cold
from bench.object_store import bench_server
from bench.report import Row, data_dir, median, row, say, seconds
from tests.conformance.kafka_brokers import KafkaOnelog
from tests.support.s3_server import S3Server

ROUNDS = 3
SIZE, COUNT = 1024, 240_000
SEGMENT_BYTES = 16 << 20
BARS = {"log": 1.0, "iceberg": 1.3}
"""How much faster than through the broker, by the format of the tier."""
CPU_BAR = 0.05
KEYS = ("s3.access-key-id", "s3.secret-access-key")


def measure(formats: tuple[str, ...] = tuple(BARS)) -> list[Row]:
    """The rows of the table; `formats` are those of tiers."""
    rows: list[Row] = []
    with data_dir("object-spark") as folder, bench_server(folder / "s3") as server:
        spark = _session(folder)
        try:
            for form in formats:
                rows += _measured(spark, server, folder / form, form)
        finally:
            spark.stop()
    return rows


def _session(folder: Path) -> SparkSession:
    """Two cores, and no display beside the measurement."""
    made = onelog.spark.session(
        "local[2]",
        name="bench",
        config={
            "spark.driver.memory": "4g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def _measured(spark: SparkSession, server: S3Server, folder: Path, form: str) -> list[Row]:
    broker = cold_broker(folder, server)
    broker.start()
    try:
        topic, parts = f"records-{form}", spark_reads.PARTITIONS
        cold_topic(broker, topic, form, partitions=parts, segment_bytes=SEGMENT_BYTES)
        spark_reads.fill(f"127.0.0.1:{broker.port}", topic, SIZE, COUNT)
        ends = wait_until_cold(broker, topic, parts)
        return _compared(spark, server, broker, topic, form, ends)
    finally:
        broker.stop()


def _compared(
    spark: SparkSession,
    server: S3Server,
    broker: KafkaOnelog,
    topic: str,
    form: str,
    ends: dict[int, int],
) -> list[Row]:
    keys = {name: server.options[name] for name in KEYS}
    until = json.dumps({topic: {str(number): end for number, end in ends.items()}})

    def read(how: str) -> DataFrame:
        reader = spark.read.format("onelog").options(
            servers=f"127.0.0.1:{broker.port}",
            subscribe=topic,
            columns="value",
            endingOffsets=until,
            coldReads=how,
            **keys,
        )
        return reader.load()

    count = sum(ends.values())
    for how in ("store", "broker"):
        assert read(how).count() == count, how
    taken: dict[str, list[float]] = {"store": [], "broker": []}
    shares: list[float] = []
    for number in range(ROUNDS + 1):
        for how, times in taken.items():
            if how == "broker":
                broker.stop()
                broker.start()
            assert broker.process is not None
            pid = broker.process.pid
            used = cpu_s(pid)
            took = seconds(lambda: spark_reads.drain(read(how)))  # noqa: B023 - called at once
            if number:  # the first round warms up
                times.append(took)
                shares += [(cpu_s(pid) - used) / took] if how == "store" else []
    for how, times in taken.items():
        rate = count * SIZE / median(times) / 1e6
        say(f"{form}, {how}: {rate:,.0f} MB/s ({', '.join(f'{one:.2f}' for one in times)})")
    store, through = median(taken["store"]), median(taken["broker"])
    return [
        row(
            f"Spark on cold rows ({form}), against through the broker",
            through / store,
            "ratio",
            BARS[form],
            peer=("through the broker, rows/s", count / through),
        ),
        row(f"the broker's CPU meanwhile ({form})", median(shares), "cores", CPU_BAR, low=True),
    ]
