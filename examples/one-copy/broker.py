"""The broker: `onelog serve` in a process of its own, with a bucket, and a clock maybe ahead."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

LATER = Path(__file__).resolve().parent / "later.py"


class Ports(NamedTuple):
    """Where it listens."""

    mqtt: int
    kafka: int
    admin: int


@contextlib.contextmanager
def running(folder: Path, days: int = 0) -> Iterator[Ports]:
    """A broker whose clock is so many days ahead."""
    settings = {
        "store.url": f"file://{folder / 'bucket'}",
        "listeners.admin.port": 0,
        "listeners.mqtt.port": 0,
        "listeners.kafka.port": 0,
        "listeners.amqp.port": 0,
    }
    command = [sys.executable, str(LATER), str(days), "serve", "--data", str(folder / "data")]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with (
        (folder / "broker.log").open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield _read_ports(process, folder / "broker.log")
        finally:
            process.terminate()
            process.wait(60)


def _read_ports(process: subprocess.Popen[str], log: Path) -> Ports:
    """It prints what listens where as soon as it is ready."""
    assert process.stdout is not None
    found: dict[str, int] = {}
    for line in process.stdout:
        row = re.match(r" +(\w+) +\w+://[\w.]+:(\d+)", line)
        if row:
            found[row[1]] = int(row[2])
        if "kernel" in line:
            return Ports(found["mqtt"], found["kafka"], found["admin"])
    raise SystemExit(f"the broker did not start:\n{log.read_text()}")


def ask(ports: Ports, path: str) -> dict[str, Any]:
    """Ask the admin API."""
    url = f"http://127.0.0.1:{ports.admin}/api/v1/{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found
