"""A broker of `bench-object` whose topics lie in the object store, and records for them.

Rules: batches are of 16 KB, as clients with the default settings send them, and of JSON. What is
read is the part that is cold; `wait_until_cold` says where it ends.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.object_store import BUCKET
from onelog.kafka_client import LATEST, Access, Client
from onelog.record.batch import Row as Record
from onelog.record.batch import build_batch
from tests.conformance.kafka_brokers import KafkaOnelog
from tests.spark.topics import make_topic
from tests.support.s3_server import S3Server

SEGMENT_BYTES = 24 << 20
BATCH_BYTES = 16 << 10
POOL_BATCHES = 512
"""Batches that differ; then they come again."""
WAIT_S = 300.0
COLD_PART = 0.7
EARLIEST_LOCAL = -4
"""ListOffsets: where the records on the disk begin."""
NOW_MS = 1_800_000_000_000


def cold_broker(folder: Path, server: S3Server, *settings: str) -> KafkaOnelog:
    """A broker, not yet started, with a prefix of its own in the store."""
    folder.mkdir(parents=True, exist_ok=True)
    options = [f"{name}={value}" for name, value in server.store_options.items()]
    return KafkaOnelog(
        folder,
        f"store.url=s3://{BUCKET}/{folder.name}",
        f"store.options={json.dumps(options)}",
        'defaults.stream.durability="os"',
        *settings,
    )


def cold_topic(
    broker: KafkaOnelog, name: str, form: str, *, partitions: int = 1, segment_bytes: int = 0
) -> str:
    """A topic whose sealed segments leave the disk; `form` is that of its tier, "" for none."""
    settings = {"segment.bytes": str(segment_bytes or SEGMENT_BYTES)}
    if form:
        settings |= {
            "remote.storage.enable": "true",
            "onelog.tier.format": form,
            "local.retention.bytes": "1",
        }
    if form not in ("", "log"):
        settings["onelog.tier.commit.ms"] = "1000"
    return make_topic(broker, name, partitions, **settings)


def access_of(broker: KafkaOnelog) -> Access:
    """How a plain client reaches it."""
    return Access(servers=(("127.0.0.1", broker.port),), timeout_s=60.0)


def reading(chosen: random.Random) -> str:
    """What a device says, about 85 bytes of JSON."""
    return (
        f'{{"device":"d{chosen.randrange(5000):04d}","temperature":{chosen.uniform(-20, 45):.2f},'
        f'"humidity":{chosen.random():.3f},"at":{NOW_MS + chosen.randrange(10**9)}}}'
    )


def value_of(chosen: random.Random, size: int) -> bytes:
    """JSON of so many bytes: one reading, or a list of them."""
    text = reading(chosen)
    if size > 2 * len(text):
        text = f'{{"site":"s{chosen.randrange(100)}","readings":[{text}'
        while len(text) + 120 < size:
            text += "," + reading(chosen)
        text += "]}"
    return (text[:-1] + f',"p":"{"x" * (size - len(text) - 7)}"}}').encode()


def pool_of(size: int) -> list[bytes]:
    """Batches of records with values of a size, to be written again and again."""
    chosen = random.Random(size)
    each = max(BATCH_BYTES // (size + 20), 1)
    made = []
    for number in range(POOL_BATCHES):
        rows: list[Record] = [
            (None, b"key-%d" % chosen.randrange(1000), value_of(chosen, size), (), NOW_MS + number)
            for _ in range(each)
        ]
        made.append(build_batch(rows))
    return made


def fill(
    broker: KafkaOnelog, topics: Sequence[str], size: int, total_bytes: int, partitions: int = 1
) -> None:
    """Write so many bytes of the same batches to each partition of each topic."""
    pool = pool_of(size)
    parts = [(topic, one) for topic in topics for one in range(partitions)]
    with Client(access_of(broker)) as client:
        client.topics(topics)
        for number in range(total_bytes // len(pool[0])):
            told = client.produce(dict.fromkeys(parts, pool[number % len(pool)]))
            assert all(one.code == 0 for one in told.values()), told


def wait_until_cold(broker: KafkaOnelog, topic: str, partitions: int = 1) -> dict[int, int]:
    """Where the cold part of each partition ends, when most of it has left the disk."""
    deadline = time.monotonic() + WAIT_S
    parts = [(topic, number) for number in range(partitions)]
    with Client(access_of(broker)) as client:
        last = client.offsets(dict.fromkeys(parts, LATEST))
        while True:
            found = {part: client.cold(*part, 0, last[part]) for part in parts}
            local = client.offsets(dict.fromkeys(parts, EARLIEST_LOCAL))
            ends = {part[1]: min(one.end, local[part]) if one else 0 for part, one in found.items()}
            if all(ends[part[1]] > COLD_PART * last[part] for part in parts):
                return ends
            if time.monotonic() > deadline:
                raise AssertionError(f"the tier of {topic} is not done: {ends} of {last}")
            time.sleep(0.5)


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
