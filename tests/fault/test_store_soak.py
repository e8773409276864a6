"""Does anything get lost, or come twice, while the object store is killed again and again? One
broker with a tier, the engine `object` and a table, on SeaweedFS; half an hour unless told
(`ONELOG_SOAK_S`)."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conformance.mqtt_brokers import Onelog, environment
from tests.support.forks import run_onelog
from tests.support.s3_server import S3Server, available, s3_server

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.fault_long,
    pytest.mark.skipif(not available(), reason="SeaweedFS is not installed"),
]

SOAK_S = float(os.environ.get("ONELOG_SOAK_S") or 30 * 60)
LIFE_S = max(8.0, min(60.0, SOAK_S / 5))
"""How long the store lives; it is away for a twelfth of that."""
DELIVERY_S = 300
SEGMENT = "1048576"
PAD = "x" * 900
STREAMS = {
    "tiered": ("--tier", "log", "--local-bytes", "0"),
    "stored": ("--engine", "object"),
    "listed": (
        *("--engine", "object", "--tier", "delta", "--tier-commit", "2s"), "--local-bytes", "0",
    ),
}  # fmt: skip


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as server:
        server.bucket("soak")
        yield server


@pytest.fixture
def broker(tmp_path: Path, s3: S3Server) -> Iterator[Onelog]:
    options = [f"{name}={value}" for name, value in s3.store_options.items()]
    found = Onelog(
        tmp_path, 'data_dir="data"', 'store.url="s3://soak/one"', "store.deadline_ms=4000",
        f"store.options={json.dumps(options)}", f"defaults.stream.segment_bytes={SEGMENT}",
        "store.cache_bytes=268435456", "object.linger_ms=50", "object.settle_ms=2000",
    ).start()  # fmt: skip
    for name, words in STREAMS.items():
        found.command("stream", "create", name, "--retention", "unlimited", *words)
    yield found
    found.stop()


class Writer(threading.Thread):
    """Writes numbers to every stream, idempotently, until it is told to stop."""

    def __init__(self, servers: str) -> None:
        super().__init__()
        self.counts = dict.fromkeys(STREAMS, 0)
        self.errors: list[str] = []
        self.ending = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 20,
             "delivery.timeout.ms": DELIVERY_S * 1000, "log_level": 0}
        )  # fmt: skip

    def run(self) -> None:
        while not self.ending.wait(0.005):
            for name in STREAMS:
                value = f"{self.counts[name]} {PAD}"
                self._producer.produce(name, value, on_delivery=self._delivered)
                self.counts[name] += 1
            self._producer.poll(0)
        if self._producer.flush(DELIVERY_S):
            self.errors.append("not all messages were answered")

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self.errors.append(str(error))


def numbers(servers: str, name: str, upto: int) -> list[int]:
    """What a consumer gets from the beginning, until it has so many."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"r-{name}", "log_level": 0})
    consumer.assign([TopicPartition(name, 0, 0)])
    found: list[int] = []
    ends = time.monotonic() + DELIVERY_S
    while len(found) < upto:
        assert time.monotonic() < ends, f"{name}: {len(found)} of {upto}"
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            found.append(int(value.split(b" ", 1)[0]))
    consumer.close()
    return found


def test_nothing_is_lost_or_doubled_while_the_store_is_killed_again_and_again(broker, s3):
    servers = f"127.0.0.1:{broker.ports['kafka']}"
    writer = Writer(servers)
    writer.start()
    ends, kills = time.monotonic() + SOAK_S, 0
    try:
        while time.monotonic() < ends:
            time.sleep(LIFE_S)  # not to wait for anything: the moment of the kill is the input
            s3.kill()
            time.sleep(LIFE_S / 12)
            s3.start()
            kills += 1
            for name in STREAMS:  # a cold reader from the beginning, beside the writer
                upto = writer.counts[name] // 2
                assert numbers(servers, name, upto)[:upto] == list(range(upto))
    finally:
        writer.ending.set()
        writer.join()
    assert not writer.errors
    assert kills >= 2
    for name, count in writer.counts.items():
        assert numbers(servers, name, count) == list(range(count)), name
    for name in ("tiered", "listed"):
        broker.command("stream", "offload", name)
        (row,) = json.loads(broker.get(f"/api/v1/streams/{name}/tier"))["items"]
        assert row["cold_end_offset"] == writer.counts[name], row
        assert not row["halted"] and row["pieces"], row
    for via in ("mqtt", "kafka", "amqp"):
        done = run_onelog(
            "replay", "listed", "--via", via, "--port", str(broker.ports[via]),
            environment=environment(), timeout_s=DELIVERY_S,
        )  # fmt: skip
        said = [int(line.split()[0]) for line in done.stdout.decode().splitlines()]
        assert said == list(range(writer.counts["listed"])), via
