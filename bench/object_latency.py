"""What uploads and cold readers do to the latency of messages that have nothing to do with them.

Rules: MQTT clients send 1,000 messages a second (`viewload.c`), and one more publishes 200 a second
and waits for each PUBACK, while a producer writes 4 MB/s to another topic (`object_crowd.py`). The
p99 of both while that topic's segments go to the store and eight paced readers read cold rows is
beside the p99 while the producer writes to a topic without a tier and nobody reads, in turns;
medians count. The store and the crowd are at idle priority: a slice of theirs would be the p99.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench import views_load
from bench.object_broker import cold_broker, cold_topic, fill, wait_until_cold
from bench.object_store import bench_server
from bench.report import ROOT, Row, child_environment, data_dir, median, row, say
from tests.conformance.kafka_brokers import KafkaOnelog
from tests.support.s3_server import S3Server

READERS = 8
ROUNDS = 5
P99_BAR = 1.10
PACED = ("-x", "-r", "1000", "-w", "0.5")
MEASURED_S = 3.0
COLD_BYTES = 40 << 20
"""Of each partition."""
SEGMENT_BYTES = 8 << 20
PUBLISH_S = 1 / 200
_PAYLOAD = b"x" * 256


def be_idle(pid: int) -> None:
    """Let a process have the processor only when nobody else wants it."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))


class Publisher:
    """An MQTT client that waits for each PUBACK, in a thread."""

    def __init__(self, port: int) -> None:
        self.waits_us: list[float] = []
        self._stop = threading.Event()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = b"bench-publisher"
        head = b"\x00\x04MQTT\x04\x02\x00\x00" + len(name).to_bytes(2, "big") + name
        self._socket.sendall(bytes((0x10, len(head))) + head)
        assert self._socket.recv(4)[:1] == b"\x20"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        topic = b"alone/answers"
        body = len(topic).to_bytes(2, "big") + topic + b"\x00\x01" + _PAYLOAD
        length = len(body)
        packet = bytes((0x32, length & 127 | 128, length >> 7)) + body
        due = time.perf_counter()
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            begun = time.perf_counter()
            self._socket.sendall(packet)
            assert self._socket.recv(4)[:1] == b"\x40"
            self.waits_us.append((time.perf_counter() - begun) * 1e6)
            due += PUBLISH_S

    def p99_us(self) -> float:
        """End, and the p99 of its waits."""
        self._stop.set()
        self._thread.join()
        self._socket.close()
        waits = sorted(self.waits_us)
        return waits[len(waits) * 99 // 100]


@contextlib.contextmanager
def crowd(
    broker: KafkaOnelog, hot: str, ends: dict[int, int], begun: float = 0.0
) -> Iterator[None]:
    """A producer of the topic `hot`, and cold readers, for the length of a block."""
    words = [str(broker.port), "cold", json.dumps(ends), hot, str(begun)]
    running = subprocess.Popen(
        [sys.executable, "-m", "bench.object_crowd", *words],
        cwd=ROOT, env=child_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        if running.stdout.readline() != "ready\n":
            raise SystemExit("bench.object_crowd did not start")
        yield
    finally:
        running.terminate()
        told = running.communicate(timeout=60)[0]
    say(f"the crowd: {told.strip()}")


def p99s(broker: KafkaOnelog, name: str) -> tuple[float, float]:
    """Of publishing, and end to end."""
    assert broker.process is not None
    target = views_load.Target(broker.ports["mqtt"], 0, 0, (broker.process.pid,))
    publisher = Publisher(broker.ports["mqtt"])
    try:
        across = views_load.load(target, "M", "M", name, PACED, MEASURED_S)["p99_us"]
    finally:
        answered = publisher.p99_us()
    return answered, across


def measure() -> list[Row]:
    """The rows of the table."""
    views_load.build()
    with data_dir("object-latency") as folder, bench_server(folder / "s3") as server:
        broker = cold_broker(folder / "latency", server)
        broker.start()
        try:
            return _measured(broker, server)
        finally:
            broker.stop()


def _measured(broker: KafkaOnelog, server: S3Server) -> list[Row]:
    cold_topic(broker, "cold", "log", partitions=READERS, segment_bytes=SEGMENT_BYTES)
    cold_topic(broker, "hot", "log", segment_bytes=SEGMENT_BYTES // 2)
    cold_topic(broker, "plain", "", segment_bytes=SEGMENT_BYTES // 2)
    fill(broker, ["cold"], 1024, COLD_BYTES, READERS)
    ends = wait_until_cold(broker, "cold", READERS)
    be_idle(server.pid)
    p99s(broker, "warm")
    alone, busy = [], []
    for number in range(ROUNDS):
        with crowd(broker, "plain", {}):
            alone.append(p99s(broker, f"alone{number}"))
        with crowd(broker, "hot", ends, number / ROUNDS):
            busy.append(p99s(broker, f"busy{number}"))
    rows = []
    for at, what in enumerate(("publish", "MQTT end to end")):
        before, among = (median([one[at] for one in found]) for found in (alone, busy))
        say(f"{what}: p99 {before:,.0f} us, with uploads and readers {among:,.0f} us")
        rows.append(
            row(
                f"{what} p99 with uploads and {READERS} cold readers", among / before, "ratio",
                P99_BAR, low=True, peer=("without, us", before),
            )
        )  # fmt: skip
    return rows
