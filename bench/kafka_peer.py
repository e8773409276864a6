"""Apache Kafka as the peer: one node that is broker and controller, started from Maven's jars.

Rules: its own defaults stay (page cache, no sync per append), and so do the JVM options of its own
start script; only what a single node needs is set. Ports are free ones, data lies in the caller's
folder, and what it logs is kept there.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.kafka_jars import jars

START_S = 60.0
STOP_S = 30.0
HEAP = ("-Xmx1G", "-Xms1G")
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
LOGGING = """status = warn
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c %m%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = OUT
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def cluster_id() -> str:
    """One that no other cluster has."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def available() -> bool:
    """Whether Kafka can be started here."""
    return shutil.which("java") is not None and jars("broker") is not None


class KafkaPeer:
    """A Kafka that keeps its ports over a restart."""

    name = "apache"

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        controller: int = 0,
        cluster: str = "",
    ) -> None:
        """`controller` is the port of its controller, free if nothing is said; `cluster` is the id
        that all nodes of one are formatted with."""
        self.folder = folder
        self.port, free = free_ports(2)
        self._controller = controller or free
        self._settings = {
            **ONE_NODE,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},"
            f"CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(folder / "data"),
            **(settings or {}),
        }
        self._cluster = cluster or cluster_id()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, "Kafka is not running"
        return self.process.pid

    def start(self) -> KafkaPeer:
        """Format the storage the first time, start, and wait until it listens."""
        properties = self.folder / "server.properties"
        self.folder.mkdir(parents=True, exist_ok=True)
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings.items()))
        (self.folder / "log4j2.properties").write_text(LOGGING)
        if not (self.folder / "data").exists():
            tool = ("kafka.tools.StorageTool", "format", "-t", self._cluster)
            format_it = (*tool, "-c", str(properties))
            subprocess.run(
                self._java((), *format_it), check=True, capture_output=True, timeout=START_S
            )
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._java(HEAP, "kafka.Kafka", str(properties)),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self._wait()
        return self

    def _java(self, heap: tuple[str, ...], *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return ["java", *heap, *JVM, logging, "-cp", f"{jars('broker')}/*", *arguments]

    def _wait(self) -> None:
        """Kafka has no way to say that it is ready but to listen."""
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                return
            time.sleep(0.05)
        said = (self.folder / "log").read_text()[-2000:]
        self.stop(signal.SIGKILL)
        raise RuntimeError(f"Kafka did not start in {START_S:.0f} s: {said}")

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


@contextlib.contextmanager
def kafka(folder: Path, **settings: str) -> Iterator[KafkaPeer]:
    """Kafka for the length of a block; dots in the settings' names are written `__`."""
    peer = KafkaPeer(folder, {name.replace("__", "."): text for name, text in settings.items()})
    try:
        yield peer.start()
    finally:
        peer.stop()
