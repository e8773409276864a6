"""The latency of `make bench-spark`: from an append that is durable to the sink that has it.

Rules: small appends come all the time; a query reads them with our source, as fast as triggers
follow each other, into a sink that only looks at the clock. Source, broker and clock are on one
machine. The checkpoint lies on the disk of the repository.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.report import Row, row, say
from onelog.kafka_client import Access, Client
from onelog.record.batch import build_batch
from tests.conformance.kafka_brokers import KafkaOnelog

WARM_UP_BATCHES, WARM_UP_S, MEASURED_S = 20, 120.0, 20
APPENDS_PER_S, RECORDS = 50, 10
BAR_MS = 250.0
TOPIC = "latency"


@dataclass
class Seen(WriterCommitMessage):
    """How old records were when the sink had them, in milliseconds."""

    ages_ms: list[float]


class ClockWriter(DataSourceStreamArrowWriter):
    """Looks at the clock for every record, and writes down what it saw."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Seen:
        """How old each record is."""
        ages: list[float] = []
        for batch in iterator:
            now = time.time_ns()
            ages += [(now - int(value)) / 1e6 for value in batch.column("value").to_pylist()]
        return Seen(ages)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Keep them for the end."""
        with Path(self._path).open("a") as out:
            for message in messages:
                if isinstance(message, Seen):
                    out.writelines(f"{age}\n" for age in message.ages_ms)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was kept."""


class ClockSink(DataSource):
    """`format("clock")`."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "clock"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ClockWriter:
        """The sink."""
        return ClockWriter(self.options["path"])


def append(address: tuple[str, int], over: threading.Event) -> None:
    """Append small batches, evenly, until it is over."""
    with Client(Access(servers=(address,))) as client:
        due = time.monotonic()
        number = 0
        while not over.is_set():
            now = b"%d" % time.time_ns()
            batch = build_batch([(None, None, now, (), time.time_ns() // 1_000_000)] * RECORDS)
            client.produce({(TOPIC, number % 4): batch})
            number += 1
            due += 1 / APPENDS_PER_S
            over.wait(max(due - time.monotonic(), 0))


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Measure the way from append to sink."""
    place = folder / "latency"
    place.mkdir()
    broker = KafkaOnelog(place).start()
    address = ("127.0.0.1", broker.port)
    with Client(Access(servers=(address,))) as client:
        client.topics([TOPIC], create=True)
    spark.dataSource.register(ClockSink)
    over, seen = threading.Event(), folder / "ages"
    thread = threading.Thread(target=append, args=(address, over))
    thread.start()
    query = (
        spark.readStream.format("onelog")
        .options(servers=f"127.0.0.1:{broker.port}", subscribe=TOPIC, columns="value").load()
        .writeStream.format("clock").option("path", str(seen))
        .option("checkpointLocation", str(folder / "latency-checkpoint")).start()
    )  # fmt: skip
    try:
        ends = time.monotonic() + WARM_UP_S
        while len(query.recentProgress) < WARM_UP_BATCHES and time.monotonic() < ends:
            query.awaitTermination(1)
        skipped = seen.stat().st_size if seen.exists() else 0
        query.awaitTermination(MEASURED_S)
    finally:
        query.stop()
        over.set()
        thread.join()
        broker.stop()
    ages = sorted(float(line) for line in seen.read_text()[skipped:].splitlines())
    p50, p90, p99 = (ages[int(len(ages) * part)] for part in (0.5, 0.9, 0.99))
    measured = query.recentProgress[WARM_UP_BATCHES:]
    times = [progress["durationMs"]["triggerExecution"] for progress in measured]
    say(
        f"append to sink: p50 {p50:.0f} ms, p90 {p90:.0f} ms, p99 {p99:.0f} ms of {len(ages):,}"
        f" records; a trigger takes {statistics.median(times):.0f} ms"
    )
    return [
        row("micro-batch latency, append to sink, p50", p50, "ms", BAR_MS, low=True),
        row("micro-batch latency, append to sink, p99", p99, "ms"),
    ]
