"""What the parts of the example agree on: topics, names, and what a message says.

A plant has machines in halls. Each is a device that speaks MQTT and publishes to two topics:

    plant/<hall>/<machine>/telemetry    ten times a second
    plant/<hall>/<machine>/alarm        now and then

Nobody declares anything: the topics are there when the first message is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

HALLS = ("north", "south", "east")
ALARM_EVERY = 10
"""One message in so many is an alarm."""
BROKEN = "m03"
"""The machine that nobody can repair: jobs for it end in the dead-letter queue."""


class Said(NamedTuple):
    """A message by what makes it one of a kind: every part of the example collects these."""

    machine: str
    kind: str
    number: int


@dataclass(frozen=True)
class Ports:
    """Where the broker listens."""

    mqtt: int
    kafka: int
    amqp: int
    admin: int


def machine_name(index: int) -> str:
    return f"m{index:02d}"


def topic_of(index: int, kind: str) -> str:
    return f"plant/{HALLS[index % len(HALLS)]}/{machine_name(index)}/{kind}"


def encode(said: Said, value: float) -> bytes:
    return json.dumps({**said._asdict(), "value": round(value, 2)}).encode()


def decode(payload: bytes) -> tuple[Said, float]:
    row = json.loads(payload)
    return Said(row["machine"], row["kind"], row["number"]), row["value"]
