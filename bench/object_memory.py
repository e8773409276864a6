"""What a hundred cold readers take of the broker's memory, beside what is configured for them.

Rules: the readers are a hundred connections, each with a place of its own in the cold part, that
read a few MiB one after the other. What counts is the growth of the process in RAM, without pages
of the cache's files that are mapped: those are the cache, and the system may take them back.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.object_broker import access_of, cold_broker, cold_topic, fill, wait_until_cold
from bench.object_store import bench_server
from bench.report import Row, data_dir, row, say
from onelog.kafka_client import Client
from onelog.kafka_client.messages import fetch_request
from onelog.kernel import scan_valid
from tests.conformance.kafka_brokers import KafkaOnelog

READERS, PARTITIONS = 100, 4
PART_BYTES, SEGMENT_BYTES = 96 << 20, 8 << 20
READ_BYTES, FETCH_BYTES = 3 << 20, 1 << 20
BAR_MIB, ROW_BYTES = 64, 200


def held_mib(pid: int) -> float:
    """RAM of a process without mapped files of the cache."""
    total = cache = 0
    is_cache = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            is_cache = ".run" in line
        elif line.startswith("Rss:"):
            size = int(line.split()[1])
            total += size
            cache += size if is_cache else 0
    return (total - cache) / 1024


def read(broker: KafkaOnelog, number: int, ends: dict[int, int]) -> int:
    """One reader: some MiB from its place on. Returns the bytes."""
    part = number % PARTITIONS
    offset = ends[part] * (number // PARTITIONS) // (READERS // PARTITIONS + 1)
    done = 0
    with Client(access_of(broker)) as client:
        while done < READ_BYTES:
            request = fetch_request(
                {("cold", part): offset},
                bytes_max=FETCH_BYTES, part_bytes_max=FETCH_BYTES, wait_ms=5000,
            )  # fmt: skip
            (got,) = client.fetch(request, 5.0)
            assert got.code == 0, got.code
            batches, stop, _why = scan_valid(got.records, 0, False, -1)
            if not batches:
                continue
            offset = batches[-1].last_offset + 1
            done += stop
    return done


def measure() -> list[Row]:
    """The rows of the table."""
    with data_dir("object-memory") as folder, bench_server(folder / "s3") as server:
        broker = cold_broker(folder / "memory", server)
        broker.start()
        try:
            cold_topic(broker, "cold", "log", partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES)
            fill(broker, ["cold"], 1024, PART_BYTES, PARTITIONS)
            ends = wait_until_cold(broker, "cold", PARTITIONS)
            broker.stop()
            broker.start()
            assert broker.process is not None
            before = held_mib(broker.process.pid)
            with ThreadPoolExecutor(READERS) as threads:
                total = sum(threads.map(lambda n: read(broker, n, ends), range(READERS)))
            after = held_mib(broker.process.pid)
        finally:
            broker.stop()
    pieces = PARTITIONS * PART_BYTES // SEGMENT_BYTES
    bar = BAR_MIB + pieces * ROW_BYTES / 2**20
    say(f"{READERS} cold readers of {total / 1e6:.0f} MB: {before:.0f} MiB before, {after:.0f}"
        " after")  # fmt: skip
    return [
        row(f"memory of {READERS} cold readers beside the cache", after - before, "MiB",
            round(bar, 2), low=True)
    ]  # fmt: skip
