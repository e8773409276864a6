"""What a transaction touches, wherever it lies: its end in partitions and groups of any node.

Rules:
- A partition or group of this node is ended here, in the step of the loop that asks; for others,
  its leader or owner is asked. A leader that cannot be asked, or whose answer is lost, is asked
  again later (`endings.py`): the outcome is decided, and is never guessed.
- The coordinator of a shard numbers its questions. A question that comes after a later one of the
  same coordinator, or from the owner before it, is refused: it may be about an earlier transaction
  of the same producer.
- The question names the epoch of the leader that it is for; another leader refuses it.
- What is gone needs no end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterator
from typing import Final, NamedTuple, Protocol

import msgspec

from onelog.base.errors import Fenced, NotLeader, OnelogError, Unavailable
from onelog.base.ids import Offset
from onelog.broker import NO_NODE, Broker, PartitionHandle
from onelog.protocols.kafka.nodes import check_led, is_led_here
from onelog.protocols.kafka.topics import Topics
from onelog.protocols.kafka.transactions.guards import Guards
from onelog.protocols.kafka.transactions.state import Producer
from onelog.record.batch import Marker

END_PARTITION: Final = "kafka.end-partition"
END_GROUP: Final = "kafka.end-group"
ASK_S: Final = 10.0
"""How long another node may take to make an end durable."""
_NUMBER_BITS: Final = 24


class Decider(NamedTuple):
    """The coordinator that asks for an end."""

    shard: int
    epoch: int
    """Its epoch as the owner of the shard."""


class PartitionPlace(NamedTuple):
    """A partition, wherever it lies, for as long as it exists."""

    stream: str
    stream_id: str
    number: int


class MarkerWish(msgspec.Struct, frozen=True, array_like=True):
    """A question to the leader of a partition."""

    shard: int
    coordinator_epoch: int
    number: int
    place: PartitionPlace
    leader_epoch: int
    commits: bool
    producer: Producer


class OffsetsWish(msgspec.Struct, frozen=True, array_like=True):
    """A question to the owner of a group."""

    shard: int
    coordinator_epoch: int
    number: int
    group: str
    commits: bool
    producer_id: int


class PendingOffsets(Protocol):
    """The offsets of groups that wait for the end of a transaction."""

    def owns(self, group: str) -> bool:
        """Whether the groups of this node are asked, not those of another one. Raises OnelogError
        when they are not known yet."""
        ...

    def complete(
        self, group: str, producer_id: int, committed: bool, coordinator_epoch: int
    ) -> Awaitable[None]:
        """Commit or drop them. Durable when it returns; a repetition does no harm."""
        ...


class Order:
    """The newest question of each coordinator that this node has heard."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}

    def note(self, shard: int, epoch: int) -> None:
        """The owner of a shard has this epoch: earlier owners are over."""
        self._newest[shard] = max(self._newest.get(shard, (-1, 0)), (epoch, 0))

    def take(self, shard: int, epoch: int, number: int) -> None:
        """Take a question. Raises Fenced when a later one came before it."""
        newest = self._newest.get(shard, (-1, 0))
        if (epoch, number) < newest:
            raise Fenced(
                f"question {number} of the coordinator of shard {shard} in epoch {epoch} came after"
                f" {newest[1]} of epoch {newest[0]}"
            )
        self._newest[shard] = (epoch, number)


class Participants:
    """Partitions and groups of all nodes."""

    def __init__(self, broker: Broker, topics: Topics, offsets: PendingOffsets) -> None:
        self._broker = broker
        self._topics = topics
        self._offsets = offsets
        self._number = 0
        self.guards = Guards()
        """Questions about transactions that may end here meanwhile."""
        self.order = Order()
        broker.calls.serve(END_PARTITION, self._end_partition_asked)
        broker.calls.serve(END_GROUP, self._end_group_asked)

    def close(self) -> None:
        """Answer nobody any more."""
        for method in (END_PARTITION, END_GROUP):
            self._broker.calls.serve(method, None)

    # -- looking

    @property
    def is_alone(self) -> bool:
        """Whether all transactions and partitions are this node's own."""
        return not self._broker.cluster.nodes()

    async def know(self, places: Collection[tuple[str, int]]) -> None:
        """Have these partitions of topics known here, as far as they exist: an owner before this
        one may have known streams of which this node has not heard yet. Raises OnelogError."""
        if not self.is_alone and any(self.find_log(*place) is None for place in places):
            await self._broker.streams.refresh()

    def find_log(self, topic: str, partition: int) -> PartitionHandle | None:
        """The partition that holds the records of a topic's partition; None: it is gone."""
        try:
            found = self._topics.find(topic)
            return None if found is None else found.partition(partition).log
        except OnelogError:
            return None  # the topic is another one now

    def all_logs(self) -> Iterator[PartitionHandle]:
        """Every partition that this node knows."""
        for stream in self._broker.streams.streams():
            yield from stream.partitions

    def place_of(self, log: PartitionHandle) -> PartitionPlace:
        """Where a partition lies; it may move from node to node."""
        record = self._broker.streams.get(log.stream).record
        return PartitionPlace(log.stream, record.id, int(log.id))

    def at(self, place: PartitionPlace) -> PartitionHandle | None:
        """The partition at a place; None: it is gone."""
        stream = self._broker.streams.find(place.stream)
        if stream is None or stream.record.id != place.stream_id:
            return None
        return stream.partition(place.number)

    @staticmethod
    def is_here(log: PartitionHandle) -> bool:
        """Whether this node leads a partition."""
        return is_led_here(log)

    # -- asking

    def end_here(
        self, log: PartitionHandle, marker: Marker, producer: Producer, coordinator_epoch: int
    ) -> Offset:
        """Write a marker in a partition of this node. Returns its offset. Raises OnelogError."""
        ended = log.end_transaction(marker, producer.id, producer.epoch, coordinator_epoch)
        self.guards.ended((log, producer.id))
        return ended.base_offset

    async def end_elsewhere(
        self, place: PartitionPlace, marker: Marker, producer: Producer, decider: Decider
    ) -> None:
        """Have a marker written by the leader of a partition. Durable when it returns; it may be
        asked again. Raises OnelogError."""
        log, cluster = self.at(place), self._broker.cluster
        if log is None:
            return
        places = cluster.replicas(place.stream_id, log)
        if places.leader in (NO_NODE, cluster.node):
            raise Unavailable(f"{place.stream}/{place.number} has no leader now")
        commits = marker is Marker.COMMIT
        asked = MarkerWish(*decider, self._next(), place, places.epoch, commits, producer)
        await self._broker.calls.call(places.leader, END_PARTITION, asked, bool, ASK_S)

    async def complete_offsets(
        self, group: str, producer_id: int, decider: Decider, *, committed: bool
    ) -> None:
        """Commit a group's pending offsets, or drop them. Durable when it returns; it may be asked
        again. Raises OnelogError."""
        if self._offsets.owns(group):
            self.guards.ended((group, producer_id))
            await self._offsets.complete(group, producer_id, committed, decider.epoch)
            return
        owner = self._broker.cluster.owner(group.encode())
        if owner in (NO_NODE, self._broker.cluster.node):
            raise Unavailable(f"the group {group} has no coordinator now")
        asked = OffsetsWish(*decider, self._next(), group, committed, producer_id)
        await self._broker.calls.call(owner, END_GROUP, asked, bool, ASK_S)

    def _next(self) -> int:
        """A number above those of this process and, by the node's epoch, of processes before it."""
        cluster = self._broker.cluster
        epoch = next((row.epoch for row in cluster.nodes() if row.id == cluster.node), 0)
        self._number = max(self._number + 1, epoch << _NUMBER_BITS)
        return self._number

    # -- being asked

    async def _end_partition_asked(self, _node: int, argument: msgspec.Raw) -> bool:
        asked = msgspec.msgpack.decode(argument, type=MarkerWish)
        place, log = asked.place, self.at(asked.place)
        if log is None:
            # The asker goes on asking until it knows, too, that the stream is gone.
            raise Unavailable(f"stream {place.stream} of this id is not known here")
        if log.leader_epoch != asked.leader_epoch:
            raise NotLeader(
                f"{place.stream}/{place.number} is in epoch {log.leader_epoch} here, the marker is"
                f" for epoch {asked.leader_epoch}"
            )
        check_led(log)
        self.order.take(asked.shard, asked.coordinator_epoch, asked.number)
        marker = Marker.COMMIT if asked.commits else Marker.ABORT
        offset = self.end_here(log, marker, asked.producer, asked.coordinator_epoch)
        await log.wait_visible(offset)
        return True

    async def _end_group_asked(self, _node: int, argument: msgspec.Raw) -> bool:
        asked = msgspec.msgpack.decode(argument, type=OffsetsWish)
        if not self._offsets.owns(asked.group):
            raise Unavailable(f"this node does not own the group {asked.group}")
        self.order.take(asked.shard, asked.coordinator_epoch, asked.number)
        self.guards.ended((asked.group, asked.producer_id))
        await self._offsets.complete(
            asked.group, asked.producer_id, asked.commits, asked.coordinator_epoch
        )
        return True
