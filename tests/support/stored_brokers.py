"""`onelog serve` in a process of its own, whose streams and metadata lie in an object store."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

START_S = 90.0
PROTOCOLS = ("mqtt", "kafka", "amqp", "admin")


class StoredBroker:
    """A server; its ports are known when it is ready."""

    def __init__(self, data: Path, url: str, options: dict[str, str], *more: str) -> None:
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        chosen = [f"listeners.{name}.port=0" for name in PROTOCOLS]
        chosen += [
            "listeners.amqp_management.enabled=false",
            f"store.url={url}",
            "store.deadline_ms=5000",
            "store.options=" + json.dumps([f"{name}={value}" for name, value in options.items()]),
            "defaults.stream.engine=object",
            "metadata.url=store",
            "object.linger_ms=20",
            "main.partitions=2",
            *more,
        ]
        command = [sys.executable, "-m", "onelog", "serve", f"--data={data}"]
        self.process = subprocess.Popen(
            [*command, *(f"--set={row}" for row in chosen)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.ports: dict[str, int] = {}
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"\b(mqtt|kafka|amqp|admin)\b.*?:(\d+)", line)
            if found:
                self.ports.setdefault(found[1], int(found[2]))
            if line.strip().startswith("kernel"):
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> StoredBroker:
        assert self._ready.wait(START_S), self.output
        assert self.process.poll() is None, self.output
        return self

    @property
    def output(self) -> str:
        return "".join(self.lines)[-5000:]

    def health(self) -> tuple[int, str]:
        """What a probe of readiness gets."""
        url = f"http://127.0.0.1:{self.ports['admin']}/health/ready"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def command(self, *words: str, text: str = "") -> str:
        """Run a command of `onelog` on this server."""
        done = subprocess.run(
            [sys.executable, "-m", "onelog", *words, f"--data={self.data}"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self.drain()

    def drain(self) -> None:
        """Read what a process that ended has left to say."""
        self._reading.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@contextlib.contextmanager
def stored_broker(
    data: Path, url: str, options: dict[str, str], *more: str
) -> Iterator[StoredBroker]:
    broker = StoredBroker(data, url, options, *more)
    try:
        yield broker.wait_ready()
    finally:
        broker.kill()
