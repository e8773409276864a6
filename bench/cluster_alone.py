"""What the code of the cluster costs a node that is alone: on etcd, beside one without cluster.

Rules: both brokers run all the time and are loaded in turns. The figure is µs of the broker's CPU
for a message, the least of the rounds: other work of the machine only ever adds to it. The CPU of
etcd does not count: nothing of a message goes there.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench import amqp_load, kafka_load, mqtt
from bench.cluster_nodes import OneLogNode, etcd, node_settings
from bench.report import Row, row, say

BAR = 1.02
RUN_S = 120
PAIRS = ("-P", "100", "-S", "100", "-x", "-W", "20")
Port = Callable[[OneLogNode], int]
RAW = (str(kafka_load.RAWLOAD), "-C", "0", "-a", "-1", "-s", "1024")
CASES: dict[str, tuple[tuple[str, ...], Port, str]] = {
    # name: (generator, port of it, what its answer calls a message)
    "MQTT, 100 pairs, QoS 1": (
        (str(mqtt.LOAD), "-l", "256", "-q", "1", *PAIRS),
        lambda node: node.mqtt,
        "recv_s",
    ),
    "AMQP, 100 pairs": (
        (str(amqp_load.LOAD), "-l", "256", "-q", "1", "-m", "1", *PAIRS),
        lambda node: node.amqp,
        "recv_s",
    ),
    "Kafka, 16 KB batches": ((*RAW, "-P", "1"), lambda node: node.port, "in_rec_s"),
    "Kafka, one record, 10 producers": (
        (*RAW, "-P", "10", "-b", "1"),
        lambda node: node.port,
        "in_rec_s",
    ),
}


def measure(folder: Path, *, rounds: int, seconds: tuple[str, str]) -> list[Row]:
    """Every protocol."""
    mqtt.build_load()
    amqp_load.build()
    plain = 'defaults.stream.durability="fsync"'
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(etcd(folder / "etcd"))
        alone = node_settings(store.urls, 1, "fsync", 1)
        sides = [
            OneLogNode(folder / "without", (plain,)),
            OneLogNode(folder / "on-etcd", alone),
        ]
        for node in sides:
            node.start()
            stack.callback(node.stop)
        for node in sides:
            assert node.process is not None
            for port in (node.port, node.mqtt, node.amqp):
                mqtt.wait_for(port, node.process)
        for name, (command, port_of, unit) in CASES.items():
            costs: list[list[float]] = [[], []]
            for _round in range(rounds):
                for node, found in zip(sides, costs, strict=True):
                    found.append(cost_us(node.pid, port_of(node), command, unit, seconds))
            was, now = map(min, costs)
            say(f"{name}: {was:.2f} us without cluster, {now:.2f} us on etcd")
            peer = ("without cluster, us of CPU per message", was)
            rows.append(row(f"one node, {name}", now / was, "ratio", BAR, low=True, peer=peer))
    return rows


def cost_us(
    pid: int, port: int, command: tuple[str, ...], unit: str, seconds: tuple[str, str]
) -> float:
    """µs of the broker's CPU for a message."""
    times = ("-t", seconds[0], "-w", seconds[1])
    done = subprocess.run(
        [*command, "-p", str(port), "-c", str(pid), *times],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    if done.returncode or not done.stdout:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if answer.get("lost") or answer.get("dup"):
        say(f"LOST {answer['lost']}, DOUBLED {answer['dup']}: {' '.join(command)}")
        return float("inf")
    return float(answer["broker_cpu"] / max(answer[unit], 1e-9) * 1e6)
