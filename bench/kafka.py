"""`make bench-kafka`: the Kafka protocol against Apache Kafka, both on this machine, in turns.

Rules: both with the same flush policy: page cache (ours `os`, Kafka's default), then a sync before
the answer (ours `fsync`, Kafka `flush.messages=1`). Ratios are of medians of rounds measured in
turns, after Kafka's JVM has had its warm-up. Arguments: `onelog` or `peer` runs one side only;
other words choose the throughput cases whose names hold one of them, and nothing else is measured.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from bench import kafka_load, kafka_scale
from bench.kafka_load import Run, Target, fresh_topic, rawload, rdload
from bench.report import Row, data_dir, median, report, row, say

SIDES = ("onelog", "peer")
ROUNDS = 3
TIMES = ("-t", "2", "-w", "0.7")
WARM_UP = ("-t", "6", "-w", "0")
PER_CPU_BAR, RATE_BAR = 1.5, 1.0
PER_CPU_BARS = {
    # name: bar of bytes per CPU-second, as a ratio, where it is not `PER_CPU_BAR`
    f"{load} {size} B": 1.8
    for load in ("librdkafka, both", "16 KB batches, consume")
    for size in (100, 1024)
}
# The consumer's own prefetch bound, not the broker, would be measured with the defaults.
EAGER = (
    "-X", "queued.min.messages=1000000", "-X", "queued.max.messages.kbytes=1000000",
    "-X", "fetch.queue.backoff.ms=5",
)  # fmt: skip

Case = Callable[[Target, bool], Run]
"""What one round does on one broker; the flag asks for a sync at every append."""


def rd(mode: str, size: int) -> Case:
    """librdkafka with its default batching."""

    def case(target: Target, flush: bool) -> Run:
        with fresh_topic(target, flush=flush) as topic:
            options = ("-s", str(size), *TIMES)
            if mode == "consume":
                rdload(target, topic, "-m", "produce", *options)
                return rdload(target, topic, "-m", "consume", *EAGER, *options)
            return rdload(target, topic, "-m", mode, *EAGER, *options)

    return case


def raw(mode: str, size: int) -> Case:
    """Prebuilt 16 KB batches, five requests in flight."""
    shapes = {"produce": ("-P", "1", "-C", "0"), "both": ("-P", "1", "-C", "1")}

    def case(target: Target, flush: bool) -> Run:
        with fresh_topic(target, flush=flush) as topic:
            options = ("-s", str(size), *TIMES)
            if mode == "consume":
                rawload(target, topic, *shapes["produce"], *options)
                return rawload(target, topic, "-P", "0", "-C", "1", "-z", *options)
            return rawload(target, topic, *shapes[mode], *options)

    return case


def single(target: Target, flush: bool) -> Run:
    """One record per request, ten producers."""
    with fresh_topic(target, flush=flush) as topic:
        return rawload(target, topic, "-P", "10", "-C", "0", "-b", "1", "-s", "100", *TIMES)


def paced(target: Target, flush: bool) -> Run:
    """A thousand messages a second, from produce to consume."""
    with fresh_topic(target, flush=flush) as topic:
        options = ("-s", "100", "-r", "1000", "-X", "linger.ms=0", "-t", "3", "-w", "1")
        return rdload(target, topic, "-m", "latency", *options)


THROUGHPUT: dict[str, Case] = {
    f"{load}, {mode} {size} B": make(mode, size)
    for load, make in (("librdkafka", rd), ("16 KB batches", raw))
    for mode in ("produce", "consume", "both")
    for size in (100, 1024)
}
SYNCED = tuple(name for name in THROUGHPUT if " produce " in name)


def rounds(
    case: Case, ours: Target | None, peer: Target | None, flush: bool
) -> tuple[list[Run], list[Run]]:
    """The case on both brokers, in turns."""
    mine: list[Run] = []
    theirs: list[Run] = []
    for _round in range(ROUNDS):
        if peer is not None:
            theirs.append(case(peer, flush))
        if ours is not None:
            mine.append(case(ours, flush))
    return mine, theirs


def compare(
    name: str,
    measured: tuple[list[Run], list[Run]],
    of: Callable[[Run], float],
    unit: str,
    bar: float,
    *,
    low: bool = False,
) -> Row:
    """One figure of a case as a ratio to Kafka's; as it is where one side is missing."""
    values = [median([of(run) for run in runs]) if runs else None for runs in measured]
    mine, theirs = values
    say(f"{name}, {unit}: " + " beside ".join("-" if v is None else f"{v:,.1f}" for v in values))
    if mine is None or theirs is None:
        shown = mine if mine is not None else theirs
        assert shown is not None
        return row(name, shown, unit)
    return row(f"{name}, {unit}", mine / theirs, "ratio", bar, low=low, peer=("Kafka", theirs))


def throughput(
    policy: str, ours: Target | None, peer: Target | None, words: list[str]
) -> list[Row]:
    """The throughput cases of one flush policy."""
    flush = policy == "fsync"
    rows: list[Row] = []
    for name, case in THROUGHPUT.items():
        if (flush and name not in SYNCED) or (words and not any(word in name for word in words)):
            continue
        measured = rounds(case, ours, peer, flush)
        label = f"{policy}, {name}"
        rows.append(compare(label, measured, lambda run: run.mb_s, "MB/s", RATE_BAR))
        per_cpu = PER_CPU_BARS.get(name, PER_CPU_BAR)
        rows.append(compare(label, measured, lambda run: run.mb_per_cpu, "MB/CPU-s", per_cpu))
    return rows


def requests(policy: str, ours: Target | None, peer: Target | None) -> list[Row]:
    """The cases of single records of one flush policy."""
    flush = policy == "fsync"
    rows: list[Row] = []
    measured = rounds(single, ours, peer, flush)
    label = f"{policy}, one record, 10 producers"
    rows.append(compare(label, measured, lambda run: run.requests_s, "requests/s", RATE_BAR))
    measured = rounds(paced, ours, peer, flush)
    label = f"{policy}, p99 at 1 000 msg/s"
    rows.append(compare(label, measured, lambda run: run.p99_us, "us", 1.0, low=True))
    return rows


def warm_up(peer: Target) -> None:
    """Let the JVM compile what the cases use."""
    say("warming Kafka's JVM up")
    with fresh_topic(peer) as topic:
        rdload(peer, topic, "-m", "both", *WARM_UP)
        rawload(peer, topic, "-P", "1", "-C", "1", *WARM_UP)
        rawload(peer, topic, "-P", "10", "-C", "0", "-b", "1", *WARM_UP)


def memory(ours: Target | None, peer: Target | None) -> list[Row]:
    """Resident memory after the load."""
    if ours is None or peer is None:
        return []
    said = ("Kafka, MB", peer.rss_mb())
    say(f"memory: {ours.rss_mb():.0f} MB beside {said[1]:.0f} MB")
    return [row("RSS after the load", ours.rss_mb() / said[1], "ratio", 0.25, low=True, peer=said)]


def main(arguments: list[str]) -> int:
    """Measure everything."""
    kafka_load.build()
    sides = [word for word in arguments if word in SIDES] or list(SIDES)
    words = [word for word in arguments if word not in SIDES]
    rows: list[Row] = []
    with data_dir("kafka") as folder, contextlib.ExitStack() as stack:
        peer = None
        if "peer" in sides:
            peer = stack.enter_context(kafka_load.apache(folder / "apache"))
        if peer is not None:
            warm_up(peer)
        for policy in ("os", "fsync"):
            with contextlib.ExitStack() as running:
                ours = None
                if "onelog" in sides:
                    ours = running.enter_context(kafka_load.onelog(folder / policy, policy))
                rows += throughput(policy, ours, peer, words)
                if not words:
                    rows += requests(policy, ours, peer)
                if not words and policy == "os":
                    rows += memory(ours, peer)
        if "onelog" in sides and not words:
            rows += kafka_scale.run(folder)
    report("kafka", rows, *words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
