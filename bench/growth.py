"""`make bench-growth`: what a message costs beside 1 to 10,000 topics, readers, queues, partitions.

Rules: each point is the broker's CPU for a message at full speed, and the median time on its way
when the load is paced: the least of some rounds, as other work only ever adds to it. A broker
serves one curve, from few to many. The peer does the same, as far as that takes some seconds only.
A side begins no further point after `SIDE_S`. Each curve is reported when it is measured, in a file
of its own, so that what fails later takes nothing away. Parts choose curves: `make bench-growth
ARGS="topics partitions"`; `--alone` leaves the peers out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.cimpl import NewTopic

from bench import against, amqp_load, kafka_load, mqtt
from bench.report import ROOT, Row, data_dir, report, row, say

COUNTS = (1, 10, 100, 1_000, 10_000)
FEW = 1_000
"""So many queues and partitions RabbitMQ and Kafka get: more of them take minutes to make."""
ROUNDS = 3
FULL_SPEED = ("-t", "0.6", "-w", "0.3")
PACED = ("-t", "0.6", "-w", "0.3", "-r", "1000")
DELIVERIES_S = 20_000
"""A paced load to many subscribers has so many deliveries a second at most."""
RUN_S = 60
SIDE_S = 45.0
"""Six curves of two sides are less than ten minutes, also on a slow machine."""
_names = itertools.count()


class Point(NamedTuple):
    """CPU of a message and the median time of one, both in us."""

    cpu_us: float
    p50_us: float


class Broker(NamedTuple):
    """A broker that runs."""

    name: str
    port: int
    pids: str


Measure = Callable[[Broker, int], Point]
Opened = contextlib.AbstractContextManager[Broker | None]


class Growing(NamedTuple):
    """What grows, on which broker of ours and beside which peer."""

    protocol: str
    durability: str
    measure: Measure
    peer: Callable[[Path], Opened]
    peer_most: int
    unit: str = "us of CPU per message"
    waits: str = "us until delivered, p50"


def run(program: Path, broker: Broker, *options: str) -> dict[str, float]:
    """One run of a load generator."""
    done = subprocess.run(
        [program, "-p", str(broker.port), "-c", broker.pids, *options],
        capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    if done.returncode or not done.stdout:
        raise SystemExit(f"{program.name} {' '.join(options)}: {done.stderr.strip()[-500:]}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    if answer.get("lost") or answer.get("dup"):
        say(f"LOST {answer['lost']}, DOUBLED {answer['dup']}: {' '.join(options)}")
    return answer


def of_load(
    program: Path,
    broker: Broker,
    fast: tuple[str, ...],
    paced: tuple[str, ...],
    count_rounds: int = ROUNDS,
) -> Point:
    """CPU of the full-speed rounds, time of the paced ones."""
    rounds = [run(program, broker, *FULL_SPEED, *fast) for _ in range(count_rounds)]
    # A round in which nothing came says nothing: it is not the cheapest one.
    told = [one["broker_us_per_recv"] for one in rounds if one["broker_us_per_recv"] > 0]
    if not told:
        raise SystemExit(f"{broker.name}: nothing came in {count_rounds} rounds of {fast}")
    waits = [run(program, broker, *PACED, *paced)["p50_us"] for _ in range(count_rounds)]
    return Point(min(told), min(waits))


def _rounds(connections: int) -> int:
    """Each round opens them anew, and so many take longer than the round itself."""
    return ROUNDS if connections <= FEW else 1


def topics(broker: Broker, count: int) -> Point:
    """One publisher writes to all of them in turn; one subscriber has a filter for all."""
    options = ("-l", "256", "-N", str(count))
    return of_load(mqtt.LOAD, broker, (*options, "-W", "1000"), options)


def strangers(broker: Broker, count: int) -> Point:
    """So many other connections subscribe to a topic of their own each."""
    options = ("-l", "256", "-O", str(count))
    return of_load(mqtt.LOAD, broker, (*options, "-W", "1000"), options, _rounds(count))


def subscribers(broker: Broker, count: int) -> Point:
    """All of them get each message; the figure is that of one delivery."""
    options = ("-l", "256", "-S", str(count))
    rate = str(min(1000, max(2, DELIVERIES_S // count)))
    # The same window for all: what a write to a subscriber holds does not depend on their number.
    fast = (*options, "-W", "10", "-t", "1" if count >= FEW else "0.6")
    return of_load(mqtt.LOAD, broker, fast, (*options, "-t", "1", "-r", rate), _rounds(count))


def queues(broker: Broker, count: int) -> Point:
    """So many queues are bound to the exchange; the message goes to one."""
    target = amqp_load.Target(broker.port, int(broker.pids.partition(",")[0]))
    with target.channel() as channel:
        for number in range(1, count):
            name = f"growth.{number}"
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "amq.direct", name)
    options = ("-q", "1", "-l", "256", "-m", "33")
    return of_load(amqp_load.LOAD, broker, (*options, "-W", "1000", "-I", "1000"), options)


def partitions(batch_bytes: int) -> Measure:
    """One producer writes to all of them in turn, a request for each batch."""

    def measure(broker: Broker, count: int) -> Point:
        target = kafka_load.Target(broker.name, broker.port, int(broker.pids))
        name, admin = f"growth{next(_names)}", target.admin()
        kafka_load.settle(admin.create_topics([NewTopic(name, count, 1)], operation_timeout=60))
        options = ("-T", name, "-P", "1", "-C", "0", "-b", str(batch_bytes), "-N", str(count))
        # The first record of a partition opens its files: every partition has had one before.
        run(kafka_load.RAWLOAD, broker, *options, "-t", str(0.5 + count / 2000), "-w", "0")
        rounds = [run(kafka_load.RAWLOAD, broker, *options, *FULL_SPEED) for _ in range(ROUNDS)]
        waits = [
            run(kafka_load.RAWLOAD, broker, *options, "-R", "1", *FULL_SPEED)["p50_us"]
            for _ in range(ROUNDS)
        ]
        # The topic goes with the broker: deleting 10,000 partitions may take a minute.
        return Point(min(one["broker_us_per_req"] for one in rounds), min(waits))

    return measure


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[Broker | None]:
    """The peer of MQTT."""
    with mqtt.mosquitto(folder) as found:
        yield None if found is None else Broker("Mosquitto", found.port, str(found.pid))


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[Broker | None]:
    """The peer of AMQP."""
    with amqp_load.rabbitmq(folder / "rabbitmq") as found:
        if found is None:
            yield None
        else:
            yield Broker("RabbitMQ", found.port, ",".join(map(str, found.pids())))


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Broker | None]:
    """The peer of Kafka, with its JVM warm."""
    with kafka_load.apache(folder / "apache") as found:
        if found is None:
            yield None
            return
        broker = Broker("Kafka", found.port, str(found.pid))
        for size in ("1", "16384"):
            run(kafka_load.RAWLOAD, broker, "-C", "0", "-b", size, "-t", "4", "-w", "0")
        yield broker


PER_REQUEST = ("us of CPU per request", "us until answered, p50")
CURVES: dict[str, Growing] = {
    "topics of one publisher (MQTT)": Growing("mqtt", "os", topics, mosquitto, COUNTS[-1]),
    "subscribers of other topics (MQTT)": Growing("mqtt", "os", strangers, mosquitto, COUNTS[-1]),
    "subscribers of the topic (MQTT)": Growing(
        "mqtt", "os", subscribers, mosquitto, COUNTS[-1], "us of CPU per delivery"
    ),
    "queues of the exchange (AMQP)": Growing("amqp", "os", queues, rabbitmq, FEW),
    "partitions, one record each (Kafka)": Growing(
        "kafka", "os", partitions(1), kafka, FEW, *PER_REQUEST
    ),
    "partitions, 16 KB each (Kafka)": Growing(
        "kafka", "os", partitions(16_384), kafka, FEW, *PER_REQUEST
    ),
}


PARTS = dict(
    zip(
        ("topics", "strangers", "subscribers", "queues", "partitions", "batches"),
        CURVES,
        strict=True,
    )
)
"""The names of the curves on the command line."""


class Side(NamedTuple):
    """The points of one broker, and whether it failed before the last."""

    points: dict[int, Point]
    failed: bool = False


def side(broker: Broker, kind: str, most: int) -> Side:
    """One side of a curve: what was measured before a failure stays."""
    found: dict[int, Point] = {}
    ends = time.monotonic() + SIDE_S
    for count in (one for one in COUNTS if one <= most):
        if time.monotonic() > ends:
            say(f"{broker.name}, {kind}: no time is left for {count:,} and more")
            break
        try:
            found[count] = point = CURVES[kind].measure(broker, count)
        except (Exception, SystemExit):  # noqa: BLE001 - the points before it are kept
            traceback.print_exc()
            return Side(found, failed=True)
        say(f"{broker.name}, {kind}, {count:,}: {point.cpu_us:.2f} us, p50 {point.p50_us:.0f}")
    return Side(found)


def rows_of(kind: str, mine: Side, theirs: Side, name: str) -> list[Row]:
    """The rows of a curve: each point of ours, beside the peer's where there is one."""
    growing = CURVES[kind]
    rows = []
    for count, point in mine.points.items():
        for what, value, other in zip(
            (growing.unit, growing.waits), point, theirs.points.get(count, (None, None)),
            strict=True,
        ):  # fmt: skip
            said = None if other is None else (f"{name}, {what}", other)
            rows.append(row(f"{kind}, {count:,}: {what}", value, what, peer=said))
    return rows


def curve(kind: str, most: int, *, alone: bool) -> tuple[list[Row], bool]:
    """Both sides, one after the other, as nothing runs beside a curve; and whether one failed."""
    growing = CURVES[kind]
    with against.broker(ROOT, growing.protocol, growing.durability) as (port, pid):
        mine = side(Broker("onelog", port, str(pid)), kind, most)
    theirs, name = Side({}), ""
    if not alone:
        with data_dir("growth") as folder, growing.peer(folder) as peer:
            if peer is not None:
                name = peer.name
                theirs = side(peer, kind, min(most, growing.peer_most))
    return rows_of(kind, mine, theirs, name), mine.failed or theirs.failed


def main(arguments: list[str]) -> int:
    """Measure every curve, or some of them; the exit code."""
    parser = argparse.ArgumentParser(prog="bench.growth", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--most", type=int, default=COUNTS[-1], help="no point beyond this count")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    mqtt.build_load()
    amqp_load.build()
    kafka_load.build()
    begun, failed = time.monotonic(), []
    for part in chosen.parts or PARTS:
        try:
            rows, is_broken = curve(PARTS[part], chosen.most, alone=chosen.alone)
        except (Exception, SystemExit):  # noqa: BLE001 - the other curves are measured
            traceback.print_exc()
            rows, is_broken = [], True
        if is_broken:
            failed.append(part)
        if rows:
            report("growth", rows, part)
    say(f"took {time.monotonic() - begun:.0f} s")
    if failed:
        say(f"these curves failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
