"""Brokers and load of the views' benchmark: one broker with all protocols, one load for all.

Rules: the load is `viewload.c`: publishers of one protocol, subscribers of all of them, every
message acknowledged. A run that lost or doubled a message, or did not end in time, fails.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import amqp_load
from bench.mqtt import free_port, process_of
from bench.report import ROOT

LOAD = ROOT / "build" / "viewload"
PAYLOAD_BYTES = 256
PUBLISHERS = 16
GRACE_S = 60.0

Run = dict[str, float]


class Target(NamedTuple):
    """A broker that runs."""

    mqtt: int
    kafka: int
    amqp: int
    pids: tuple[int, ...]

    def written_bytes(self) -> int:
        """What its processes have written to the disk, pages that were written again included."""
        found = 0
        for pid in self.pids:
            text = Path(f"/proc/{pid}/io").read_text()
            match = re.search(r"^write_bytes: (\d+)", text, re.MULTILINE)
            assert match is not None, "the system does not tell what a process writes"
            found += int(match.group(1))
        return found


def build() -> None:
    """Compile the load generator."""
    LOAD.parent.mkdir(exist_ok=True)
    source = ROOT / "bench" / "viewload.c"
    subprocess.run(["cc", "-O2", "-msse4.2", "-o", LOAD, source], check=True)


@contextlib.contextmanager
def onelog(folder: Path, *settings: str) -> Iterator[Target]:
    """Our broker; its durability is `fsync` unless the settings say otherwise."""
    mqtt, kafka, amqp, admin = (free_port() for _ in range(4))
    values = (
        f"listeners.mqtt.port={mqtt}",
        f"listeners.kafka.port={kafka}",
        f"listeners.amqp.port={amqp}",
        f"listeners.admin.port={admin}",
        "listeners.mqtt_ws.enabled=false",
        "kafka.groups.initial_rebalance_delay_ms=0",
        'limits.page_cache_bytes="256MiB"',
        *settings,
    )
    flags = [part for value in values for part in ("--set", value)]
    command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder), *flags]
    with process_of(command, mqtt) as pid:
        yield Target(mqtt, kafka, amqp, (pid,))


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[Target | None]:
    """The peer; None where it is not installed."""
    with amqp_load.rabbitmq(folder) as found:
        yield None if found is None else Target(0, 0, found.port, tuple(found.pids()))


def load(
    target: Target,
    publisher: str,
    subscribers: str,
    topic: str,
    options: Sequence[str],
    within_s: float,
    before: Sequence[str] = (),
) -> Run:
    """One run; a letter is a client, as `viewload.c` says. `before` stands before its command."""
    ports = f"{target.mqtt}:{target.kafka}:{target.amqp}"
    extra = f"pub={publisher} subs={subscribers} ports={ports} topic={topic}"
    command = [
        *before, str(LOAD), "-X", extra, "-S", str(len(subscribers)), "-q", "1",
        "-l", str(PAYLOAD_BYTES), "-c", ",".join(map(str, target.pids)), "-t", str(within_s),
        *options,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=within_s + GRACE_S, check=False
    )
    said = f"viewload {extra} {' '.join(options)}"
    if done.returncode:
        raise SystemExit(f"{said} failed: {done.stderr.strip()}")
    answer: Run = json.loads(done.stdout.strip().splitlines()[-1])
    if answer["lost"] or answer["dup"] or answer["left"]:
        raise SystemExit(
            f"{said}: lost {answer['lost']}, doubled {answer['dup']}, not there in time"
            f" {answer['left']}"
        )
    return answer
