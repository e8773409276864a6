"""Which batches belong to aborted transactions.

Rules: transactions of one producer follow each other, so the last one that began before a batch is
the batch's own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from onelog.kernel import ATTR_TRANSACTIONAL, BatchInfo
from onelog.objects.piece import AbortedSpan

_OFFSET_MAX: Final = (1 << 63) - 1


class AbortedBatches:
    """Aborted transactions, by their producers."""

    def __init__(self, spans: Iterable[AbortedSpan]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for span in spans:
            self._by_producer.setdefault(span.producer_id, []).append((span.first, span.last))
        for ranges in self._by_producer.values():
            ranges.sort()

    def has(self, info: BatchInfo) -> bool:
        """Whether a batch was aborted."""
        if not info.attributes & ATTR_TRANSACTIONAL:
            return False
        ranges = self._by_producer.get(info.producer_id, [])
        at = bisect_right(ranges, (info.base_offset, _OFFSET_MAX))
        return at > 0 and info.base_offset <= ranges[at - 1][1]
