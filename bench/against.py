"""`make bench-against BASE=rev`: this tree beside another commit of it, in turns, in one run.

Rules: each case runs on a broker of the base and on one of this tree, over and over: A, B, A, B.
The figure is what one second of the broker's CPU moves, because the machine's other work disturbs
it least. Other work only ever slows a round down, so the value compares the best quarter of the
rounds of both, and who goes first changes from round to round. The base is checked out below
`build` and its kernel is compiled there once. `--base-tree` takes a folder that is there already.
`--base-set` and `--set` give one side another setting; with `--base-tree .` nothing else differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import amqp, amqp_load, kafka, kafka_load, mqtt
from bench.listeners import closed_but
from bench.report import ROOT, Row, data_dir, median, report, row, say

BAR = 0.97
ROUNDS = 12
FOLDER = ROOT / "build" / "against"

PerCpu = Callable[[int, int], float]
"""One round on the broker of a port and a pid: what a second of its CPU moves."""


def tree_of(base: str) -> Path:
    """The checked out base, with its kernel compiled."""
    name = subprocess.check_output(["git", "rev-parse", "--short", base], cwd=ROOT, text=True)
    folder = FOLDER / name.strip()
    if not folder.exists():
        say(f"checking out {base} and compiling its kernel")
        FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--detach", folder, base], cwd=ROOT, check=True)
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        required = {**os.environ, "ONELOG_REQUIRE_NATIVE": "1"}
        subprocess.run(build, cwd=folder, env=required, check=True, stdout=subprocess.DEVNULL)
    return folder


@contextlib.contextmanager
def broker(
    tree: Path, protocol: str, durability: str, settings: Sequence[str] = ()
) -> Iterator[tuple[int, int]]:
    """A broker of a tree that serves one protocol; its port and pid."""
    port = mqtt.free_port()
    values = [
        f"listeners.{protocol}.port={port}",
        f"listeners.admin.port={mqtt.free_port()}",
        *closed_but(protocol),
        f'defaults.stream.durability="{durability}"',
        'limits.page_cache_bytes="256MiB"',
        *settings,
    ]
    if protocol == "mqtt":
        values += ["mqtt.limits.inflight=65535", "mqtt.limits.connects_per_second=0"]
    flags = [part for value in values for part in ("--set", value)]
    path = f"{tree / 'src'}{os.pathsep}{tree}"
    with data_dir("against") as folder:
        command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder), *flags]
        environment = {**os.environ, "PYTHONPATH": path}
        with mqtt.process_of(command, port, environment) as pid:
            yield port, pid


def mqtt_case(options: tuple[str, ...]) -> PerCpu:
    def case(port: int, pid: int) -> float:
        run = mqtt.load(mqtt.Running(port, pid), options)
        return run["recv_s"] / max(run["broker_cpu"], 0.01)

    return case


def amqp_case(options: tuple[str, ...]) -> PerCpu:
    def case(port: int, pid: int) -> float:
        target = amqp_load.Target(port, pid)
        return amqp.per_cpu(amqp_load.load(target, "-m", "1", *options, measured_s=1.5))

    return case


def kafka_case(of: kafka.Case) -> PerCpu:
    def case(port: int, pid: int) -> float:
        return of(kafka_load.Target("onelog", port, pid), False).mb_per_cpu

    return case


def cases() -> Iterator[tuple[str, str, str, PerCpu]]:
    """Name, protocol, durability and what one round does."""
    for name, (options, _os, fsync) in mqtt.CASES.items():
        yield f"MQTT os, {name}", "mqtt", "os", mqtt_case(options)
        if fsync is not None:
            yield f"MQTT fsync, {name}", "mqtt", "fsync", mqtt_case(options)
    for name, (options, *_bars) in amqp.CASES.items():
        yield f"AMQP fsync, {name}", "amqp", "fsync", amqp_case(options)
    for name, of in kafka.THROUGHPUT.items():
        yield f"Kafka os, {name}", "kafka", "os", kafka_case(of)


def best(figures: list[float]) -> float:
    """The middle of the best quarter: what was disturbed least, without the luckiest round."""
    top = sorted(figures, reverse=True)
    return median(top[: max(1, len(top) // 4)])


def measure(
    base: Path, words: list[str], rounds: int, settings: tuple[Sequence[str], Sequence[str]]
) -> list[Row]:
    """Every case whose name has all the words; `settings` of the base and of this tree."""
    rows = []
    for name, protocol, durability, case in cases():
        if not all(word.lower() in name.lower() for word in words):
            continue
        was: list[float] = []
        now: list[float] = []
        with (
            broker(base, protocol, durability, settings[0]) as old,
            broker(ROOT, protocol, durability, settings[1]) as new,
        ):
            case(*old), case(*new)  # both are warm
            sides = [(was, old), (now, new)]
            for _round in range(rounds):
                for figures, running in sides:
                    figures.append(case(*running))
                sides.reverse()
        ratio = best(now) / max(best(was), 1.0)
        rows.append(row(name, ratio, "ratio", BAR, peer=("base, per CPU-second", best(was))))
        say(f"{name}: {ratio:.3f} (medians {median(now) / max(median(was), 1.0):.3f})")
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.against", description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases whose name has all of these")
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--base-tree", type=Path, help="a folder with it, kernel compiled")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--base-set", action="append", default=[], help="a setting of the base")
    parser.add_argument("--set", action="append", default=[], help="a setting of this tree")
    chosen = parser.parse_args(arguments)
    mqtt.build_load()
    amqp_load.build()
    kafka_load.build()
    base = chosen.base_tree or tree_of(chosen.base)
    settings = chosen.base_set, chosen.set
    rows = measure(base.resolve(), chosen.words, chosen.rounds, settings)
    report("against", rows, *chosen.words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
