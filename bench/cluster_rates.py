"""What three replicas cost: factor 3 beside factor 1, and beside three of Apache Kafka.

Rules: producers ask for `acks=all`, and two of three replicas have to be in sync. Sides take turns,
and the figure is the median of the rounds. CPU is that of all three nodes and of etcd. A run that
failed a message counts as 0. Factor 1 is another cluster of three nodes, which runs beside it.
"""

from __future__ import annotations

import json
import subprocess
from typing import NamedTuple

from bench.cluster_nodes import Nodes, Place
from bench.kafka_load import RAWLOAD, RDLOAD, RUN_S
from bench.report import Row, median, row, say

RATE_BAR, CPU_BAR, ACK_BAR, KAFKA_BAR = 0.20, 0.22, 2.5, 1.5
RECORD_BYTES = 1024
SIZE = ("-s", str(RECORD_BYTES))
RAW = ("-P", "1", "-C", "0", "-a", "-1", *SIZE)
CASES: dict[str, tuple[str, ...]] = {
    "librdkafka": (str(RDLOAD), "-m", "produce", "-X", "acks=all", *SIZE),
    "16 KB batches": (str(RAWLOAD), *RAW),
    "one record, 10 producers": (str(RAWLOAD), "-P", "10", "-C", "0", "-a", "-1", "-b", "1", *SIZE),
}
LONE = (str(RAWLOAD), *RAW, "-b", "1", "-R", "1")
WARM_UP_S = "6"


class Load(NamedTuple):
    """What one run moved."""

    records_s: float
    cpu: float
    p50_us: float

    @property
    def per_cpu(self) -> float:
        """Records per second of CPU."""
        return self.records_s / max(self.cpu, 0.01)


def run(nodes: Nodes, place: Place, command: tuple[str, ...], seconds: tuple[str, str]) -> Load:
    """One run of a generator against the leader of a topic."""
    port = nodes.servers[place.leader].port
    times = ("-t", seconds[0], "-w", seconds[1])
    where = ("-p", str(port), "-T", place.topic, "-c", nodes.pids)
    done = subprocess.run(
        [*command, *where, *times], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    if done.returncode or not done.stdout:
        say(f"{nodes.name} FAILED: {' '.join(command)}: {done.stderr.strip()[-500:]}")
        return Load(0.0, 1.0, float("inf"))
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if answer.get("failed"):
        say(f"{nodes.name} FAILED {answer['failed']} MESSAGES: {' '.join(command)}")
        return Load(0.0, answer["broker_cpu"], float("inf"))
    records_s = answer.get("in_rec_s", answer.get("in_msg_s", 0.0))
    return Load(records_s, answer["broker_cpu"], answer["p50_us"])


def once(nodes: Nodes, command: tuple[str, ...], seconds: tuple[str, str], *, flush: bool) -> Load:
    """One run on a fresh topic."""
    with nodes.topic(flush=flush) as place:
        return run(nodes, place, command, seconds)


def warm_up(peer: Nodes) -> None:
    """Let the JVMs compile what the cases use."""
    say("warming Kafka's JVMs up")
    for command in (*CASES.values(), LONE):
        once(peer, command, (WARM_UP_S, "0"), flush=False)


def measure(
    policy: str,
    lone: Nodes,
    ours: Nodes,
    peer: Nodes | None,
    *,
    rounds: int,
    seconds: tuple[str, str],
) -> list[Row]:
    """All cases of one level; `lone` has one replica of everything."""
    flush = policy == "fsync"
    sides = [side for side in (lone, ours, peer) if side is not None]

    def turns(command: tuple[str, ...]) -> list[list[Load]]:
        loads: list[list[Load]] = [[], [], []]
        for _round in range(rounds):
            for side, found in zip(sides, loads, strict=False):
                found.append(once(side, command, seconds, flush=flush))
        return loads

    rows: list[Row] = []
    for name, command in CASES.items():
        rows += _rates(f"{policy}, {name}", *turns(command))
    return rows + _acks(policy, *turns(LONE))


def _rates(name: str, one: list[Load], three: list[Load], theirs: list[Load]) -> list[Row]:
    rate1, rate3 = (median([load.records_s for load in side]) for side in (one, three))
    cpu1, cpu3 = (median([load.per_cpu for load in side]) for side in (one, three))
    said = f"{name}: {rate1:,.0f} msg/s with one replica, {rate3:,.0f} with three"
    rows = [
        row(f"{name}: factor 3, msg/s", rate3 / max(rate1, 1), "ratio", RATE_BAR,
            peer=("our factor 1, msg/s", rate1)),
        row(f"{name}: factor 3, msg per CPU-second", cpu3 / max(cpu1, 1), "ratio", CPU_BAR,
            peer=("our factor 1, msg per CPU-second", cpu1)),
    ]  # fmt: skip
    if theirs:
        mb = RECORD_BYTES / 1e6
        rate = median([load.records_s for load in theirs]) * mb
        cpu = median([load.per_cpu for load in theirs]) * mb
        said += f", Kafka {rate / mb:,.0f}; per CPU-second {cpu3:,.0f} beside {cpu / mb:,.0f}"
        rows += [
            row(f"{name}: three nodes, MB/s", rate3 * mb / max(rate, 0.001), "ratio",
                peer=("Kafka, MB/s", rate)),
            row(f"{name}: three nodes, MB per CPU-second", cpu3 * mb / max(cpu, 0.001), "ratio",
                KAFKA_BAR, peer=("Kafka, MB per CPU-second", cpu)),
        ]  # fmt: skip
    say(said)
    return rows


def _acks(policy: str, one: list[Load], three: list[Load], theirs: list[Load]) -> list[Row]:
    was, now = (median([load.p50_us for load in side]) for side in (one, three))
    name = f"{policy}, answer of a lone record, p50"
    say(f"{name}: {was:,.0f} us with one replica, {now:,.0f} with three")
    bar = ACK_BAR if policy == "fsync" else None
    said = ("our factor 1, us", was)
    rows = [row(f"{name}: factor 3", now / max(was, 1), "ratio", bar, low=True, peer=said)]
    if theirs:
        said = ("Kafka, us", median([load.p50_us for load in theirs]))
        rows.append(
            row(f"{name}: three nodes", now / max(said[1], 1), "ratio", low=True, peer=said)
        )
    return rows
