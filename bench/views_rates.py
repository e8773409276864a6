"""How soon another protocol has a message, and what consumers of other topics cost a publisher.

Rules: latency is from publish to the subscriber's hand at 1 000 messages a second, all pairs of
protocols in turns on one broker, the median of the rounds. Publish rates are those of two brokers
in turns, one of which has a thousand subscriptions, bindings or groups for topics beside the one
that is published to; what counts is the median of the ratios of neighbouring rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.report import Row, median, row, say
from bench.views_load import Run, Target, load, onelog
from bench.views_strangers import bindings, groups, subscriptions

NAMES = {"M": "MQTT", "K": "Kafka", "A": "AMQP"}
REFERENCE = "MM"
PAIRS = ("MK", "KM", "AM", "MA")
PACED = ("-x", "-r", "1000", "-w", "0.5")
DURABILITIES = ("fsync", "os")
LATENCY_BAR, SAME_RATE_BAR = 1.5, 0.95
FULL_SPEED = ("-P", "16", "-I", "500", "-W", "0", "-w", "0.3")
QUIET = 'defaults.stream.durability="os"'
"""A disk that syncs is not steady enough to see a difference of 5 %."""

STRANGERS: dict[str, Callable[[Target], contextlib.AbstractContextManager[None]]] = {
    "subscriptions": subscriptions,
    "bindings": bindings,
    "groups": groups,
}


def latency(folder: Path, rounds: int, measured_s: float) -> list[Row]:
    """The 99th percentile across protocols over that of MQTT to MQTT."""
    rows: list[Row] = []
    for durability in DURABILITIES:
        late: dict[str, list[float]] = {pair: [] for pair in (REFERENCE, *PAIRS)}
        with onelog(
            folder / f"latency-{durability}", f'defaults.stream.durability="{durability}"'
        ) as target:
            for number in range(rounds):
                for pair, found in late.items():
                    topic = f"{pair.lower()}{number}"
                    run = load(target, pair[0], pair[1], topic, PACED, measured_s)
                    found.append(run["p99_us"])
        own = median(late[REFERENCE])
        for pair in PAIRS:
            name = f"{durability}, p99 at 1 000 msg/s, {NAMES[pair[0]]} to {NAMES[pair[1]]}"
            value = median(late[pair])
            say(f"{name}: {value:,.0f} us beside {own:,.0f}")
            said = ("MQTT to MQTT, us", own)
            rows.append(row(name, value / own, "ratio", LATENCY_BAR, low=True, peer=said))
    return rows


@contextlib.contextmanager
def two_brokers(folder: Path, kind: str) -> Iterator[tuple[Target, Target]]:
    """One alone, and one with a thousand strangers."""
    with (
        onelog(folder / f"alone-{kind}", QUIET) as alone,
        onelog(folder / f"strangers-{kind}", QUIET) as other,
        STRANGERS[kind](other),
    ):
        yield alone, other


def strangers(folder: Path, rounds: int, measured_s: float) -> list[Row]:
    """Publish rates beside those without strangers."""
    rows: list[Row] = []
    for kind in STRANGERS:
        without: list[Run] = []
        among: list[Run] = []
        with two_brokers(folder, kind) as (alone, other):
            for number in range(rounds):
                for target, found in ((alone, without), (other, among)):
                    topic = f"busy{number}"
                    found.append(load(target, "M", "", topic, FULL_SPEED, measured_s))
        for unit, of in (("msg/s", _rate), ("msg per CPU-second", _per_cpu)):
            own = median([of(run) for run in without])
            value = median([of(b) / of(a) for a, b in zip(without, among, strict=True)])
            name = f"1 000 {kind} of other topics: {unit}"
            say(f"{name}: {value:.3f} of {own:,.0f}")
            said = (f"without, {unit}", own)
            rows.append(row(name, value, "ratio", SAME_RATE_BAR, peer=said))
    return rows


def _rate(run: Run) -> float:
    return run["ack_s"]


def _per_cpu(run: Run) -> float:
    return run["ack_s"] / max(run["broker_cpu"], 0.01)
