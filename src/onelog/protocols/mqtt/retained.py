"""Retained messages: a table cursor over what was published with the retain flag.

Rules: it holds places, not messages. While the broker runs it is fed by the live feed, which sees
every batch anyway; after a start it reads what came since its checkpoint. An empty payload clears.
A message is retained for longer than its stream holds its records (`retained_copies`).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from onelog.base.clock import Clock
from onelog.base.ids import Offset
from onelog.broker import Broker, LiveSource, Partition, Record, Source, TableCursor
from onelog.kernel import decode_batch, scan_batches
from onelog.protocols.mqtt.mapping import from_record, is_retained
from onelog.protocols.mqtt.outgoing import Outgoing, prepare
from onelog.protocols.mqtt.retained_copies import Copies
from onelog.record.headers import RETAIN

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection
    from onelog.protocols.mqtt.session import MqttSession
    from onelog.protocols.mqtt.subscribed import Subscribed

CURSOR: Final = "mqtt-retained"
PAGE_MESSAGES: Final = 256
PAGE_BYTES: Final = 64 * 1024
"""Retained messages that are sent to one client before others have a turn."""

_MARK: Final = bytes((len(RETAIN) << 1,)) + RETAIN + b"\x021"
"""The retain header as a record holds it: a batch without these bytes has no retained message."""


def accepts(record: Record) -> bool:
    """Whether a record counts for the table."""
    return is_retained(record.headers)


class Retained:
    """The retained messages of a broker."""

    def __init__(self, broker: Broker, table: TableCursor, copies: Copies, most: int) -> None:
        self._broker = broker
        self._table = table
        self._copies = copies
        self._most = most
        self.refused = 0
        """Messages that were not retained because there are too many."""

    @classmethod
    async def open(cls, broker: Broker, clock: Clock, most: int) -> Retained:
        """Bring the table up to date with the log."""
        table = await broker.cursors.open_table(CURSOR, ["#"], accepts=accepts, follow=False)
        table.position_of = lambda key: (
            None if (source := broker.live.find(key)) is None else source.position
        )
        return cls(broker, table, await Copies.open(broker, clock, table), most)

    def __len__(self) -> int:
        return len(self._table)

    def note_batches(self, source: LiveSource, data: bytes | bytearray) -> None:
        """Batches became visible: see what they retain."""
        if _MARK not in data:
            return
        fixed = source.fixed_topic
        for info in scan_batches(data, 0, False):
            slices = decode_batch(data, info.position, None, False)
            for index in range(len(slices)):
                offset, _time, _key, value, headers = slices.record(index)
                topic = fixed if fixed is not None else slices.topic(index)
                if topic is not None and is_retained(headers):
                    self._note(topic.decode(), source, offset, present=bool(value))

    def note_records(self, source: LiveSource, records: list[Record]) -> None:
        """Records became visible: see what they retain."""
        for record in records:
            if is_retained(record.headers):
                self._note(record.topic, source, record.offset, present=bool(record.value))

    def _note(self, topic: str, source: LiveSource, offset: int, *, present: bool) -> None:
        if present and len(self._table) >= self._most and topic not in self._table:
            self.refused += 1
            return
        if topic in self._copies:
            self._copies.drop(topic)
        self._table.note(topic, source.key, offset, present=present)

    # -- records that leave

    async def before_trim(self, partition: Partition, start: Offset) -> None:
        """Retention takes records below an offset: what is retained stays."""
        key = (self._broker.streams.get(partition.stream).record.id, int(partition.id))
        await self._copies.carry(key, start, lambda _record: True)

    async def before_compaction(self, partition: Partition, upto: Offset) -> None:
        """Compaction takes what a later message of its topic follows, retained or not."""
        stream = self._broker.streams.get(partition.stream)
        source = Source(stream, partition)
        if stream.config.internal:
            return

        def is_followed(record: Record) -> bool:
            return self._broker.cursors.has_later(source, record.topic, record.offset + 1)

        await self._copies.carry(source.key, upto, is_followed)

    def send(self, connection: Connection, wanted: Subscribed) -> None:
        """Send what a new subscription finds retained."""
        if connection.session is not None:
            numbers = self._table.matching(wanted.filter)
            if numbers:
                _Greeting(self._table, connection.session, wanted, numbers).go_on()


class _Greeting:
    """The retained messages for one new subscription, sent as the client takes them (I8)."""

    def __init__(
        self, table: TableCursor, session: MqttSession, wanted: Subscribed, numbers: array[int]
    ) -> None:
        self._table = table
        self._session = session
        self._wanted = wanted
        self._numbers = numbers
        self._next = 0

    def go_on(self) -> None:
        """Send a page, then give others a turn."""
        session = self._session
        connection = session.connection
        if connection is None or session.subscriptions.get(self._wanted.filter) is not self._wanted:
            return
        packets: list[Outgoing] = []
        size_bytes = 0
        while (
            self._next < len(self._numbers)
            and session.output.room
            and len(packets) < PAGE_MESSAGES
            and size_bytes < PAGE_BYTES
            and not connection.is_slow
        ):
            packet = self._prepare(self._numbers[self._next])
            self._next += 1
            if packet is not None:
                packets.append(packet)
                size_bytes += len(packet.data)
        session.post(packets)
        if self._next == len(self._numbers):
            return
        if session.output.room and not connection.is_slow:
            session.hub.loop.call_soon(self.go_on)
        else:
            session.ask_for_room(self)

    def _prepare(self, number: int) -> Outgoing | None:
        record, wanted, session = self._table.record(number), self._wanted, self._session
        if record is None or not session.may_have(record.topic):
            return None
        publish = from_record(
            record,
            now_ms=session.hub.clock.now_ms(),
            qos_max=wanted.qos,
            retain=True,
            packet_id=1,
            subscription_ids=(wanted.identifier,) if wanted.identifier else (),
        )
        place = session.hub.broker.live.place_of(record)
        if publish is None or place is None:
            return None
        return prepare(session.output, publish, place)
