"""A broker with a folder as its object store, and streams whose history lies there."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from onelog.broker import (
    LOCAL,
    Broker,
    BrokerSettings,
    ColdFormat,
    Durability,
    Message,
    Retention,
    StreamConfig,
    TierConfig,
    TierLimits,
)
from onelog.log.partition import Partition
from onelog.objects.store import StoreSettings
from tests.support.brokers import FAST

PAYLOAD_BYTES = 400
COLD = TierConfig(format=ColdFormat.LOG, local_bytes=0)
"""Everything that is sealed and copied leaves the disk."""
KEPT = TierConfig(format=ColdFormat.LOG)
"""Copies stay on the disk, too."""


def with_store(folder: Path, settings: BrokerSettings = FAST, **options: object) -> BrokerSettings:
    """Settings of a broker whose store is a folder; nothing is graced."""
    folder.mkdir(parents=True, exist_ok=True)
    return replace(
        settings,
        store=StoreSettings(url=f"file://{folder}"),
        tier_limits=TierLimits(grace_ms=0),
        **options,
    )


def plant(tier: TierConfig = COLD, **fields: object) -> StreamConfig:
    """A stream of small segments."""
    given: dict[str, object] = {
        "name": "plant",
        "captures": ("plant/#",),
        "durability": Durability.FSYNC,
        "segment_bytes": 4096,
        "retention": Retention(age_ms=-1),
        "tier": tier,
    }
    return StreamConfig(**{**given, **fields})  # type: ignore[arg-type]


def payload(number: int) -> bytes:
    """A value that says its number, and is as long as all others."""
    return f"{number:08d}".encode() * (PAYLOAD_BYTES // 8)


async def fill(broker: Broker, count: int, topic: str = "plant/a", first: int = 0) -> None:
    """Publish so many records, each as a batch of its own."""
    for number in range(first, first + count):
        await broker.publish(Message(topic, payload(number)), principal=LOCAL)


def part(broker: Broker, stream: str = "plant", number: int = 0) -> Partition:
    """A partition with its inside."""
    return broker.streams.get(stream).local[number]


async def go_cold(broker: Broker, stream: str = "plant") -> None:
    """Seal what is there, and let tiers move it."""
    for partition in broker.streams.get(stream).local:
        await broker.in_thread(partition.log.roll)
    await broker.maintenance.tier_once()
