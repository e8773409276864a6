"""A stream: its configuration, its partitions, and which topic a record of it has.

Rules: a stream that captures one exact topic, and is the first to hold it, does not write the topic
beside each record; its records have that topic (`fixed_topic`). When it comes to capture more,
records from then on carry their topic, and the old ones keep the fixed one, up to the offsets in
`fixed_until`.
"""

from __future__ import annotations

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.base.ids import PartitionId
from onelog.kernel import topic_hash
from onelog.log.config import StreamConfig
from onelog.log.moves import Move
from onelog.log.partition import Partition
from onelog.storage.engine import PartitionKey


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata store keeps of a stream."""

    id: str
    config: StreamConfig
    created_ms: int
    fixed_topic: str | None = None
    fixed_until: tuple[int, ...] | None = None
    """Per partition the offset from which records carry their topic; None: none does."""
    grown: bool = False
    """Whether partitions were added, so that a topic's older records may lie in another one."""
    growth: tuple[tuple[int, int], ...] = ()
    """(when, how many partitions there were before) of each time that partitions were added."""
    past_captures: tuple[str, ...] = ()
    """Filters that it once captured: their records may still be here."""
    moves: tuple[Move, ...] = ()
    """How it came to hold topics of others, in their order."""

    def births(self) -> list[tuple[int, int]]:
        """(since when, how many partitions) for each time that their number changed."""
        starts = (self.created_ms, *(when_ms for when_ms, _before in self.growth))
        counts = (*(before for _when_ms, before in self.growth), self.config.partitions)
        return list(zip(starts, counts, strict=True))


def begun_anew(record: StreamRecord, new_id: str) -> StreamRecord:
    """The record of a stream that holds nothing any more, and whose offsets begin at 0."""
    # Where records began to carry their topic is an offset of what is gone: all of them do now.
    fixed = record.fixed_topic if record.fixed_until is None else None
    moves = tuple(msgspec.structs.replace(move, ends=()) for move in record.moves)
    return msgspec.structs.replace(
        record, id=new_id, moves=moves, fixed_topic=fixed, fixed_until=None, past_captures=()
    )


class Stream:
    """A stream that is open on this node."""

    __slots__ = ("partitions", "record")

    def __init__(self, record: StreamRecord, partitions: list[Partition]) -> None:
        self.record = record
        self.partitions = partitions

    @property
    def config(self) -> StreamConfig:
        """The configuration in force."""
        return self.record.config

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.record.config.name

    @property
    def tags_topics(self) -> bool:
        """Whether records written now carry their topic."""
        return self.record.fixed_topic is None or self.record.fixed_until is not None

    @property
    def record_count(self) -> int:
        """Offsets that it holds and that are no markers; compaction leaves gaps in them."""
        return sum(
            partition.end_offset - partition.start_offset - partition.producers.markers.count
            for partition in self.partitions
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of batches that it holds."""
        return sum(partition.log.size_bytes for partition in self.partitions)

    def key(self, partition: PartitionId) -> PartitionKey:
        """The storage key of one of its partitions."""
        return PartitionKey(self.record.id, partition)

    def partition(self, number: int) -> Partition:
        """A partition by number; InvalidRequest when there is none."""
        if not 0 <= number < len(self.partitions):
            raise InvalidRequest(
                f"stream {self.name} has partitions 0 to {len(self.partitions) - 1}, not {number}"
            )
        return self.partitions[number]

    def partition_of(self, topic: bytes) -> Partition:
        """The partition where a topic lives when its producer chose none."""
        return self.partitions[topic_hash(topic) % len(self.partitions)]

    def fixed_topic_at(self, partition: int, offset: int) -> str | None:
        """The topic that records at `offset` have without carrying it; None: they carry it."""
        until = self.record.fixed_until
        if until is None or (partition < len(until) and offset < until[partition]):
            return self.record.fixed_topic
        return None
