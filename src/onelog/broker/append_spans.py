"""A span for each record with a trace: from its time stamp until it is durable and readers see it.

Rules: it follows the end of the log as protocols do. Without it nothing looks for traces, so it
costs nothing when it is off. It decodes only batches that hold the name of the header, or cannot be
searched because they are compressed. At most `SPANS_PER_SECOND_MAX` spans are made (I8); beyond
that records are counted and not looked at. The record itself is never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from onelog.base.clock import Clock
from onelog.base.limits import SPANS_PER_SECOND_MAX
from onelog.broker.live_sources import LiveSource
from onelog.kernel import ATTR_CODEC_MASK, ATTR_TRANSACTIONAL, scan_batches
from onelog.observe import Sample
from onelog.record.record import Record

PARENT: Final = b"traceparent"
STATE: Final = b"tracestate"
_UNREADABLE: Final = ATTR_CODEC_MASK | ATTR_TRANSACTIONAL
_OLD_MS: Final = 60_000
"""A time stamp that is older was not taken when the record was published: a copy, a replay."""


class SpanSink(Protocol):
    """Takes spans that are over."""

    def add(
        self, name: str, carrier: dict[str, str], times_ns: tuple[int, int], about: dict[str, str]
    ) -> None:
        """A span under the context of a carrier."""
        ...


class AppendSpans:
    """A listener of a live feed."""

    def __init__(self, sink: SpanSink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._second = 0
        self._made = 0
        self.left_out = 0
        """Batches and records that came when this second's share was used up."""

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Pass over batches without a trace; the feed hands over the records of the others."""
        infos = scan_batches(data, 0, False)
        if PARENT not in data and not any(row.attributes & _UNREADABLE for row in infos):
            return int(infos[-1].last_offset) + 1
        if not self._has_share():
            self.left_out += 1
            return int(infos[-1].last_offset) + 1
        return source.position

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Make the spans of records that are durable now."""
        del source
        for record in records:
            found = {name: value for name, value in record.headers if name in (PARENT, STATE)}
            if PARENT in found and found[PARENT] is not None:
                self._add(record, found)

    def release(self, numbers: set[int]) -> set[int]:
        """It holds no places."""
        del numbers
        return set()

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield Sample(
            "onelog_spans_left_out_total",
            "Batches and records with a trace, beyond the spans of their second.",
            "counter",
            self.left_out,
        )

    def _has_share(self) -> bool:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._made = second, 0
        return self._made < SPANS_PER_SECOND_MAX

    def _add(self, record: Record, found: dict[bytes, bytes | None]) -> None:
        if not self._has_share():
            self.left_out += 1
            return
        self._made += 1
        end_ms = self._clock.now_ms()
        begin_ms = record.timestamp_ms if 0 <= end_ms - record.timestamp_ms <= _OLD_MS else end_ms
        carrier = {
            name.decode(): value.decode(errors="replace")
            for name, value in found.items()
            if value is not None
        }
        about = {
            "messaging.system": "onelog",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.onelog.stream": record.stream,
            "messaging.onelog.offset": str(record.offset),
        }
        times = (begin_ms * 1_000_000, end_ms * 1_000_000)
        self._sink.add(f"append {record.stream}", carrier, times, about)
