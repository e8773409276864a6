"""`make bench-lockstep BASE=rev`: the broker's own CPU per message, beside another commit of it.

Rules: no socket and no second process: connections of a hub are fed bytes and what they write is
counted (`lockstep_child.py`). So a system call costs nothing here, and a few per cent of Python are
seen even on a busy machine: the value is the quickest round of many, of base and of this tree in
turns. What a whole message costs is `make bench-against`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench.against import tree_of
from bench.report import ROOT, Row, report, row, say

BAR = 1.03
TURNS = 5
CHILD = Path(__file__).with_name("lockstep_child.py")
CASES = {
    # name: arguments of the child: protocol, QoS, messages of a read, rounds
    "MQTT QoS 0, one message a read": ("mqtt", "0", "1", "600"),
    "MQTT QoS 1, one message a read": ("mqtt", "1", "1", "600"),
    "MQTT QoS 0, 20 messages a read": ("mqtt", "0", "20", "600"),
    "MQTT QoS 1, 20 messages a read": ("mqtt", "1", "20", "600"),
    "AMQP, one message a read": ("amqp", "1", "1", "1000"),
    "AMQP, 20 messages a read": ("amqp", "1", "20", "400"),
    "Kafka, batches of 1": ("kafka", "0", "1", "400"),
    "Kafka, batches of 200": ("kafka", "0", "200", "200"),
}


def cost(tree: Path, arguments: tuple[str, ...]) -> float:
    """The µs of CPU of a message in one run."""
    path = f"{tree / 'src'}{os.pathsep}{tree}"
    done = subprocess.run(
        [sys.executable, CHILD, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{tree}, {arguments}: {done.stderr.strip()[-2000:]}")
    return float(done.stdout.split()[-1])


def measure(base: Path, words: list[str], turns: int) -> list[Row]:
    """Every case whose name has all the words."""
    rows = []
    for name, arguments in CASES.items():
        if not all(word.lower() in name.lower() for word in words):
            continue
        was, now = [], []
        for _turn in range(turns):
            was.append(cost(base, arguments))
            now.append(cost(ROOT, arguments))
        ratio = min(now) / min(was)
        say(f"{name}: {min(was):.3f} to {min(now):.3f} us, {ratio:.3f}")
        peer = ("base, us per message", min(was))
        rows.append(row(name, ratio, "ratio of us per message", BAR, low=True, peer=peer))
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.lockstep", description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases whose name has all of these")
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--base-tree", type=Path, help="a folder with it, kernel compiled")
    parser.add_argument("--turns", type=int, default=TURNS)
    chosen = parser.parse_args(arguments)
    base = chosen.base_tree or tree_of(chosen.base)
    report("lockstep", measure(base.resolve(), chosen.words, chosen.turns))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
