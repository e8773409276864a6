"""Assembles the coordinator from the broker, the topics and the groups."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Protocol

from onelog.base.clock import Clock
from onelog.base.errors import OnelogError
from onelog.broker import Broker, PartitionHandle
from onelog.broker.kept import KeptTable
from onelog.broker.producer_ids import ProducerIds
from onelog.config.kafka import KafkaTransactions
from onelog.protocols.kafka.topics import Topics
from onelog.protocols.kafka.transactions.completion import Completion
from onelog.protocols.kafka.transactions.coordinator import STREAM, Coordinator
from onelog.protocols.kafka.transactions.ids import CallLater
from onelog.protocols.kafka.transactions.links import name_of


class PendingOffsets(Protocol):
    """The offsets of groups that wait for the end of a transaction."""

    def complete(self, group: str, producer_id: int, committed: bool) -> Awaitable[None]:
        """Commit or drop them. Durable when it returns; a repetition does no harm."""
        ...


class _Doors:
    def __init__(self, broker: Broker, topics: Topics, offsets: PendingOffsets) -> None:
        self._broker = broker
        self._topics = topics
        self.complete_offsets = offsets.complete

    def find_log(self, topic: str, partition: int) -> PartitionHandle | None:
        try:
            found = self._topics.find(topic)
            return None if found is None else found.partition(partition).log
        except OnelogError:
            return None  # the topic is another one now

    def all_logs(self) -> Iterator[PartitionHandle]:
        for stream in self._broker.streams.streams():
            yield from stream.partitions


async def open_coordinator(
    broker: Broker,
    topics: Topics,
    offsets: PendingOffsets,
    producer_ids: ProducerIds,
    settings: KafkaTransactions,
    clock: Clock,
    call_later: CallLater | None = None,
) -> Coordinator:
    """Recover the transactions, after topics and groups are open. Raises StateUnknown."""
    table = await KeptTable.open(broker.streams, clock, STREAM, name_of)
    completion = Completion(_Doors(broker, topics, offsets))
    return await Coordinator.open(table, completion, producer_ids, clock, settings, call_later)
