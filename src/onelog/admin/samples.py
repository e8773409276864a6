"""The numbers of every stream for a scrape, taken from the same view as the API.

Rule: labels are stream names, which an operator or a topic creation chose and limits bound; never
cursor or client names, which any peer may choose.
"""

from __future__ import annotations

from collections.abc import Iterator

from onelog.admin.contract import PAGE_MAX, BrokerView, StreamInfo
from onelog.observe import Sample


def stream_samples(broker: BrokerView | None) -> Iterator[Sample]:
    """Streams, their partitions, records and bytes; nothing while the broker is not open."""
    if broker is None:
        return
    count = 0
    for stream in _every_stream(broker):
        count += 1
        labels = (("stream", stream.name),)
        yield Sample(
            "onelog_stream_partitions",
            "Partitions of a stream.",
            "gauge",
            stream.partitions,
            labels,
        )
        yield Sample(
            "onelog_stream_size_bytes",
            "Bytes that a stream holds.",
            "gauge",
            stream.size_bytes,
            labels,
        )
        yield Sample(
            "onelog_stream_records",
            "Offsets between start and end of a stream.",
            "gauge",
            stream.records,
            labels,
        )
    yield Sample("onelog_streams", "Streams that exist.", "gauge", count)


def _every_stream(broker: BrokerView) -> Iterator[StreamInfo]:
    after = ""
    while page := broker.streams(after, PAGE_MAX):
        yield from page
        after = page[-1].name
