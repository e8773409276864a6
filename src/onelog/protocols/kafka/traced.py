"""Kafka with tracing: a span for each traced record that goes out with the answer to a fetch.

Rules: in use only while tracing is on (`Broker.traces`). The stored bytes go out as they are; they
are looked through afterwards. Records below the offset that the client asked for, and those of
aborted transactions, which the client throws away, have no span.
"""

from __future__ import annotations

from collections.abc import Iterator

from onelog.broker import Spans
from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.protocols.kafka.fetch_parts import Row, Wanted
from onelog.protocols.kafka.fetching import Fetch
from onelog.record.headers import Headers

PROTOCOL = "kafka"
_NO_END = 2**63


class TracedFetch(Fetch):
    """A fetch whose records have spans."""

    __slots__ = ()

    def _send(self, topics: list[tuple[str | bytes, list[Row]]]) -> None:
        spans = self._connection.hub.broker.traces
        assert spans is not None
        begin_ns = spans.now_ns()
        super()._send(topics)
        for name, wanted in self._topics:
            for part in wanted:
                if part.error is None and part.fetched.records:
                    spans.delivered_run(PROTOCOL, self._traced(spans, name, part), begin_ns)

    def _traced(
        self, spans: Spans, name: str | bytes, part: Wanted
    ) -> Iterator[tuple[str, Headers, dict[str, str | int]]]:
        aborted = {row[0] for row in part.fetched.aborted} if self._committed else set()
        for data in part.fetched.records:
            for offset, topic, headers, info in spans.traced_in(data, part.offset, _NO_END):
                if info.attributes & ATTR_TRANSACTIONAL and info.producer_id in aborted:
                    continue
                # The records of a stream made for one topic do not carry it; its name is the topic.
                shown = topic.decode(errors="replace") if topic is not None else str(name)
                about: dict[str, str | int] = {
                    "messaging.client.id": self._connection.client_id,
                    "messaging.destination.partition.id": str(part.number),
                    "messaging.onelog.offset": offset,
                }
                yield shown, headers, about
