"""Where and when a benchmark ran: the machine, the versions of all sides, the commit.

Rules: every fact is read from the machine, none is assumed: what cannot be found out is left out.
No path and no host name is among them. A run's facts lie beside its rows (`NAME.origin.json`).
`BENCH_NOTE` in the environment is what the page says of a run that was not an ordinary one.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SYNCS = 30
SYNCED_BYTES = 4096

Origin = dict[str, Any]


def measured_now(folder: Path) -> Origin:
    """The facts of a run that just ended; its disk is that of the folder."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "commit": commit(),
        "machine": machine(folder),
        "versions": versions(),
        "note": os.environ.get("BENCH_NOTE", ""),
    }


def commit() -> str:
    """The commit that the sources are of; a plus sign says that sources were changed since."""
    told = _said("git", "rev-parse", "--short=10", "HEAD")
    if told is None:
        return "not known"
    changed = _said("git", "status", "--porcelain", "--untracked-files=no", "src", "bench")
    return told + ("+" if changed else "")


def machine(folder: Path) -> dict[str, Any]:
    """Processor, memory, kernel, disk."""
    found: dict[str, Any] = {"cores": os.cpu_count(), "system": f"Linux {platform.release()}"}
    with contextlib.suppress(OSError, AttributeError):
        text = Path("/proc/cpuinfo").read_text()
        found["processor"] = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE).group(1)  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError):
        text = Path("/proc/meminfo").read_text()
        total = int(re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE).group(1))  # type: ignore[union-attr]
        found["memory_gib"] = round(total / 2**20, 1)
    with contextlib.suppress(OSError):
        found["sync_us"] = sync_us(folder)
    return found


def sync_us(folder: Path) -> float:
    """The median time of a write of 4 KB and its fdatasync, in space that is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(SYNCED_BYTES * SYNCS))
        file.flush()
        os.fsync(file.fileno())
        for number in range(SYNCS):
            start = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * SYNCED_BYTES, number * SYNCED_BYTES)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - start)
    return round(statistics.median(took) * 1e6)


def versions() -> dict[str, str]:
    """Of OneLog's interpreter and of every peer that is installed here."""
    found = {"Python": platform.python_version()}
    looks: dict[str, Callable[[], str | None]] = {
        "Mosquitto": _mosquitto,
        "RabbitMQ": _rabbitmq,
        "Apache Kafka": _kafka,
        "Spark": lambda: metadata.version("pyspark"),
    }
    for name, look in looks.items():
        with contextlib.suppress(OSError, metadata.PackageNotFoundError):
            told = look()
            if told:
                found[name] = told
    return found


def _mosquitto() -> str | None:
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    return _match(r"version (\S+)", _said(program, "-h") or "") if program else None


def _rabbitmq() -> str | None:
    folders = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    return _match(r"-([\d.]+)$", folders[-1].name) if folders else None


def _kafka() -> str | None:
    jars = sorted((ROOT / "build" / "kafka" / "broker").glob("kafka_2.*.jar"))
    return _match(r"-([\d.]+)\.jar$", jars[-1].name) if jars else None


def _match(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found.group(1) if found else None


def _said(*command: str) -> str | None:
    """What a program prints; None where it cannot be run. Mosquitto's help ends with an error."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 or command[0] != "git" else None


def write(path: Path, origin: Origin) -> None:
    """Beside the rows."""
    path.write_text(json.dumps(origin, indent=1) + "\n")
