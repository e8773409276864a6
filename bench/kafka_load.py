"""Brokers and load of the Kafka benchmark: ours and Apache Kafka behind one face, two generators.

Rules: `kafka_rdload.c` is librdkafka with its own batching; `kafkaload.c` sends prebuilt requests
of 16 KB batches, the Java client's default, and costs almost no CPU itself. A run that lost,
repeated or failed a message counts as 0. Every run has a fresh topic, deleted afterwards.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka_peer import KafkaPeer, available, free_ports
from bench.listeners import closed_but
from bench.mqtt import process_of
from bench.report import ROOT, say

RDLOAD = ROOT / "build" / "kafka_rdload"
RAWLOAD = ROOT / "build" / "kafkaload"
RUN_S = 120
LACKS_PEER = (
    "Apache Kafka is not here: run 'apt-get install maven' as root and 'make bench-kafka' again "
    "for the ratios"
)
_numbers = itertools.count()


class Target(NamedTuple):
    """A running broker."""

    name: str
    port: int
    pid: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 3})

    def rss_mb(self) -> float:
        """Memory that is in RAM now, mapped files included."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found.group(1)) / 1000


class Run(NamedTuple):
    """What one run of a generator moved."""

    mb_s: float
    requests_s: float
    cpu: float
    p99_us: float

    @property
    def mb_per_cpu(self) -> float:
        return self.mb_s / max(self.cpu, 0.01)


def build() -> None:
    """Compile the generators; librdkafka is the one inside the confluent-kafka wheel."""
    RDLOAD.parent.mkdir(exist_ok=True)
    package = Path(confluent_kafka.__file__).parent
    library = next((package.parent / "confluent_kafka.libs").glob("librdkafka*.so*"))
    source = ROOT / "bench"
    rpath = f"-Wl,-rpath,{library.parent}"
    subprocess.run(
        ["cc", "-O2", "-o", RDLOAD, source / "kafka_rdload.c", library, rpath, "-lpthread"],
        check=True,
    )
    subprocess.run(["cc", "-O2", "-msse4.2", "-o", RAWLOAD, source / "kafkaload.c"], check=True)


@contextlib.contextmanager
def onelog(folder: Path, durability: str, *settings: str) -> Iterator[Target]:
    """Our broker."""
    port, admin = free_ports(2)
    values = (
        f"listeners.kafka.port={port}",
        f"listeners.admin.port={admin}",
        *closed_but("kafka"),
        f'defaults.stream.durability="{durability}"',
        *settings,
    )
    flags = [part for value in values for part in ("--set", value)]
    command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder), *flags]
    with process_of(command, port) as pid:
        yield Target("onelog", port, pid)


@contextlib.contextmanager
def apache(folder: Path) -> Iterator[Target | None]:
    """The peer; None where it cannot be started."""
    if not available():
        say(LACKS_PEER)
        yield None
        return
    peer = KafkaPeer(folder, {"log.segment.delete.delay.ms": "1000"})
    try:
        peer.start()
        yield Target("Kafka", peer.port, peer.pid)
    finally:
        peer.stop()


def settle(futures: Mapping[str, Future[Any]]) -> None:
    """Wait until every topic of an admin call is done."""
    for future in futures.values():
        future.result(60)


@contextlib.contextmanager
def fresh_topic(target: Target, *, flush: bool = False) -> Iterator[str]:
    """A topic of one partition for the length of a block; `flush`: synced at every append."""
    name = f"load{next(_numbers)}"
    config = {"flush.messages": "1"} if flush and target.name == "Kafka" else {}
    admin = target.admin()
    settle(admin.create_topics([NewTopic(name, 1, 1, config=config)], operation_timeout=30))
    try:
        yield name
    finally:
        settle(admin.delete_topics([name], operation_timeout=30))


def rdload(target: Target, topic: str, *options: str) -> Run:
    """One run of librdkafka."""
    answer = _run(RDLOAD, target, topic, options)
    if answer["failed"] or answer["lost"] or answer["repeated"]:
        say(f"{target.name} FAILED, LOST OR REPEATED: {' '.join(options)}: {answer}")
        return Run(0.0, 0.0, answer["broker_cpu"], float("inf"))
    moved = answer["in_MBs"] + answer["out_MBs"]
    return Run(moved, 0.0, answer["broker_cpu"], answer["p99_us"])


def rawload(target: Target, topic: str, *options: str) -> Run:
    """One run of prebuilt requests."""
    answer = _run(RAWLOAD, target, topic, options)
    moved = answer["in_MBs"] + answer["out_MBs"]
    return Run(moved, answer["in_req_s"], answer["broker_cpu"], 0.0)


def _run(program: Path, target: Target, topic: str, options: tuple[str, ...]) -> dict[str, float]:
    done = subprocess.run(
        [program, "-p", str(target.port), "-c", str(target.pid), "-T", topic, *options],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    if done.returncode or not done.stdout:
        raise SystemExit(
            f"{program.name} {' '.join(options)} failed against {target.name}: {done.stderr}"
        )
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
