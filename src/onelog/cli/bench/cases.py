"""The cases of `onelog bench`, and how they are run: one after the other, with progress."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from onelog.base.errors import ConfigError
from onelog.cli import render
from onelog.cli.bench.load import Measured, Pair, Reader, Writer, drive, speed_alone
from onelog.cli.bench.targets import Protocol
from onelog.cli.talk.link import BrokerAddress

WARM_S: Final = 0.5
FULL_WINDOW: Final = 2_000


class Case(NamedTuple):
    """How many pairs, and how many messages of each are under way at once."""

    name: str
    pairs: int
    window: int


class Result(NamedTuple):
    """A case that was run."""

    case: Case
    measured: Measured
    alone: float
    """Messages a second of the generator by itself."""
    broker_s: float | None
    """CPU of the broker, if it is ours."""


def chosen_cases(pairs: int, word: str) -> list[Case]:
    """All of them, or those with a word in their names. Raises ConfigError."""
    cases = [
        Case("one at a time", 1, 1),
        Case("window of 100", 1, 100),
        Case("1 to 1, full speed", 1, FULL_WINDOW),
        Case(f"{pairs} pairs, window of 10", pairs, 10),
    ]
    chosen = [case for case in cases if word.casefold() in case.name]
    if not chosen:
        names = "; ".join(case.name for case in cases)
        raise ConfigError(f"--case {word}: no case has this in its name; there are: {names}")
    return chosen


def run_cases(
    protocol: Protocol,
    address: BrokerAddress,
    cases: list[Case],
    seconds: float,
    size: int,
    pid: int | None,
    **options: Any,
) -> list[Result]:
    """Run them. Raises OnelogError."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    results = []
    is_seen = render.ERRORS.is_terminal
    with Progress(*columns, console=render.ERRORS, transient=True, disable=not is_seen) as progress:
        for number, case in enumerate(cases, 1):
            task = progress.add_task(
                f"{number} of {len(cases)}: {case.name}", total=WARM_S + seconds, rate=""
            )
            with ExitStack() as stack:
                pairs = []
                for at in range(case.pairs):
                    pair = open_pair(protocol, address, case.window, size, at, **options)
                    stack.callback(pair.close)
                    pairs.append(pair)
                before = None if pid is None else cpu_s(pid)
                measured = drive(pairs, WARM_S, seconds, partial(_show, progress, task))
                spent = None if pid is None or before is None else cpu_s(pid) - before
                results.append(Result(case, measured, speed_alone(pairs[0]), spent))
            rate = measured.messages / measured.seconds
            progress.update(task, completed=WARM_S + seconds, rate=f"{rate:,.0f} msg/s")
    return results


def _show(progress: Progress, task: TaskID, at: float) -> None:
    progress.update(task, completed=at)


def open_pair(
    protocol: Protocol, address: BrokerAddress, window: int, size: int, at: int, **options: Any
) -> Pair:
    """Connect both ends. Raises OnelogError."""
    topic = f"onelog-bench/{secrets.token_hex(4)}/{at}"
    writer: Writer
    reader: Reader
    with ExitStack() as stack:
        if protocol == "mqtt":
            from onelog.cli.bench.mqtt_ends import MqttReader, MqttWriter  # noqa: PLC0415

            reader = MqttReader(address, topic, size, options["qos"])
            stack.callback(reader.close)
            writer = MqttWriter(address, topic, size, options["qos"])
        elif protocol == "amqp":
            from onelog.cli.bench.amqp_ends import AmqpReader, AmqpWriter  # noqa: PLC0415

            reader = AmqpReader(address, size)
            stack.callback(reader.close)
            writer = AmqpWriter(address, reader.queue, size)
        else:
            from onelog.cli.bench.kafka_ends import KafkaReader, KafkaWriter  # noqa: PLC0415

            writer = KafkaWriter(address, topic, size)
            stack.callback(writer.close)
            reader = KafkaReader(address, writer.part, size)
        stack.pop_all()
    return Pair(writer, reader, window)


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used, all of its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
