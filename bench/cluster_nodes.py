"""Three nodes of the cluster benchmark: ours on etcd, and Apache Kafka, behind one face.

Rules: a node keeps its ports over a kill. Ours have their default settings but for ports, places,
durability and the number of replicas, which topics take from the cluster; Apache Kafka's are broker
and controller in one, with its own defaults. CPU is that of all nodes, and of etcd.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka_load import LACKS_PEER, settle
from bench.kafka_peer import KafkaPeer, available, cluster_id, free_ports
from bench.report import child_environment, say
from tests.support.etcd import EtcdCluster, find_etcd

READY_S = 90.0
STOP_S = 60.0
LACKS_ETCD = "etcd is not here: run 'apt-get install etcd-server' as root"
FACTOR, MIN_INSYNC = 3, 2
_numbers = itertools.count()


class Server(Protocol):
    """One node: its port is that of Kafka."""

    port: int

    @property
    def pid(self) -> int: ...
    def start(self) -> object: ...
    def stop(self, number: int = signal.SIGTERM) -> int: ...


class Place(NamedTuple):
    """A topic of one partition, and the node that leads it."""

    topic: str
    leader: int


class OneLogNode:
    """One node of ours."""

    def __init__(self, folder: Path, settings: tuple[str, ...]) -> None:
        self.folder = folder
        self.port, self.mqtt, self.amqp, self.admin = free_ports(4)
        values = (
            f"listeners.kafka.port={self.port}",
            f"listeners.mqtt.port={self.mqtt}",
            f"listeners.amqp.port={self.amqp}",
            f"listeners.admin.port={self.admin}",
            "listeners.mqtt_ws.enabled=false",
            "mqtt.limits.inflight=65535",
            *settings,
        )
        flags = [part for value in values for part in ("--set", value)]
        self._command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder), *flags]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, "the node is not running"
        return self.process.pid

    def start(self) -> OneLogNode:
        """Start it; whoever waits looks at the cluster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder.with_suffix(".log")).open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=child_environment(), stdout=log, stderr=log
            )
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(STOP_S)


class Nodes:
    """A cluster that runs."""

    def __init__(
        self, name: str, servers: dict[int, Server], others: tuple[int, ...], factor: int = FACTOR
    ) -> None:
        self.name = name
        self.factor = factor
        self.servers = servers
        self._others = others
        """Processes that it needs and that are no nodes."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers.values())

    @property
    def pids(self) -> str:
        """All processes, as the generators take them."""
        return ",".join(
            str(pid) for pid in (*(server.pid for server in self.servers.values()), *self._others)
        )

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """Ask until the answer is true."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                found = holds()
                if found:
                    return found
            time.sleep(0.1)
        raise RuntimeError(f"{self.name}: {what} not within {READY_S:.0f} s")

    def start(self) -> Nodes:
        """All at once: none of Apache Kafka's listens before most of them are there."""
        with ThreadPoolExecutor(len(self.servers)) as pool:
            for done in [pool.submit(server.start) for server in self.servers.values()]:
                done.result(READY_S)
        admin, count = self.admin(), len(self.servers)
        self.until(f"{count} nodes", lambda: len(admin.list_topics(timeout=5).brokers) == count)
        return self

    def stop(self) -> None:
        """All at once, too: a node that hands over waits for the others."""
        with ThreadPoolExecutor(len(self.servers)) as pool:
            for server in self.servers.values():
                pool.submit(server.stop)

    def leader(self, topic: str, replicas: int = 1) -> int:
        """Who leads a topic of one partition, once so many are in sync."""
        admin = self.admin()

        def found() -> int | None:
            rows = admin.list_topics(topic, timeout=5).topics[topic].partitions
            row = rows[0]
            is_there = row.leader in self.servers and len(row.isrs) >= replicas
            return row.leader if is_there else None

        return int(self.until(f"{replicas} replicas of {topic} in sync", found))

    @contextlib.contextmanager
    def topic(self, *, flush: bool = False) -> Iterator[Place]:
        """A topic for the length of a block; `flush`: Apache Kafka syncs at every append."""
        name = f"load{next(_numbers)}"
        config = {"min.insync.replicas": str(min(self.factor, MIN_INSYNC))}
        if flush and self.name == "Kafka":
            config["flush.messages"] = "1"
        admin = self.admin()
        factor = self.factor if self.name == "Kafka" else -1
        wanted = [NewTopic(name, 1, factor, config=config)]
        settle(admin.create_topics(wanted, operation_timeout=30, request_timeout=60))
        try:
            yield Place(name, self.leader(name, self.factor))
        finally:
            settle(admin.delete_topics([name], operation_timeout=30))


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[EtcdCluster]:
    """One member, as a machine alone has."""
    if find_etcd() is None:
        raise SystemExit(LACKS_ETCD)
    folder.mkdir(parents=True)
    cluster = EtcdCluster(folder)
    try:
        yield cluster.start()
    finally:
        cluster.close()


def node_settings(
    urls: tuple[str, ...], number: int, durability: str, factor: int
) -> tuple[str, ...]:
    """What makes a node of ours one of a cluster."""
    endpoints = ",".join(f'"{url}"' for url in urls)
    return (
        f"node.id={number}",
        f'node.name="bench-{number}"',
        'cluster.mode="etcd"',
        f"cluster.etcd.endpoints=[{endpoints}]",
        f"cluster.factor={factor}",
        f"cluster.min_insync={min(factor, MIN_INSYNC)}",
        "internal.partitions=4",
        f'defaults.stream.durability="{durability}"',
    )


@contextlib.contextmanager
def onelog(
    folder: Path, durability: str, factor: int = FACTOR
) -> Iterator[tuple[Nodes, EtcdCluster]]:
    """Three nodes of ours, and their etcd."""
    with etcd(folder / "etcd") as store:
        servers: dict[int, Server] = {
            number: OneLogNode(
                folder / str(number), node_settings(store.urls, number, durability, factor)
            )
            for number in range(1, FACTOR + 1)
        }
        member = store.members[0].process
        assert member is not None
        nodes = Nodes("onelog", servers, (member.pid,), factor)
        try:
            yield nodes.start(), store
        finally:
            nodes.stop()


@contextlib.contextmanager
def apache(folder: Path) -> Iterator[Nodes | None]:
    """Three of Apache Kafka's; None where it cannot be started."""
    if not available():
        say(LACKS_PEER)
        yield None
        return
    ports, name = free_ports(FACTOR), cluster_id()
    voters = ",".join(f"{at}@127.0.0.1:{port}" for at, port in enumerate(ports, 1))
    settings = {
        "controller.quorum.voters": voters,
        "log.segment.delete.delay.ms": "1000",
        "offsets.topic.replication.factor": str(FACTOR),
        "transaction.state.log.replication.factor": str(FACTOR),
        "transaction.state.log.min.isr": str(MIN_INSYNC),
        "share.coordinator.state.topic.replication.factor": str(FACTOR),
        "share.coordinator.state.topic.min.isr": str(MIN_INSYNC),
    }
    servers: dict[int, Server] = {
        at: KafkaPeer(
            folder / str(at), {**settings, "node.id": str(at)}, controller=port, cluster=name
        )
        for at, port in enumerate(ports, 1)
    }
    nodes = Nodes("Kafka", servers, ())
    try:
        yield nodes.start()
    finally:
        nodes.stop()
