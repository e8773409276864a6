"""`onelog bench mqtt|kafka|amqp`: how fast a broker is on this machine, with no other tool.

Rules: without an address, a throw-away broker is started for the length of the command. The load
comes from this process: the output says how much of a core that takes, and what the generator could
do without a broker. Figures go to standard output, progress to standard error.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from onelog.base.errors import ConfigError
from onelog.cli import render
from onelog.cli.api.showing import AsJson
from onelog.cli.bench.targets import NOWHERE, Durability, Protocol, Server, Target
from onelog.cli.printable import json_text

PAYLOAD_BYTES_MIN: Final = 16
PAYLOAD_BYTES_MAX: Final = 1 << 20
PAIRS_MAX: Final = 1_000
SECONDS_MAX: Final = 3_600.0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is measured, and on which throw-away broker."""

    seconds: Annotated[
        float, Parameter(name=["--seconds", "-t"], help="How long each case takes.")
    ] = 3.0
    size: Annotated[int, Parameter(name=["--size", "-s"], help="Bytes of a payload.")] = 256
    pairs: Annotated[int, Parameter(help="Pairs of the case with many pairs.")] = 20
    case: Annotated[str, Parameter(help="Only cases whose names hold this, such as window.")] = ""
    durability: Annotated[Durability, Parameter(help="Durability of the throw-away broker.")] = (
        "fsync"
    )
    folder: Annotated[
        Path | None,
        Parameter(help="Where the throw-away broker has its data (default: temporary files)."),
    ] = None

    def check(self) -> None:
        """Raises ConfigError."""
        if not 0 < self.seconds <= SECONDS_MAX:
            raise ConfigError(f"--seconds {self.seconds:g}: more than 0, at most {SECONDS_MAX:g}")
        if not PAYLOAD_BYTES_MIN <= self.size <= PAYLOAD_BYTES_MAX:
            raise ConfigError(
                f"--size {self.size}: {PAYLOAD_BYTES_MIN} to {PAYLOAD_BYTES_MAX} bytes"
            )
        if not 1 <= self.pairs <= PAIRS_MAX:
            raise ConfigError(f"--pairs {self.pairs}: 1 to {PAIRS_MAX}")


USUAL: Final = Asked()


def build_bench() -> App:
    """The command tree."""
    app = App(
        name="bench",
        help="Measure a broker: messages a second, and the time until a message arrives.",
    )
    app.command(mqtt)
    app.command(kafka)
    app.command(amqp)
    return app


def mqtt(
    *,
    qos: Annotated[int, Parameter(name=["--qos", "-q"], help="0 or 1.")] = 1,
    asked: Asked = USUAL,
    json: AsJson = False,
    target: Target = NOWHERE,
) -> None:
    """Measure MQTT: publishers and subscribers, each pair on a topic of its own."""
    if qos not in (0, 1):
        raise ConfigError(f"--qos {qos}: 0 or 1")
    _measure("mqtt", target, asked, json=json, qos=qos)


def kafka(*, asked: Asked = USUAL, json: AsJson = False, target: Target = NOWHERE) -> None:
    """Measure Kafka: producers and consumers, each pair on a topic of its own."""
    _measure("kafka", target, asked, json=json)


def amqp(*, asked: Asked = USUAL, json: AsJson = False, target: Target = NOWHERE) -> None:
    """Measure AMQP 0-9-1: persistent messages with confirms, a queue for each pair."""
    _measure("amqp", target, asked, json=json)


def _measure(
    protocol: Protocol, target: Target, asked: Asked, *, json: bool, **options: Any
) -> None:
    asked.check()
    # Only this command needs them, and every other one starts faster without.
    from onelog.cli.bench.cases import chosen_cases, run_cases  # noqa: PLC0415
    from onelog.cli.bench.results import print_results, rows_of  # noqa: PLC0415

    cases = chosen_cases(asked.pairs, asked.case)
    server: AbstractContextManager[Server | None] = nullcontext(None)
    if not target.is_named:
        server = Server(protocol, asked.durability, asked.folder)
    with server as own:
        address = target.address(protocol) if own is None else own.address
        where = str(address)
        if own is not None:
            where = f"a throw-away broker ({asked.durability}) at {address}"
            if own.is_in_memory:
                render.print_warning(
                    "the data lies in memory, where a sync costs nothing: --folder names a disk"
                )
        if render.ERRORS.is_terminal:
            render.ERRORS.print(f"measuring {where}", style="dim")
        pid = None if own is None else own.pid
        results = run_cases(protocol, address, cases, asked.seconds, asked.size, pid, **options)
    if json:
        sys.stdout.write(json_text(rows_of(protocol, results)) + "\n")
    else:
        print_results(protocol, where, asked.size, results)
