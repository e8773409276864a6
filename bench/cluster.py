"""`make bench-cluster`: three nodes beside one, and beside three of Apache Kafka, in one run.

Rules: every bar is a ratio of sides that run on this machine in turns, or the time until a
producer is answered again. All nodes share the machine, so msg/s of three nodes says what they cost
here and not what three machines do. A part that fails is named, and the others are reported all the
same. `--quick` is for a busy machine: one short round, few kills, etcd away for 15 s. Words choose
parts: `ARGS="--quick rates kills"`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import cluster_alone, cluster_losses, cluster_nodes, cluster_rates, kafka_load
from bench.cluster_nodes import Nodes
from bench.report import Row, data_dir, report, say

PARTS = ("alone", "rates", "kills", "drain", "etcd")


class Extent(NamedTuple):
    """How much is measured."""

    rounds: int
    seconds: tuple[str, str]
    """Measured, and before that for a warm-up."""
    kills: int
    peer_kills: int
    drains: int
    away_s: float


FULL = Extent(3, ("3", "1"), 7, 3, 3, 60.0)
QUICK = Extent(1, ("2", "0.7"), 3, 1, 1, 15.0)


class Measured:
    """The rows that were found, and the parts that failed."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.failed: list[str] = []

    def add(self, part: str, work: Callable[[], list[Row]]) -> None:
        """Measure a part."""
        say(part)
        try:
            self.rows += work()
        except (Exception, SystemExit):  # noqa: BLE001 - the other parts are measured
            traceback.print_exc()
            self.failed.append(part)


def rates(folder: Path, policy: str, extent: Extent, peer: Nodes | None) -> list[Row]:
    """One level, with clusters of its own."""
    with (
        cluster_nodes.onelog(folder / f"{policy}-1", policy, 1) as (lone, _),
        cluster_nodes.onelog(folder / f"{policy}-3", policy) as (ours, _),
    ):
        return cluster_rates.measure(
            policy, lone, ours, peer, rounds=extent.rounds, seconds=extent.seconds
        )


def losses(folder: Path, part: str, extent: Extent, peer: Nodes | None) -> list[Row]:
    """What happens when something is away: each part begins with a whole cluster."""
    with cluster_nodes.onelog(folder / part, "fsync") as (ours, store):
        if part == "etcd":
            return cluster_losses.measure_etcd(ours, store, extent.away_s)
        if part == "drain":
            return cluster_losses.measure_drains(ours, peer, count=extent.drains)
        return cluster_losses.measure_kills(
            ours, peer, count=extent.kills, peer_count=extent.peer_kills
        )


def main(arguments: list[str]) -> int:
    """Measure and report; the exit code."""
    parser = argparse.ArgumentParser(prog="bench.cluster", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--alone", action="store_true", help="leave Apache Kafka out")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    parts = chosen.parts or list(PARTS)
    extent, found = QUICK if chosen.quick else FULL, Measured()
    kafka_load.build()
    with data_dir("cluster") as folder, contextlib.ExitStack() as stack:
        if "alone" in parts:
            work = partial(
                cluster_alone.measure, folder / "alone",
                rounds=3 * extent.rounds, seconds=extent.seconds,
            )  # fmt: skip
            found.add("alone", work)
        if "etcd" in parts:
            found.add("etcd", partial(losses, folder, "etcd", extent, None))
        peer = None
        if not chosen.alone and {"rates", "kills", "drain"} & set(parts):
            say("starting three of Apache Kafka")
            peer = stack.enter_context(cluster_nodes.apache(folder / "apache"))
        if "rates" in parts:
            if peer is not None:
                cluster_rates.warm_up(peer)
            for policy in ("os", "fsync"):
                work = partial(rates, folder, policy, extent, peer)
                found.add(f"rates, {policy}", work)
        for part in ("drain", "kills"):
            if part in parts:
                found.add(part, partial(losses, folder, part, extent, peer))
    report("cluster", found.rows, *chosen.parts)
    if found.failed:
        say(f"these parts failed: {', '.join(found.failed)}")
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
