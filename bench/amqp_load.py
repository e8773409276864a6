"""Brokers and load of the AMQP benchmark: ours and RabbitMQ behind one face.

Rules: the load is `amqpload.c`: persistent messages, confirms, acks. RabbitMQ is Debian's with its
own settings but for ports and places; its CPU is that of the Erlang machine and its children. A run
that lost or doubled a message counts as 0.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pika

from bench.mqtt import free_port, process_of
from bench.report import ROOT, say
from tests.conformance.amqp_brokers import LACKS_RABBITMQ, RabbitMq, find_rabbitmq

LOAD = ROOT / "build" / "amqpload"
GRACE_S = 120.0
"""For a run beyond its own time: a hundred quorum queues are made slowly."""
NOTHING = {"recv_s": 0.0, "ack_s": 0.0, "broker_cpu": 1.0, "p99_us": float("inf")}

Run = dict[str, float]


class Target(NamedTuple):
    """A broker that runs."""

    port: int
    pid: int

    def pids(self) -> list[int]:
        """The process and all below it."""
        found = [self.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(word) for word in children.read_text().split()]
        return found

    def memory_mb(self, field: str) -> float:
        """`VmRSS` is resident now, `VmHWM` its highest, `RssAnon` the part without files."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None, f"the system does not tell {field}"
        return int(found.group(1)) / 1024

    @contextlib.contextmanager
    def channel(self) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
        """For what the load generator does not do: many queues, counts."""
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0)
        with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
            yield connection.channel()

    def messages(self, queue: str) -> int:
        """How many messages a durable queue holds; it is made where it is missing."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue, durable=True).method.message_count)


def build() -> None:
    """Compile the load generator."""
    LOAD.parent.mkdir(exist_ok=True)
    subprocess.run(["cc", "-O2", "-o", LOAD, ROOT / "bench" / "amqpload.c"], check=True)


@contextlib.contextmanager
def onelog(folder: Path) -> Iterator[Target]:
    """Our broker with its default durability, which is `fsync`."""
    port = free_port()
    values = (
        f"listeners.amqp.port={port}",
        f"listeners.admin.port={free_port()}",
        "listeners.mqtt.enabled=false",
        "listeners.mqtt_ws.enabled=false",
        "listeners.kafka.enabled=false",
        'limits.page_cache_bytes="256MiB"',
    )
    flags = [part for value in values for part in ("--set", value)]
    command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder), *flags]
    with process_of(command, port) as pid:
        yield Target(port, pid)


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[Target | None]:
    """The peer; None where it is not installed."""
    if find_rabbitmq() is None:
        say(LACKS_RABBITMQ)
        yield None
        return
    folder.mkdir()
    server = RabbitMq(folder)
    try:
        server.start()
        assert server.process is not None
        yield Target(server.port, server.process.pid)
    finally:
        server.stop()


def load(
    target: Target, *options: str, measured_s: float, warm_s: float = 0.5, again: bool = False
) -> Run:
    """One run of the load generator; `again` where a backlog of several runs is read."""
    pids = ",".join(map(str, target.pids()))
    times = ("-t", str(measured_s), "-w", str(warm_s))
    command = [
        str(LOAD),
        "-p",
        str(target.port),
        "-c",
        pids,
        "-q",
        "1",
        "-l",
        "256",
        *times,
        *options,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=measured_s + warm_s + GRACE_S, check=False
    )
    if done.returncode:
        say(f"FAILED ({' '.join(options)}): {done.stderr.strip()}")
        return dict(NOTHING)
    answer: Run = json.loads(done.stdout.strip().splitlines()[-1])
    if answer["lost"] or (answer["dup"] and not again):
        say(f"LOST {answer['lost']}, DOUBLED {answer['dup']}: {' '.join(options)}")
        return dict(NOTHING)
    return answer
