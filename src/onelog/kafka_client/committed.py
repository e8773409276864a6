"""What of fetched batches counts: Kafka's read_committed, as a client has to do it itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onelog.kafka_client.messages import Fetched
from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, BatchInfo
from onelog.record.batch import Marker, read_marker


def committed(answer: Fetched, infos: Iterable[BatchInfo]) -> Iterator[BatchInfo]:
    """The batches that are neither markers nor of aborted transactions."""
    aborted = sorted(answer.aborted, key=lambda pair: pair[1], reverse=True)
    skipped: set[int] = set()
    for info in infos:
        while aborted and aborted[-1][1] <= info.last_offset:
            skipped.add(aborted.pop()[0])
        if info.attributes & ATTR_CONTROL:
            if info.producer_id in skipped and (read_marker(answer.records, info) is Marker.ABORT):
                skipped.discard(info.producer_id)
        elif not (info.attributes & ATTR_TRANSACTIONAL and info.producer_id in skipped):
            yield info
