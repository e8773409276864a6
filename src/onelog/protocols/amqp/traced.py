"""AMQP with tracing: a span for each traced message that goes out to a consumer.

Rules: in use only while tracing is on (`Broker.traces`); then this stands in place of the plain
consumer. A message that is delivered again has a span again: it did go out.
"""

from __future__ import annotations

from onelog.protocols.amqp.consumer import ChannelConsumer
from onelog.queues.consumers import Delivery
from onelog.queues.ready import OFFSET_MASK
from onelog.queues.window import Data

PROTOCOL = "amqp"


class TracedConsumer(ChannelConsumer):
    """A consumer whose messages have spans."""

    __slots__ = ()

    def take(self, delivery: Delivery) -> bool:
        """Send it a message."""
        spans = self.owner.connection.hub.broker.traces
        assert spans is not None
        begin_ns = spans.now_ns()
        if not super().take(delivery):
            return False
        record = delivery.record
        spans.delivered(PROTOCOL, record.topic, record.headers, begin_ns, self._about())
        return True

    def take_run(self, place: int, count: int, data: Data) -> int:
        """Send messages that follow each other in `data`, as far as they are plain. Returns how
        many."""
        spans = self.owner.connection.hub.broker.traces
        assert spans is not None
        begin_ns = spans.now_ns()
        sent = super().take_run(place, count, data)
        first, about = place & OFFSET_MASK, self._about()
        rows = (
            (topic.decode(errors="replace"), headers, about)
            for _offset, topic, headers, _info in spans.traced_in(data, first, first + sent)
            if topic is not None
        )
        spans.delivered_run(PROTOCOL, rows, begin_ns)
        return sent

    def _about(self) -> dict[str, str]:
        return {"messaging.consumer.tag": self.tag, "messaging.onelog.queue": self.queue.name}
