"""Three nodes as a Kafka hub sees them: a cluster map that is what the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onelog.base.errors import Conflict, OnelogError
from onelog.base.ids import PartitionId
from onelog.broker import NO_NODE, NodePlace, PartitionHandle, ReplicaPlaces
from onelog.log.partition import Partition
from onelog.log.progress import Progress, Role


def place(node: int, rack: str = "", **listeners: str) -> NodePlace:
    """A node that is reached at h<node>:9000."""
    return NodePlace(node, 10 + node, rack, False, {"kafka": f"kafka://h{node}:9000"} | listeners)


class FakeCluster:
    """Nodes 0 (this one), 1 and 2; every partition lies on all of them and is led here."""

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.node, self.controller, self.factor = 0, 2, 3
        self.places = [place(0, "east"), place(1, "west"), place(2, "west")]
        self.rows: dict[tuple[str, int], ReplicaPlaces] = {}
        self.others = ReplicaPlaces(0, 0, (0, 1, 2), (0, 1, 2))
        self.owners: dict[bytes, int] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.error: OnelogError | None = None
        self.changes = True

    def nodes(self) -> Sequence[NodePlace]:
        return self.places

    def replicas(self, stream_id: str, partition: PartitionHandle) -> ReplicaPlaces:
        del stream_id
        return self.rows.get((partition.stream, int(partition.id)), self.others)

    def owner(self, name: bytes) -> int:
        return self.owners.get(name, self.node)

    async def refresh(self) -> None:
        self.asked.append(("refresh",))

    async def until_led(self, stream_id: str, partitions: int) -> None:
        self.asked.append(("until_led", partitions))

    async def elect(self, stream_id: str, partition: PartitionId, *, unclean: bool = False) -> bool:
        self.asked.append(("elect", int(partition), unclean))
        if self.error is not None:
            raise self.error
        return self.changes

    async def reassign(
        self, stream_id: str, partition: PartitionId, replicas: Sequence[int] | None
    ) -> None:
        self.asked.append(("reassign", int(partition), replicas and tuple(replicas)))
        if self.error is not None:
            raise self.error

    # -- what a test changes

    def lead(self, log: PartitionHandle, leader: int, epoch: int, **more: Any) -> ReplicaPlaces:
        """Another leader for a partition, as the rows say."""
        key = (log.stream, int(log.id))
        row = self.rows.get(key, self.others)._replace(leader=leader, epoch=epoch, **more)
        self.rows[key] = row
        return row


class Standing:
    """A leader's progress that stands still."""

    def __init__(self, offset: int = 0, *, is_settled: bool = True, is_fresh: bool = True) -> None:
        self.offset: Any = offset
        self.is_settled = is_settled
        self.is_fresh = is_fresh

    def moved(self, written: int, durable: int) -> Any:
        del written, durable
        return self.offset


def depose(log: Partition, epoch: int = 1) -> None:
    """Another node leads a partition from now on."""
    log.replica.become(Role.FOLLOWER, epoch)


def lead(log: Partition, epoch: int, progress: Progress | None = None) -> None:
    """This node leads a partition from now on."""
    log.replica.become(Role.LEADER, epoch, progress)


@contextmanager
def clustered(broker: Any) -> Iterator[FakeCluster]:
    """The broker is a node of three for the length of a block."""
    before, broker.cluster = broker.cluster, FakeCluster()
    try:
        yield broker.cluster
    finally:
        broker.cluster = before


__all__ = ["NO_NODE", "Conflict", "FakeCluster", "Standing", "clustered", "depose", "lead", "place"]
