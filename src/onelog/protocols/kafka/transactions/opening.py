"""Assembles the coordinator from the broker, the topics and the groups."""

from __future__ import annotations

from onelog.base.clock import Clock
from onelog.broker import Broker
from onelog.broker.kept import KeptTable
from onelog.broker.producer_ids import ProducerIds
from onelog.config.kafka import KafkaTransactions
from onelog.protocols.kafka.transactions.completion import Completion
from onelog.protocols.kafka.transactions.coordinator import STREAM, Coordinator
from onelog.protocols.kafka.transactions.ids import CallLater
from onelog.protocols.kafka.transactions.links import name_of
from onelog.protocols.kafka.transactions.participants import Participants


async def open_coordinator(
    broker: Broker,
    participants: Participants,
    producer_ids: ProducerIds,
    settings: KafkaTransactions,
    clock: Clock,
    call_later: CallLater | None = None,
) -> Coordinator:
    """Recover the transactions, after topics and groups are open. Raises StateUnknown."""
    table = await KeptTable.make(broker.streams, clock, STREAM, name_of)
    return await Coordinator.open(
        table, broker.shards, Completion(participants), producer_ids, clock, settings, call_later
    )
