"""A Kafka consumer that catches up: on a topic of segments, in a tier, and in a table.

Rules: the consumer is librdkafka (`kafka_rdload.c`), which reads one partition from its beginning,
once, and checks every offset. All topics hold the same records. Before a topic is read cold, the
broker starts anew: its cache is empty then. *Warm* is the same topic again. Raw gets are of the
same objects by one thread, in ranges as long as a courier's. Rounds take turns; medians count.
"""

from __future__ import annotations

import json
import subprocess

from bench import kafka_load
from bench.kafka import EAGER
from bench.object_broker import access_of, cold_broker, cold_topic, fill, wait_until_cold
from bench.object_reads import raw
from bench.object_store import BUCKET, bench_server
from bench.report import Row, data_dir, median, row, say, seconds
from onelog.kafka_client import Client
from onelog.objects.rows import Row as PieceRow
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from tests.conformance.kafka_brokers import KafkaOnelog

ROUNDS = 3
SIZES = {"1 KB JSON": (1024, 160 << 20), "100 B": (100, 80 << 20)}
"""Bytes of a value, and of all batches."""
WARM_BAR, COLD_BAR = 0.9, 0.75
LAKE_BARS = {"1 KB JSON": 0.30, "100 B": 0.15}
LEFT_OUT = 2_000
"""Records before the end of the cold part: the client takes a thousand at once."""
RUN_S = 120


def consume(broker: KafkaOnelog, topic: str, count: int) -> float:
    """MB/s of a consumer that reads so many records from the beginning on."""
    done = subprocess.run(
        [kafka_load.RDLOAD, "-p", str(broker.port), "-T", topic, "-m", "catchup", "-n", str(count),
         *EAGER],
        capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    if done.returncode or not done.stdout:
        raise SystemExit(f"the consumer of {topic} failed: {done.stderr}")
    told = json.loads(done.stdout)
    if told["lost"]:
        raise SystemExit(f"the consumer of {topic} missed {told['lost']} offsets")
    return float(told["out_MBs"])


def raw_mb_s(store: ObjectStore, pieces: list[PieceRow]) -> float:
    """Of raw gets of all pieces."""

    def work() -> None:
        for piece in pieces:
            raw(store, piece)

    took = seconds(work)
    return sum(piece.log_bytes for piece in pieces) / took / 1e6


def pieces_of(broker: KafkaOnelog, topic: str, end: int) -> list[PieceRow]:
    """The rows of a topic's first partition."""
    with Client(access_of(broker)) as client:
        found = client.cold(topic, 0, 0, end)
        assert found is not None
        return list(found.rows)


def measure() -> list[Row]:
    """The rows of the table."""
    kafka_load.build()
    rates: dict[str, list[float]] = {}
    with data_dir("object-catchup") as folder, bench_server(folder / "s3") as server:
        broker = cold_broker(folder / "catchup", server)
        broker.start()
        try:
            counts: dict[str, int] = {}
            pieces: list[PieceRow] = []
            for name, (size, total) in SIZES.items():
                forms = ("", "log", "iceberg") if size == 1024 else ("", "iceberg")
                topics = {form: f"{form or 'segment'}-{size}" for form in forms}
                for form, topic in topics.items():
                    cold_topic(broker, topic, form)
                fill(broker, list(topics.values()), size, total)
                ends = [wait_until_cold(broker, topics[form])[0] for form in forms if form]
                counts[name] = min(ends) - LEFT_OUT
                if "log" in topics:
                    pieces = pieces_of(broker, topics["log"], counts[name])
            url = f"s3://{BUCKET}/catchup"
            store = open_store(StoreSettings(url=url, options=server.store_options))
            for _ in range(ROUNDS):
                broker.stop()
                broker.start()
                found = _round(broker, counts)
                found["raw gets"] = raw_mb_s(store, pieces)
                for name, rate in found.items():
                    rates.setdefault(name, []).append(rate)
        finally:
            broker.stop()
    for name, each in rates.items():
        say(f"{name}: {', '.join(f'{rate:,.0f}' for rate in each)} MB/s")
    return _rows({name: median(each) for name, each in rates.items()})


def _round(broker: KafkaOnelog, counts: dict[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, count in counts.items():
        size = SIZES[name][0]
        consume(broker, f"segment-{size}", count)  # the system has read the files
        found[f"segment, {name}"] = consume(broker, f"segment-{size}", count)
        if size == 1024:
            found["tier cold"] = consume(broker, f"log-{size}", count)
            found["tier warm"] = consume(broker, f"log-{size}", count)
        found[f"lakehouse cold, {name}"] = consume(broker, f"iceberg-{size}", count)
    return found


def _rows(rates: dict[str, float]) -> list[Row]:
    segment = rates["segment, 1 KB JSON"]
    slower = min(segment, rates["raw gets"])
    beside = "our segments" if slower == segment else "raw gets"
    rows = [
        row("Kafka catch-up, tier warm", rates["tier warm"] / segment, "ratio", WARM_BAR,
            peer=("our segments, MB/s", segment)),
        row("Kafka catch-up, tier cold", rates["tier cold"] / slower, "ratio", COLD_BAR,
            peer=(f"{beside}, MB/s", slower)),
    ]  # fmt: skip
    for name, bar in LAKE_BARS.items():
        segment = rates[f"segment, {name}"]
        rows.append(
            row(f"Kafka catch-up, lakehouse cold, {name}",
                rates[f"lakehouse cold, {name}"] / segment, "ratio", bar,
                peer=("our segments, MB/s", segment))
        )  # fmt: skip
    return rows
