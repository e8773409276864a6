"""Kafka as operators see it: connections, groups, transactions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from onelog.base.errors import Conflict, NotFound, OnelogError
from onelog.base.ids import TimestampMs
from onelog.base.topics import matches
from onelog.broker import PartitionHandle
from onelog.broker.showing import (
    ConnectionRow,
    ConsumerGroupRow,
    GroupPosition,
    MemberRow,
    ReaderRow,
    Traffic,
    TransactionRow,
    WriterRow,
    connection_id,
    plain_row,
    written_by,
)
from onelog.protocols.kafka.connection import Connection
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.groups.group import Group
from onelog.protocols.kafka.hub import Hub
from onelog.protocols.kafka.topics import TopicPartition
from onelog.protocols.kafka.transactions.state import Facts

_ROWS_MAX: Final = 1000
"""Members and positions of a group that are shown."""


class KafkaDesk:
    """What there is of Kafka now."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def traffic(self) -> Traffic:
        """Its counters now. Fetches send stored bytes, whose messages nobody counts."""
        hub = self._hub
        return Traffic(
            connections=len(hub.connections),
            received_messages=hub.broker.publisher.batched_messages,
            sent_messages=None,
            received_bytes=hub.counters.received_bytes,
            sent_bytes=hub.counters.sent_bytes,
        )

    def connections(self) -> Iterator[ConnectionRow]:
        """Every connection."""
        return map(_row, list(self._hub.connections))

    def kick(self, connection: str, reason: str) -> int:
        """Close the connections of this id; Kafka has no word for why."""
        found = [row for row in self._hub.connections if _id(row) == connection]
        for row in found:
            row.close(reason)
        return len(found)

    def readers(self, topic: str, partition: PartitionHandle) -> Iterator[ReaderRow]:
        """Groups that committed an offset in a Kafka topic or view which shows the topic."""
        for group in list(self._hub.groups.listed()):
            offsets = self._hub.groups.offsets.find(group.name)
            for (name, number), committed in [] if offsets is None else list(offsets.places()):
                place = self._place(name, number)
                if place is None or place[1].log is not partition:
                    continue
                if place[0] == topic or matches(place[0], topic):
                    yield ReaderRow(
                        name=group.name,
                        kind="group",
                        protocol="kafka",
                        topic=name,
                        offset=committed.offset,
                        connected=len(group.members),
                    )

    def writers(self, topic: str) -> Iterator[WriterRow | None]:
        """Connections that produced to the topic."""
        shows: dict[str, bool] = {}
        for row in list(self._hub.connections):
            found = False
            for name in list(row.written):
                if name not in shows:
                    shows[name] = self.address(name) == topic
                found = found or shows[name]
            yield written_by(_row(row)) if found else None

    def address(self, name: str) -> str | None:
        """The topic or filter that a Kafka topic shows; None: there is no such topic."""
        try:
            topic = self._hub.topics.find(name)
        except (KafkaError, OnelogError):
            return None
        return None if topic is None else topic.address

    def _place(self, name: str, number: int) -> tuple[str, TopicPartition] | None:
        try:
            topic = self._hub.topics.find(name)
            return None if topic is None else (topic.address, topic.partition(number))
        except (KafkaError, OnelogError):
            return None  # it is gone, or no name at all

    # -- groups

    def group_names(self) -> list[str]:
        """Every group, in no order."""
        return [group.name for group in self._hub.groups.listed()]

    def _group(self, name: str) -> Group:
        self._hub.groups.check(name)
        group = self._hub.groups.find(name)
        if group is None:
            raise NotFound(f"there is no group {name!r}; GET /api/v1/kafka/groups lists them")
        return group

    def group(self, name: str) -> ConsumerGroupRow:
        """One group. Raises NotFound."""
        group = self._group(name)
        offsets = self._hub.groups.offsets.find(name)
        places = [] if offsets is None else sorted(offsets.places())[:_ROWS_MAX]
        positions = []
        for (topic, number), committed in places:
            place = self._place(topic, number)
            positions.append(
                GroupPosition(
                    topic=topic,
                    partition=number,
                    offset=committed.offset,
                    end=None if place is None else place[1].end(committed=True),
                    committed_ms=committed.committed_ms,
                )
            )
        members = list(islice(group.members, _ROWS_MAX))
        return ConsumerGroupRow(
            name=name,
            state=group.state.value,
            protocol=group.protocol or "",
            generation=group.generation,
            members=[
                MemberRow(id=row.id, client_id=row.client_id, host=row.client_host)
                for row in members
            ],
            member_count=len(group.members),
            positions=positions,
            lag=sum(max(0, row.end - row.offset) for row in positions if row.end is not None),
        )

    async def seek_group(
        self, name: str, topic: str, partition: int | None, to: str, value: int
    ) -> None:
        """Commit other offsets for a group without members. Raises NotFound, Conflict."""
        _check_idle(self._group(name))
        try:
            shown = self._hub.topics.get(topic)
        except KafkaError as error:
            raise NotFound(f"there is no Kafka topic {topic!r}: {error}") from None
        numbers = range(shown.partition_count) if partition is None else (partition,)
        wanted = {}
        for number in numbers:
            try:
                place = shown.partition(number)
            except KafkaError as error:
                raise NotFound(str(error)) from None
            wanted[(topic, number)] = (await _offset(place, to, value), -1, "")
        _check_idle(self._group(name))
        try:
            await self._hub.groups.offsets.commit(name, wanted)
        except KafkaError as error:
            raise Conflict(f"the offsets of {name} could not be written: {error}") from None

    async def delete_group(self, name: str) -> None:
        """Forget a group without members. Raises NotFound, Conflict."""
        _check_idle(self._group(name))
        code = await self._hub.groups.delete(name)
        if code is not ErrorCode.none:
            raise Conflict(f"the group {name!r} was not deleted: {code.name}")

    # -- transactions

    def transactions(self) -> Iterator[TransactionRow]:
        """Every transactional id."""
        return (_transaction(name, facts) for name, facts in list(self._hub.transactions.listed()))

    def transaction(self, name: str) -> TransactionRow:
        """One transactional id. Raises NotFound."""
        facts = self._hub.transactions.find(name)
        if facts is None:
            raise NotFound(
                f"there is no transactional id {name!r}; GET /api/v1/kafka/transactions lists them"
            )
        return _transaction(name, facts)

    async def abort_transaction(self, name: str) -> None:
        """Abort what is open and fence its producer. Raises NotFound, Conflict."""
        self.transaction(name)
        try:
            await self._hub.transactions.abort(name)
        except KafkaError as error:
            raise Conflict(str(error)) from None


def _check_idle(group: Group) -> None:
    if len(group.members):
        raise Conflict(
            f"the group {group.name!r} has {len(group.members)} members, which would overwrite"
            " this: stop them first"
        )


async def _offset(place: TopicPartition, to: str, value: int) -> int:
    ends = place.ends()
    if to == "earliest":
        return int(ends.start)
    if to == "latest":
        return int(ends.high_watermark)
    if to == "time":
        found = await place.offset_for_time(TimestampMs(value))
        return int(ends.high_watermark if found is None else found[0])
    return min(max(value, int(ends.start)), int(ends.high_watermark))


def _transaction(name: str, facts: Facts) -> TransactionRow:
    return TransactionRow(
        id=name,
        state=facts.state.value,
        producer_id=facts.producer_id,
        epoch=facts.epoch,
        timeout_ms=facts.timeout_ms,
        started_ms=None if facts.started_ms < 0 else facts.started_ms,
        updated_ms=facts.updated_ms,
        partitions=[f"{topic}-{number}" for topic, number in sorted(facts.partitions)][:_ROWS_MAX],
        groups=sorted(facts.groups)[:_ROWS_MAX],
    )


def _id(connection: Connection) -> str:
    return connection_id(connection.peer.listener, connection.peer.address)


def _row(connection: Connection) -> ConnectionRow:
    identity = connection.identity
    state = "authenticating" if identity is None else "connected"
    return plain_row("kafka", connection.peer, identity, connection.client_id, state)
