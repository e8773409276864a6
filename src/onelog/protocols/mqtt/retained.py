"""Retained messages: a table cursor over messages that were published with the retain flag.

Rules: it holds places, not messages. While the broker runs, the live feed updates it, because it
sees every batch anyway; after a start it reads the records since its checkpoint. An empty payload
clears. A message stays retained even after its stream has dropped its record (`retained_copies`).
A start reads no history that lies in the object store only; what the table never read of it comes
later (`retained_history`).
"""

from __future__ import annotations

import secrets
from array import array
from typing import TYPE_CHECKING, Final

from onelog.base.clock import Clock
from onelog.base.errors import NotLeader
from onelog.base.ids import Offset
from onelog.broker import (
    LOCAL,
    Broker,
    Live,
    LiveSource,
    PartitionHandle,
    Record,
    Source,
    TableCursor,
)
from onelog.kernel import check_topic, decode_batch, scan_batches
from onelog.protocols.mqtt.greeting import Greeting
from onelog.protocols.mqtt.mapping import is_retained
from onelog.protocols.mqtt.retained_copies import Copies
from onelog.protocols.mqtt.retained_history import MARK, SPECIAL, RetainedHistory

if TYPE_CHECKING:
    from onelog.protocols.mqtt.session import MqttSession
    from onelog.protocols.mqtt.session_state import GreetingRow

CURSOR: Final = "mqtt-retained"


def accepts(record: Record) -> bool:
    """Whether a record counts for the table."""
    return is_retained(record.headers)


async def _is_wanted(_record: Record) -> bool:
    return True


class Retained:
    """The retained messages of a broker."""

    def __init__(
        self, broker: Broker, live: Live, table: TableCursor, copies: Copies, most: int
    ) -> None:
        self.history = RetainedHistory(broker, live, table, copies, self._note_found)
        """Reads what lies in the object store only."""
        table.position_of = self.history.position_of
        self._broker = broker
        self._table = table
        self._copies = copies
        self._most = most
        self._run = secrets.token_hex(8)
        """The run of the broker: numbers of topics are valid in one run only."""
        self.refused = 0
        """Messages that were not retained because there are too many."""

    @classmethod
    async def open(cls, broker: Broker, live: Live, clock: Clock, most: int) -> Retained:
        """Bring the table up to date with the log.

        Where elections decide, it is each node's own, made anew of what the node holds.
        """
        is_kept = not broker.shards.is_elected
        cleared: set[str] = set()

        def note(record: Record) -> bool:
            found = accepts(record)
            if found:
                (cleared.discard if record.value else cleared.add)(record.topic)
            return found

        table = await broker.cursors.open_table(
            CURSOR,
            ["#"],
            accepts=accepts if is_kept else note,
            follow=False,
            near=True,
            durable=is_kept,
            principal=LOCAL,
        )
        copies = await Copies.open(broker, live, clock, table, None if is_kept else cleared)
        return cls(broker, live, table, copies, most)

    def __len__(self) -> int:
        return len(self._table)

    def matching(self, text: str) -> list[int]:
        """The numbers of the topics of a filter, ascending."""
        return sorted(self._table.matching(text))

    async def record(self, number: int) -> Record | None:
        """What is retained under a number; None when it is no more."""
        return await self._table.record(number)

    def close(self) -> None:
        """Follow other nodes no more. Idempotent."""
        self._copies.close()

    async def catch_up(self) -> None:
        """Read to the end of the log. At the end it returns without letting others run."""
        await self._table.start_following(once=True)

    def note_batches(self, source: LiveSource, data: bytes | bytearray, upto: int) -> None:
        """Plain batches became visible: note the messages below an offset that they retain."""
        if MARK not in data:
            return
        fixed = source.fixed_topic
        for info in scan_batches(data, 0, False):
            if info.attributes & SPECIAL:
                return  # from here on they come as records
            slices = decode_batch(data, info.position, None, False)
            for index in range(len(slices)):
                offset, _time, _key, value, headers = slices.record(index)
                topic = fixed if fixed is not None else slices.topic(index)
                if offset < upto and topic is not None and is_retained(headers):
                    self._note(topic, source, offset, present=bool(value))

    def note_record(self, source: LiveSource, record: Record) -> None:
        """A record became visible: note whether it is retained."""
        if is_retained(record.headers):
            self._note(record.topic.encode(), source, record.offset, present=bool(record.value))

    def _note(self, name: bytes, source: LiveSource, offset: int, *, present: bool) -> None:
        if not check_topic(name):
            return  # no subscriber could get it
        topic = name.decode()
        if present and len(self._table) >= self._most and topic not in self._table:
            self.refused += 1
            return
        if topic in self._copies:
            self._copies.drop(topic)
        self._table.note(topic, source.key, offset, present=present)

    def _note_found(self, name: bytes, source: LiveSource, offset: int, is_there: bool) -> None:
        self._note(name, source, offset, present=is_there)

    # -- records that leave

    async def before_trim(self, partition: PartitionHandle, start: Offset) -> None:
        """Retention takes records below an offset: copy the retained ones.

        Where another node leads the partition, that node copies them, and this one waits for it.
        """
        key = (self._broker.streams.get(partition.stream).record.id, int(partition.id))
        if isinstance(partition.refusal, NotLeader):
            await self._copies.check_carried(key, start, _is_wanted)
        else:
            await self._copies.carry(key, start, _is_wanted)

    async def before_compaction(self, partition: PartitionHandle, upto: Offset) -> None:
        """Compaction takes records that a later message of their topic follows, retained or not.

        Where another node leads the partition, that node copies them, and this one waits for it.
        """
        stream = self._broker.streams.get(partition.stream)
        source = Source(stream, partition)
        if stream.is_internal:
            return

        async def is_followed(record: Record) -> bool:
            return await self._broker.cursors.has_later(source, record.topic, record.offset + 1)

        if isinstance(partition.refusal, NotLeader):
            await self._copies.check_carried(source.key, upto, is_followed)
        else:
            await self._copies.carry(source.key, upto, is_followed)

    # -- greetings

    def greet(self, session: MqttSession, text: str, row: GreetingRow | None = None) -> None:
        """Let a session send the retained messages of a subscription, or the rest of them."""
        greeting = Greeting(
            self._table, self._run, session, text, array("Q", sorted(self._table.matching(text)))
        )
        if row is not None:
            greeting.skip(row)
        if greeting:
            session.greetings[text] = greeting
