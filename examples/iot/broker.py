"""The broker: `onelog serve` in a process of its own, on free ports and an empty data directory."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from plan import Ports

LISTENERS = ("admin", "mqtt", "kafka", "amqp")


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[Ports]:
    command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder / "data")]
    for name in LISTENERS:
        command += ["--set", f"listeners.{name}.port=0"]  # any that is free
    with (
        (folder / "broker.log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield _read_ports(process, folder / "broker.log")
        finally:
            process.terminate()
            process.wait(30)


def _read_ports(process: subprocess.Popen[str], log: Path) -> Ports:
    """It prints what listens where as soon as it is ready."""
    assert process.stdout is not None
    found: dict[str, int] = {}
    for line in process.stdout:
        row = re.match(r" +(\w+) +\w+://[\w.]+:(\d+)", line)
        if row:
            found[row[1]] = int(row[2])
        if "kernel" in line:
            return Ports(found["mqtt"], found["kafka"], found["amqp"], found["admin"])
    raise SystemExit(f"the broker did not start:\n{log.read_text()}")


def stored_records(ports: Ports, stream: str = "main") -> int:
    """How many records a stream of the log holds, from the admin API."""
    url = f"http://127.0.0.1:{ports.admin}/api/v1/streams/{stream}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return int(json.load(answer)["stream"]["records"])
