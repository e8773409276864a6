"""The topic index entries of an append, for engines that keep them: u32 pairs, little endian."""

from __future__ import annotations

from collections.abc import Sequence

from onelog.kernel import ATTR_CONTROL, BatchInfo, batch_topics, sort_topic_entries
from onelog.record.batch import inflated_records
from onelog.storage.engine import Buffer


def derive_pairs(data: Buffer, batches: Sequence[BatchInfo]) -> bytes:
    """(topic hash, offset - first batch's base offset) of every record that has a topic."""
    found = bytearray()
    base = batches[0].base_offset
    for info in batches:
        if info.count and not info.attributes & ATTR_CONTROL:
            pairs = batch_topics(data, info.position, inflated_records(data, info))
            found += sort_topic_entries(pairs, info.base_offset - base)
    return bytes(found)
