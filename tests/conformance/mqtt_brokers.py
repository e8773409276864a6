"""Real brokers for the MQTT scenarios: ours as `onelog serve`, and Mosquitto beside it."""

from __future__ import annotations

import http.client
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.support.forks import Fork, onelog, run_onelog
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
GROUPS_AT_ONCE = "kafka.groups.initial_rebalance_delay_ms=0"
"""A setting: a new consumer group does not wait three seconds for more members."""


def environment() -> dict[str, str]:
    """What a server gets: nothing of ours by accident."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("ONELOG_")}
    keep = {name: os.environ[name] for name in ("ONELOG_PURE",) if name in os.environ}
    return clean | keep | {"PYTHONPATH": str(ROOT / "src")}


class Server:
    """A broker in a process of its own; it keeps its ports over a restart."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: Fork | subprocess.Popen[bytes] | None = None
        self.ports: dict[str, int] = {}

    @property
    def port(self) -> int:
        return self.ports["mqtt"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(DEADLINE_S)
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


class Onelog(Server):
    """`onelog serve` with any configuration."""

    name = "onelog"

    def __init__(self, folder: Path, *assignments: str, listeners: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self._assignments = assignments
        self._listeners = ("admin", "mqtt", "mqtt_ws", "kafka", "amqp", *listeners)

    def start(self) -> Onelog:
        arguments = []
        for name in self._listeners:
            arguments += ["--set", f"listeners.{name}.port={self.ports.get(name, 0)}"]
        arguments += ["--set", "listeners.mqtt_ws.enabled=true"]
        for text in self._assignments:
            arguments += ["--set", text]
        self.process = Fork(
            onelog,
            "serve",
            *arguments,
            errors=self.folder / "stderr",
            folder=self.folder,
            environment=environment(),
        )
        printed = self._read_until(b"kernel")
        for name in self._listeners:
            found = re.search(rf"^ +{name} +\w+://[\w.]+:(\d+)", printed, re.MULTILINE)
            assert found, printed
            self.ports[name] = int(found.group(1))
        return self

    def _read_until(self, word: bytes) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        printed = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while word not in printed:
                assert selector.select(deadline - time.monotonic()), f"too late: {printed!r}"
                chunk = os.read(self.process.stdout.fileno(), 65536)
                errors = (self.folder / "stderr").read_text()
                assert chunk, f"ended after printing {printed!r} and {errors}"
                printed += chunk
        return printed.decode()

    def user(self, name: str, password: str, *options: str) -> None:
        """Make a user, as an operator does."""
        self.command("user", "add", name, "--password-stdin", *options, stdin=password)

    def command(self, *words: str, stdin: str = "") -> str:
        """Run `onelog` where the server runs, as an operator does; what it prints."""
        done = run_onelog(
            *words, folder=self.folder, environment=environment(), given=stdin.encode()
        )
        done.check_returncode()
        return done.stdout.decode()

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.ports["admin"], timeout=DEADLINE_S
        )
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """One number of the metrics, over all labels."""
        rows = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert rows, f"{name} is no metric"
        return sum(map(float, rows))

    def rss_bytes(self) -> int:
        """Resident memory of its own; pages of mapped segments are the page cache's."""
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", text)
        assert found
        return int(found.group(1)) * 1024

    def open_files(self) -> int:
        """How many descriptors the server has open."""
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208

    def errors(self) -> list[str]:
        """What the server logged as an error."""
        rows = map(json.loads, (self.folder / "stderr").read_text().splitlines())
        return [str(row) for row in rows if row["level"] in ("error", "critical")]


class Mosquitto(Server):
    """Mosquitto from Debian, as close to our settings as it can be."""

    name = "mosquitto"

    def revive(self) -> None:
        """Start it again if it crashed: 2.0.11 does that now and then."""
        if self.process is not None and self.process.poll() is not None:
            self.start()

    def start(self) -> Mosquitto:
        binary = find_mosquitto()
        assert binary is not None
        port = self.ports.setdefault("mqtt", free_ports(1)[0])
        (self.folder / "mosquitto.conf").write_text(
            f"listener {port} 127.0.0.1\n"
            "allow_anonymous true\n"
            "persistence true\n"
            f"persistence_location {self.folder}/\n"
            "user root\n"
            "max_topic_alias 32\n"
            "max_inflight_messages 100\n"
            "max_queued_messages 0\n"
            "max_packet_size 1048576\n"
        )
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary, "-c", str(self.folder / "mosquitto.conf")], stdout=log, stderr=log
            )
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except ConnectionRefusedError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.01)  # Mosquitto has no way to say that it is ready
            else:
                return self
        raise TimeoutError("Mosquitto did not start")


def find_mosquitto() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
