"""Bars without a peer: 10 000 partitions, and the speed at which a filtered view is scanned.

Rules: the metadata answer is timed from the request to its last byte, all topics, the version that
Java clients send. The view's stream is written beforehand by the broker itself, so that only the
reading is timed; 1 record in 100 matches, and every match must arrive.
"""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from bench.kafka_load import Target, onelog, settle
from bench.report import Row, median, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.base.names import to_dotted
from onelog.broker import LOCAL, BrokerSettings, Durability, Message, StreamConfig

TOPICS, PARTITIONS_EACH = 100, 100
METADATA_BAR_MS, METADATA_RSS_BAR_MB = 100, 400
SCAN_BAR_MB_S = 300
SCAN_MESSAGES, SCAN_CHUNK, ONE_IN = 2_000_000, 20_000, 100
VALUE = bytes(range(256))
FILTER = "scan/+/hit"
WAIT_S = 60.0


def metadata_ms(target: Target) -> float:
    """Time of one Metadata v12 of all topics, in milliseconds."""
    body = struct.pack(">hhih5sB", 3, 12, 1, 5, b"bench", 0) + bytes([0, 1, 0, 0])
    with socket.create_connection(("127.0.0.1", target.port), WAIT_S) as link:
        start = time.perf_counter()
        link.sendall(struct.pack(">i", len(body)) + body)
        with link.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            assert len(answers.read(size)) == size, "the answer was cut"
        return (time.perf_counter() - start) * 1000


def many_partitions(target: Target) -> list[Row]:
    """Make them, ask for them, write to each."""
    admin = target.admin()
    names = [f"wide{number}" for number in range(TOPICS)]
    start = time.perf_counter()
    settle(
        admin.create_topics(
            [NewTopic(name, PARTITIONS_EACH, 1) for name in names],
            operation_timeout=WAIT_S,
            request_timeout=WAIT_S,
        )
    )
    say(f"10 000 partitions made in {time.perf_counter() - start:.1f} s")
    answer = median([metadata_ms(target) for _ in range(5)])
    empty = target.rss_mb()
    producer = Producer({"bootstrap.servers": target.address, "log_level": 3})
    for name in names:
        for partition in range(PARTITIONS_EACH):
            producer.produce(name, VALUE, partition=partition)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0, "records to 10 000 partitions were not acknowledged"
    return [
        row("10 000 partitions: metadata", answer, "ms", METADATA_BAR_MS, low=True),
        row("10 000 partitions: RSS", empty, "MB", METADATA_RSS_BAR_MB, low=True),
        row("… with a record in each", target.rss_mb(), "MB", METADATA_RSS_BAR_MB, low=True),
    ]


async def fill(folder: Path) -> None:
    """A stream of one partition in which 1 % of the records match the filter."""
    broker = await open_broker(folder, BrokerSettings(), SystemClock())
    await broker.streams.create(
        StreamConfig(name="scan", captures=("scan/#",), partitions=1, durability=Durability.OS)
    )
    topics = [f"scan/d{n}/{'hit' if n == 0 else 'miss'}" for n in range(ONE_IN)]
    chunk = [Message(topics[n % ONE_IN], VALUE) for n in range(SCAN_CHUNK)]
    for _ in range(SCAN_MESSAGES // SCAN_CHUNK):
        await broker.publish_many(chunk, principal=LOCAL)
    await broker.close()


def log_mb(folder: Path) -> float:
    """Bytes of all segments of the stream."""
    files = (file for file in folder.rglob("*.log") if "scan" in str(file.relative_to(folder)))
    return sum(file.stat().st_size for file in files) / 1e6


def scan_s(target: Target) -> float:
    """Seconds until a new consumer has the last match of the view."""
    consumer = Consumer(
        {"bootstrap.servers": target.address, "group.id": "scan", "enable.auto.commit": False}
    )
    name = to_dotted(FILTER)
    # `main` may hold records of the filter, too: its partitions come first.
    numbers = consumer.list_topics(name, WAIT_S).topics[name].partitions
    start, found = time.perf_counter(), 0
    consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in numbers])
    while found < SCAN_MESSAGES // ONE_IN:
        messages = consumer.consume(1_000, 0.02)
        assert time.perf_counter() - start < WAIT_S, f"{found} matches after {WAIT_S} s"
        for message in messages:
            assert message.error() is None, message.error()
        found += len(messages)
    took = time.perf_counter() - start
    consumer.close()
    return took


def scan(folder: Path) -> Row:
    """The first reading of the view, by brokers that have not seen it yet."""
    scanned_mb, rates = log_mb(folder), []
    for _round in range(3):
        with onelog(folder, "os") as target:
            rates.append(scanned_mb / scan_s(target))
    say("view scanned, MB/s: " + ", ".join(f"{rate:.0f}" for rate in rates))
    return row("filtered view, 1 % matches: scanned", median(rates), "MB/s", SCAN_BAR_MB_S)


def run(folder: Path) -> list[Row]:
    """Both bars, each on a broker of its own."""
    with onelog(folder / "wide", "os") as target:
        rows = many_partitions(target)
    (folder / "scan").mkdir(parents=True)
    run_loop(fill(folder / "scan"))
    return [*rows, scan(folder / "scan")]
