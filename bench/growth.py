"""`make bench-growth`: what a message costs beside 1 to 10,000 topics, readers, queues, partitions.

Rules: each point is the broker's CPU for a message at full speed, and the median time on its way
when the load is paced: the least of some rounds, as other work only ever adds to it. A broker
serves one curve, from few to many. The peer does the same, as far as that takes some seconds only.
Words choose curves: `make bench-growth ARGS="topics partitions"`; `--alone` leaves the peers out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import subprocess
import sys
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
RUN_S = 120
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
    cpu_us = min(one["broker_us_per_recv"] for one in rounds)
    waits = [run(program, broker, *PACED, *paced)["p50_us"] for _ in range(count_rounds)]
    return Point(cpu_us, min(waits))


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
        kafka_load.settle(admin.delete_topics([name], operation_timeout=60))
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


def points(broker: Broker, kind: str, most: int) -> dict[int, Point]:
    """One side of a curve."""
    found = {}
    for count in COUNTS:
        if count <= most:
            found[count] = point = CURVES[kind].measure(broker, count)
            say(f"{broker.name}, {kind}, {count:,}: {point.cpu_us:.2f} us, p50 {point.p50_us:.0f}")
    return found


def curve(kind: str, most: int, *, alone: bool) -> list[Row]:
    """Both sides, one after the other: nothing runs beside a curve."""
    growing = CURVES[kind]
    with against.broker(ROOT, growing.protocol, growing.durability) as (port, pid):
        mine = points(Broker("onelog", port, str(pid)), kind, most)
    theirs: dict[int, Point] = {}
    name = ""
    if not alone:
        with data_dir("growth") as folder, growing.peer(folder) as peer:
            if peer is not None:
                name = peer.name
                theirs = points(peer, kind, min(most, growing.peer_most))
    rows = []
    for count, point in mine.items():
        for what, value, other in zip(
            (growing.unit, growing.waits), point, theirs.get(count, (None, None)), strict=True
        ):
            said = None if other is None else (f"{name}, {what}", other)
            rows.append(row(f"{kind}, {count:,}: {what}", value, what, peer=said))
    return rows


def main(arguments: list[str]) -> int:
    """Measure every curve, or those whose names have one of the words."""
    parser = argparse.ArgumentParser(prog="bench.growth", description=__doc__)
    parser.add_argument("words", nargs="*", help="only curves whose name has one of these")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--most", type=int, default=COUNTS[-1], help="no point beyond this count")
    chosen = parser.parse_args(arguments)
    kinds = [one for one in CURVES if not chosen.words or any(w in one for w in chosen.words)]
    if not kinds:
        parser.error(f"no curve has {chosen.words}; there are {', '.join(CURVES)}")
    mqtt.build_load()
    amqp_load.build()
    kafka_load.build()
    rows = []
    for kind in kinds:
        rows += curve(kind, chosen.most, alone=chosen.alone)
    whole = len(kinds) == len(CURVES)
    part = re.sub(r"\W+", "-", " ".join(chosen.words))
    report("growth" if whole else f"growth-{part}", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
