"""`make bench-lockstep BASE=rev`: the broker's own CPU per message, beside another commit of it.

Rules: no socket and no second process: connections of a hub are fed bytes and what they write is
counted (`lockstep_child.py`). So a system call costs nothing here, and a few per cent of Python are
seen even on a busy machine: the value is the quickest round of many, of base and of this tree in
turns. What a whole message costs is `make bench-against`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.report import Row, row, say
from bench.turns import Arguments, Figures, run_cases, run_child

BAR = 1.03
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


def cost(tree: Path, arguments: Arguments) -> Figures:
    """The µs of CPU of a message in one run."""
    return run_child(tree, CHILD, arguments, 1)


def judge(case: str, was: list[Figures], now: list[Figures]) -> list[Row]:
    """The quickest of each, as a ratio."""
    before, after = min(was)[0], min(now)[0]
    ratio = after / before
    say(f"{case}: {before:.3f} to {after:.3f} us, {ratio:.3f}")
    peer = ("base, us per message", before)
    return [row(case, ratio, "ratio of us per message", BAR, low=True, peer=peer)]


if __name__ == "__main__":
    sys.exit(run_cases("lockstep", __doc__, CASES, cost, judge, sys.argv[1:]))
