"""What consumers add to the disk: the same messages written with 32 consumers and with none.

Rules: MQTT publishers write at QoS 1 as fast as they are answered; a run ends when every consumer
has every message. Counted are the files once the broker has closed them, and what its process wrote
to the disk, both from an empty directory on and over the bytes of payloads and topics. RabbitMQ
gets fewer messages, for ten durable queues that are read at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bench.amqp_scale import bytes_below
from bench.report import Row, row, say
from bench.views_load import PAYLOAD_BYTES, PUBLISHERS, Target, load, onelog, rabbitmq

ROOT_TOPIC = "plant"
CONSUMERS = "M" * 10 + "K" * 10 + "A" * 10 + "mk"
"""Sessions, groups and queues, and two views of everything."""
RABBITMQ_QUEUES = "A" * 10
RABBITMQ_PART = 10
WITHIN_S = 900.0
AMPLIFICATION_BAR, SAME_BAR = 1.25, 1.03


class Disk(NamedTuple):
    """Bytes on the disk per byte of payload and topic."""

    files: float
    written: float


def bytes_of(count: int) -> int:
    """Payloads and topics of so many messages."""
    topics = sum(len(f"{ROOT_TOPIC}/{number}/telemetry") for number in range(PUBLISHERS))
    return count * PAYLOAD_BYTES + count // PUBLISHERS * topics


def publish(target: Target, publisher: str, consumers: str, count: int) -> float:
    """Write and deliver everything; how long that took."""
    options = ("-P", str(PUBLISHERS), "-n", str(count), "-w", "0", "-W", "0", "-I", "500")
    return load(target, publisher, consumers, ROOT_TOPIC, options, WITHIN_S)["took_s"]


def ours(folder: Path, consumers: str, count: int) -> Disk:
    """One run of our broker."""
    with onelog(folder) as target:
        took_s = publish(target, "M", consumers, count)
        written = target.written_bytes()
    found = Disk(bytes_below(folder) / bytes_of(count), written / bytes_of(count))
    say(
        f"{count:,} messages, {len(consumers)} consumers: {took_s:.1f} s, files {found.files:.3f},"
        f" written {found.written:.3f} per byte"
    )
    return found


def peers(folder: Path, count: int) -> tuple[str, float] | None:
    """What RabbitMQ writes per byte for ten queues; None where it is not installed."""
    with rabbitmq(folder) as target:
        if target is None:
            return None
        before = target.written_bytes()
        publish(target, "A", RABBITMQ_QUEUES, count)
        found = (target.written_bytes() - before) / bytes_of(count)
    say(f"RabbitMQ, {count:,} messages, {len(RABBITMQ_QUEUES)} queues: {found:.3f} per byte")
    return "RabbitMQ with 10 queues, B written per B", found


def amplification(folder: Path, count: int) -> list[Row]:
    """The bars."""
    alone = ours(folder / "alone", "", count)
    followed = ours(folder / "followed", CONSUMERS, count)
    peer = peers(folder / "rabbitmq", count // RABBITMQ_PART)
    name = f"{count:,} messages, {len(CONSUMERS)} consumers"
    rows = []
    for what, value, without in zip(("files", "written"), followed, alone, strict=True):
        beside = peer if what == "written" else None
        rows.append(
            row(f"{name}: {what}", value, "B per B", AMPLIFICATION_BAR, low=True, peer=beside)
        )
        said = (f"no consumer, {what}", without)
        rows.append(
            row(
                f"{name}: {what} beside none",
                value / without,
                "ratio",
                SAME_BAR,
                low=True,
                peer=said,
            )
        )
    return rows
