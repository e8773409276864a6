"""`make bench-amqp`: AMQP 0-9-1 against RabbitMQ, both on this machine, in turns, in one run.

Rules: persistent messages with confirms to durable queues, ours with durability `fsync`; messages
received a second, and per second of the broker's CPU, as ratios of the medians of the rounds. Both
sides get the same declarations: classic queues, then quorum queues. `--quick` runs one round with a
shorter backlog, `--backlog N` chooses how many messages the long queue holds.
"""

from __future__ import annotations

import argparse
import sys

from bench import amqp_load, amqp_scale
from bench.amqp_load import Run, Target, load
from bench.report import Row, data_dir, median, report, row, say

ROUNDS, QUICK_ROUNDS = 3, 1
MEASURED_S, QUICK_MEASURED_S = 2.0, 1.5
BACKLOG, QUICK_BACKLOG = 10_000_000, 4_000_000
QUEUES = {"classic": ("-m", "1"), "quorum": ("-m", "5")}
PAIRS = ("-P", "100", "-S", "100", "-x")
CASES: dict[str, tuple[tuple[str, ...], float, float]] = {
    # name: (options of the load, bar of messages a second, bar of messages per CPU-second)
    "1 to 1": (("-I", "1000"), 12, 12),
    "100 pairs, window 20": ((*PAIRS, "-W", "20"), 14, 14),
    "100 pairs, one message each": ((*PAIRS, "-W", "1", "-l", "64"), 6, 8),
}
PACED = ("-r", "1000")
P99_BAR = 1.0


def per_cpu(run: Run) -> float:
    """Messages per second of the broker's CPU."""
    return run["recv_s"] / max(run["broker_cpu"], 0.01)


def in_turns(
    ours: Target, peer: Target | None, options: tuple[str, ...], rounds: int, measured_s: float
) -> tuple[list[Run], list[Run]]:
    """The rounds of a case on both brokers."""
    mine: list[Run] = []
    theirs: list[Run] = []
    for _round in range(rounds):
        if peer is not None:
            theirs.append(load(peer, *options, measured_s=measured_s))
        mine.append(load(ours, *options, measured_s=measured_s))
    return mine, theirs


def compare(
    ours: Target, peer: Target | None, queue: str, rounds: int, measured_s: float
) -> list[Row]:
    """The throughput cases and the latency with one type of queue."""
    rows: list[Row] = []
    for case, (options, rate_bar, cpu_bar) in CASES.items():
        name = f"{queue}, {case}"
        turns = in_turns(ours, peer, (*QUEUES[queue], *options), rounds, measured_s)
        rates, costs = ([[of(run) for run in runs] for runs in turns] for of in (received, per_cpu))
        rows.append(ratio(name, "msg/s", rates, rate_bar))
        rows.append(ratio(name, "msg per CPU-second", costs, cpu_bar))
    turns = in_turns(ours, peer, (*QUEUES[queue], *PACED), rounds, measured_s)
    late = [[run["p99_us"] for run in runs] for runs in turns]
    rows.append(ratio(f"{queue}, p99 at 1 000 msg/s", "us", late, P99_BAR, low=True))
    return rows


def received(run: Run) -> float:
    """Messages delivered a second."""
    return run["recv_s"]


def ratio(name: str, unit: str, turns: list[list[float]], bar: float, *, low: bool = False) -> Row:
    """Our figure over RabbitMQ's; as it is where RabbitMQ is missing."""
    mine, theirs = turns
    value = median(mine)
    if not theirs:
        say(f"{name}: {value:,.0f} {unit}")
        return row(name, value, unit)
    peer_value = median(theirs)
    say(f"{name}: {value:,.0f} {unit} beside {peer_value:,.0f}")
    if not peer_value:
        return row(f"{name}, RabbitMQ failed", value, unit)
    said = (f"RabbitMQ, {unit}", peer_value)
    return row(f"{name}: {unit}", value / peer_value, "ratio", bar, low=low, peer=said)


def arguments(words: list[str]) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="bench.amqp", description="AMQP against RabbitMQ")
    parser.add_argument("--quick", action="store_true", help="one round, short backlog")
    parser.add_argument("--backlog", type=int, metavar="N", help="messages of the long queue")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Measure everything."""
    asked = arguments(words)
    rounds, measured_s = (QUICK_ROUNDS, QUICK_MEASURED_S) if asked.quick else (ROUNDS, MEASURED_S)
    count = asked.backlog or (QUICK_BACKLOG if asked.quick else BACKLOG)
    amqp_load.build()
    rows: list[Row] = []
    with data_dir("amqp") as folder:
        with (
            amqp_load.rabbitmq(folder / "rabbitmq") as peer,
            amqp_load.onelog(folder / "onelog") as ours,
        ):
            for queue in QUEUES:
                rows += compare(ours, peer, queue, rounds, measured_s)
        rows += amqp_scale.fan_out(folder, rounds, measured_s)
        rows += amqp_scale.backlog(folder, count, rounds)
    report("amqp", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
