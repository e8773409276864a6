"""Retained messages: a table cursor over what was published with the retain flag.

Rules: it holds places, not messages. While the broker runs it is fed by the live feed, which sees
every batch anyway; after a start it reads what came since its checkpoint. An empty payload clears.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from onelog.broker import Broker, LiveSource, Record, TableCursor
from onelog.kernel import decode_batch, scan_batches
from onelog.protocols.mqtt.mapping import from_record, is_retained
from onelog.protocols.mqtt.outgoing import Outgoing, prepare
from onelog.record.headers import RETAIN

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection
    from onelog.protocols.mqtt.subscribed import Subscribed

CURSOR: Final = "mqtt-retained"
_MARK: Final = bytes((len(RETAIN) << 1,)) + RETAIN + b"\x021"
"""The retain header as a record holds it: a batch without these bytes has no retained message."""


def accepts(record: Record) -> bool:
    """Whether a record counts for the table."""
    return is_retained(record.headers)


class Retained:
    """The retained messages of a broker."""

    def __init__(self, table: TableCursor) -> None:
        self._table = table

    @classmethod
    async def open(cls, broker: Broker) -> Retained:
        """Bring the table up to date with the log."""
        table = await broker.cursors.open_table(CURSOR, ["#"], accepts=accepts, follow=False)
        table.position_of = lambda key: (
            None if (source := broker.live.find(key)) is None else source.position
        )
        return cls(table)

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
                    self._table.note(topic.decode(), source.key, offset, present=bool(value))

    def note_records(self, source: LiveSource, records: list[Record]) -> None:
        """Records became visible: see what they retain."""
        for record in records:
            if is_retained(record.headers):
                self._table.note(
                    record.topic, source.key, record.offset, present=bool(record.value)
                )

    def send(self, connection: Connection, wanted: Subscribed) -> None:
        """Send what a new subscription finds retained."""
        session = connection.session
        if session is None:
            return
        identifiers = (wanted.identifier,) if wanted.identifier else ()
        packets: list[Outgoing] = []
        for record in self._table.find(wanted.filter):
            publish = from_record(
                record,
                now_ms=connection.hub.clock.now_ms(),
                qos_max=wanted.qos,
                retain=True,
                packet_id=1,
                subscription_ids=identifiers,
            )
            if publish is None:
                continue
            place = connection.hub.broker.live.place_of(record)
            if place is None or not session.output.room:
                # The window is full: better once without a receipt than never.
                publish = msgspec.structs.replace(publish, qos=0, packet_id=0)
            packet = prepare(session.output, publish, place or (0, 0))
            if packet is not None:
                packets.append(packet)
        session.post(packets)
