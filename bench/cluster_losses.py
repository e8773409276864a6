"""What a producer sees while a leader is killed, while a node is drained, and without etcd.

Rules: the producer is librdkafka as an application has it: idempotent, `acks=all`, its own
retries. A kill is over with the first answer to a record that was sent after it. A node is started
anew before the next turn, and is in sync again.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Producer

from bench.cluster_nodes import FACTOR, Nodes
from bench.report import Row, median, row, say
from tests.support.etcd import EtcdCluster

KILL_P50_S, KILL_MAX_S = 1.5, 3.0
RATE = 200
PAYLOAD = b"x" * 100
STEADY_S = 2.0
ANSWER_S = 60.0
FLUSH_S = 60.0


class Steady:
    """A producer of so many records a second."""

    def __init__(self, nodes: Nodes, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": nodes.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.answers: list[tuple[float, float]] = []
        """When a record was sent, and when it was answered."""
        self.sent = 0
        self.errors: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._ends.is_set():
            now = time.monotonic()
            if self.sent < (now - begun) * RATE:
                with contextlib.suppress(BufferError):
                    self._producer.produce(
                        self._topic, PAYLOAD, partition=0, on_delivery=self._told(now)
                    )
                    self.sent += 1
            self._producer.poll(0.002)

    def _told(self, sent: float) -> Callable[[Any, Any], None]:
        def told(error: Any, _message: Any) -> None:
            if error is None:
                self.answers.append((sent, time.monotonic()))
            else:
                self.errors.append(str(error))

        return told

    def first_after(self, moment: float) -> float:
        """How long after a moment the first record that was sent later is answered."""
        deadline, seen = moment + ANSWER_S, 0
        while time.monotonic() < deadline:
            answers = self.answers
            for at in range(seen, len(answers)):
                if answers[at][0] > moment:
                    return answers[at][1] - moment
            seen = len(answers)
            time.sleep(0.005)
        return float("inf")

    def longest_gap(self, since: float, until: float) -> float:
        """The longest time without an answer."""
        moments = [since, *sorted(at for _, at in self.answers if since <= at <= until), until]
        return max(b - a for a, b in itertools.pairwise(moments))

    @contextlib.contextmanager
    def running(self) -> Iterator[Steady]:
        """Send for the length of a block, then wait for the answers."""
        self._thread.start()
        try:
            time.sleep(STEADY_S)
            yield self
        finally:
            self._ends.set()
            self._thread.join()
            missing = self._producer.flush(FLUSH_S)
            if missing:
                self.errors.append(f"{missing} records were never answered")


def kills(nodes: Nodes, count: int) -> list[float]:
    """Seconds from kill -9 of the leader to the first answer."""
    took = []
    with nodes.topic() as place, Steady(nodes, place.topic).running() as steady:
        for _kill in range(count):
            number = nodes.leader(place.topic, FACTOR)
            steady.first_after(time.monotonic())
            begun = time.monotonic()
            nodes.servers[number].stop(signal.SIGKILL)
            took.append(steady.first_after(begun))
            say(f"{nodes.name}: kill -9 of node {number}: {took[-1]:.2f} s")
            nodes.servers[number].start()
            nodes.leader(place.topic, FACTOR)
            time.sleep(STEADY_S)
    for error in steady.errors[:3]:
        say(f"{nodes.name}: {len(steady.errors)} RECORDS FAILED: {error}")
    return took


def measure_kills(ours: Nodes, peer: Nodes | None, *, count: int, peer_count: int) -> list[Row]:
    """Fail-over, beside Apache Kafka's default."""
    mine = kills(ours, count)
    theirs = kills(peer, peer_count) if peer is not None else []
    rows = []
    for name, of, bar in (("p50", median, KILL_P50_S), ("max", max, KILL_MAX_S)):
        said = ("Kafka, s", of(theirs)) if theirs else None
        title = f"kill -9 of a leader to the first answer, {name} of {count}"
        rows.append(row(title, of(mine), "s", bar, low=True, peer=said))
    return rows


def drains(nodes: Nodes, count: int) -> tuple[int, float]:
    """Records that failed, and the longest time without an answer, while leaders are stopped."""
    gap = 0.0
    with nodes.topic() as place, Steady(nodes, place.topic).running() as steady:
        for _drain in range(count):
            number = nodes.leader(place.topic, FACTOR)
            begun = time.monotonic()
            nodes.servers[number].stop(signal.SIGTERM)
            took = time.monotonic() - begun
            time.sleep(STEADY_S)
            lasted = steady.longest_gap(begun, time.monotonic())
            say(f"{nodes.name}: node {number} drained in {took:.1f} s, {lasted:.2f} s of silence")
            gap = max(gap, lasted)
            nodes.servers[number].start()
            nodes.leader(place.topic, FACTOR)
            time.sleep(STEADY_S)
    for error in steady.errors[:3]:
        say(f"{nodes.name}: {len(steady.errors)} RECORDS FAILED: {error}")
    return len(steady.errors), gap


def measure_drains(ours: Nodes, peer: Nodes | None, *, count: int) -> list[Row]:
    """SIGTERM of leaders under load."""
    errors, gap = drains(ours, count)
    theirs = drains(peer, count) if peer is not None else None
    return [
        row(f"SIGTERM of a leader, {count} times: records that failed", errors, "records", 0,
            low=True, peer=None if theirs is None else ("Kafka, records", theirs[0])),
        row("SIGTERM of a leader: longest time without an answer", gap, "s",
            peer=None if theirs is None else ("Kafka, s", theirs[1]), low=True),
    ]  # fmt: skip


def measure_etcd(nodes: Nodes, store: EtcdCluster, seconds: float) -> list[Row]:
    """Publishing while etcd is away."""
    member = store.members[0]
    with nodes.topic() as place, Steady(nodes, place.topic).running() as steady:
        member.kill()
        begun, before = time.monotonic(), steady.sent
        time.sleep(seconds)
        sent, ended = steady.sent - before, time.monotonic()
        store.restart(member)
        store.wait()
        time.sleep(STEADY_S)
        gap = steady.longest_gap(begun, ended)
        answered = sum(begun <= at and to <= ended for at, to in steady.answers)
    say(f"without etcd: {answered} of {sent} answered, {gap:.2f} s of silence at most")
    for error in steady.errors[:3]:
        say(f"{len(steady.errors)} RECORDS FAILED: {error}")
    name = f"etcd away for {seconds:.0f} s"
    return [
        row(f"{name}: records that failed", len(steady.errors), "records", 0, low=True),
        row(f"{name}: answered meanwhile", 100 * answered / max(sent, 1), "% of sent", 99),
        row(f"{name}: longest time without an answer", gap, "s", low=True),
    ]
