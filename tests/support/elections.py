"""Elections in one process: the partitions of a shard change their role, then its services hear."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from onelog.base.clock import ManualClock
from onelog.broker import Broker
from onelog.log.partition import Partition
from onelog.log.progress import Role
from tests.support.brokers import FAST, running

SHARDS = 4
ELECTED = msgspec.structs.replace(FAST, elected=True, internal_partitions=SHARDS)


@contextlib.asynccontextmanager
async def elected(
    path: Path, *led: int, clock: ManualClock | None = None, **hooks: Any
) -> AsyncIterator[Broker]:
    """A broker that owns what elections give it: at first these shards."""
    async with running(path, ELECTED, clock, **hooks) as broker:
        for shard in led:
            await broker.shards.lead(shard)
        yield broker


def depose(broker: Broker, shard: int) -> None:
    """Another node leads a shard; its services here have not heard of it."""
    for partition in parts_of(broker, shard):
        partition.replica.become(Role.FOLLOWER, int(partition.leader_epoch) + 1)


async def lose(broker: Broker, shard: int) -> None:
    """Another node is elected."""
    depose(broker, shard)
    await broker.shards.lose(shard)


async def win(broker: Broker, shard: int) -> None:
    """This node is elected again, after another one."""
    for partition in parts_of(broker, shard):
        partition.replica.become(Role.LEADER, int(partition.leader_epoch) + 1)
    await broker.shards.lead(shard)


def parts_of(broker: Broker, shard: int) -> list[Partition]:
    """The partitions that make up a shard."""
    found = []
    for stream in broker.streams.streams():
        if stream.name.startswith("~") and shard < len(stream.partitions):
            handle = stream.partitions[shard]
            assert isinstance(handle, Partition)
            found.append(handle)
    return found


def name_in(broker: Broker, shard: int, prefix: str = "n", nth: int = 0) -> str:
    """A name whose rows lie in a shard."""
    numbers = (n for n in range(10_000) if broker.shards.of(f"{prefix}{n}".encode()) == shard)
    return f"{prefix}{[next(numbers) for _ in range(nth + 1)][-1]}"


@contextlib.contextmanager
def as_other_owner(broker: Broker, shard: int) -> Iterator[None]:
    """What is written in the block, the node wrote that owns the shard meanwhile."""
    for partition in parts_of(broker, shard):
        partition.replica.become(Role.LEADER, int(partition.leader_epoch) + 1)
    yield
    depose(broker, shard)
