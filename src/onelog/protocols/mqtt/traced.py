"""MQTT with tracing: a span for each traced message that goes out to clients.

Rules: in use only while tracing is on (`Broker.traces`); then these stand in place of the plain
feed, session and member of a share. A batch with a trace goes out record by record, so that the
broker knows how many clients got each: the kernel's way would hide it. A message that goes out
again, because it was not acknowledged, gets no second span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.broker import LiveSource, Record, Spans
from onelog.broker.spans import PARENT
from onelog.protocols.mqtt.outgoing import Outgoing
from onelog.protocols.mqtt.session import MqttSession
from onelog.protocols.mqtt.shares import ShareMember
from onelog.queues.consumers import Delivery
from onelog.record.headers import Headers

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub

PROTOCOL = "mqtt"


class TracedFeed:
    """A listener of the live feed in front of a hub."""

    def __init__(self, hub: Hub, spans: Spans) -> None:
        self._hub = hub
        self._spans = spans

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Leave batches with a trace to the feed, which hands over their records."""
        if PARENT in data and self._spans.has_share:
            return source.position
        return self._hub.deliver(source, data)

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Give records to all sessions that follow the end."""
        plain: list[Record] = []
        for record in records:
            if not any(name == PARENT for name, _value in record.headers):
                plain.append(record)
                continue
            if plain:
                self._hub.deliver_records(source, plain)
                plain = []
            self._deliver_one(source, record)
        if plain:
            self._hub.deliver_records(source, plain)

    def _deliver_one(self, source: LiveSource, record: Record) -> None:
        begin_ns, before = self._spans.now_ns(), self._hub.fanout.delivered
        self._hub.deliver_records(source, [record])
        clients = self._hub.fanout.delivered - before
        if clients:
            about = {"messaging.onelog.clients": clients, "messaging.onelog.offset": record.offset}
            self._spans.delivered(PROTOCOL, record.topic, record.headers, begin_ns, about)

    def release(self, numbers: set[int]) -> set[int]:
        """Partitions are gone."""
        return self._hub.release(numbers)


class TracedSession(MqttSession):
    """A session whose messages from the log have spans."""

    def _push(self, packets: list[Outgoing]) -> None:
        spans = self.hub.broker.traces
        assert spans is not None
        begin_ns = spans.now_ns()
        super()._push(packets)
        about = {"messaging.client.id": self.client_id}
        rows = ((row.publish.topic, _headers(row), about) for row in packets)
        spans.delivered_run(PROTOCOL, rows, begin_ns)


def _headers(packet: Outgoing) -> Headers:
    rows = packet.publish.properties.user_properties
    return tuple((name.encode(), text.encode()) for name, text in rows)


class TracedMember(ShareMember):
    """A member of a share whose messages have spans."""

    def take(self, delivery: Delivery) -> bool:
        """Send a message."""
        spans = self.session.hub.broker.traces
        assert spans is not None
        begin_ns = spans.now_ns()
        if not super().take(delivery):
            return False
        record, about = delivery.record, {"messaging.client.id": self.session.client_id}
        spans.delivered(PROTOCOL, record.topic, record.headers, begin_ns, about)
        return True
