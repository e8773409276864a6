"""The spans of a traced message on its way into the log: `publish`, and `append` under it.

Rules: it follows the end of the log as protocols do. Without it nothing looks for traces, so it
costs nothing when it is off. It decodes only batches that hold the name of the header, or cannot be
searched because they are compressed. Both spans end when the record is durable and readers see it,
which is also when its publisher gets its answer (I4). `publish` begins with the record's time
stamp, `append` when the broker wrote the record.
"""

from __future__ import annotations

from typing import Final

from onelog.broker.live_sources import LiveSource
from onelog.broker.spans import PARENT, Spans
from onelog.broker.write_times import WriteTimes
from onelog.kernel import ATTR_CODEC_MASK, ATTR_TRANSACTIONAL, scan_batches
from onelog.record.record import Record

_UNREADABLE: Final = ATTR_CODEC_MASK | ATTR_TRANSACTIONAL
_OLD_NS: Final = 60 * 1_000_000_000
"""A time stamp that is older was not taken when the record was published: a copy, a replay."""


class AppendSpans:
    """A listener of a live feed."""

    def __init__(self, spans: Spans, writes: WriteTimes) -> None:
        self._spans = spans
        self._writes = writes

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Pass over batches without a trace; the feed hands over the records of the others."""
        infos = scan_batches(data, 0, False)
        if PARENT not in data and not any(row.attributes & _UNREADABLE for row in infos):
            return int(infos[-1].last_offset) + 1
        if not self._spans.has_share:
            self._spans.left_out += 1
            return int(infos[-1].last_offset) + 1
        return source.position

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Make the spans of records that are durable now."""
        for record in records:
            context = self._spans.context(record.headers)
            if context is None:
                continue
            about: dict[str, str | int] = {
                "messaging.destination.name": record.topic,
                "messaging.destination.partition.id": str(record.partition),
                "messaging.onelog.stream": record.stream,
                "messaging.onelog.offset": record.offset,
            }
            end_ns = self._spans.now_ns()
            stamp_ns = record.timestamp_ms * 1_000_000
            written_ns = self._writes.find(source.partition, record.offset) or end_ns
            began_ns = stamp_ns if 0 <= end_ns - stamp_ns <= _OLD_NS else written_ns
            # A clock that jumped must not make a span that ends before it begins.
            written_ns = min(max(written_ns, began_ns), end_ns)
            inner = self._spans.add("publish", record.topic, context, (began_ns, end_ns), about)
            self._spans.add("append", record.stream, inner, (written_ns, end_ns), about)

    def release(self, numbers: set[int]) -> set[int]:
        """It holds no places."""
        del numbers
        return set()
