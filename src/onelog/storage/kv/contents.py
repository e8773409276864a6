"""The keys of one segment: batches, rows and topic entries, written and looked up.

Rules: nothing here locks or has state; a writer passes the `WriteBatch` for its change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from rocksdict import WriteBatch

from onelog.kernel import BatchInfo, sort_topic_entries
from onelog.storage.engine import Buffer
from onelog.storage.kv import keys
from onelog.storage.kv.database import KvDatabase
from onelog.storage.kv.meta import KvSegment

_COMPACT_BYTES_MIN: Final = 16 * 1024 * 1024
"""When this many bytes are dropped, RocksDB is asked to free them now; fewer are freed by its own
compaction."""


def put_batches(
    change: WriteBatch, partition: int, segment: int, data: Buffer, batches: Sequence[BatchInfo]
) -> None:
    """Add batches with their rows."""
    view = memoryview(data)
    of_batch = keys.of_segment(partition, keys.BATCH, segment)
    of_row = keys.of_segment(partition, keys.ROW, segment)
    for info in batches:
        end = info.position + info.size_bytes
        change.put(keys.at_offset(of_batch, info.last_offset), bytes(view[info.position : end]))
        row = keys.BatchRow(info.base_offset, info.max_timestamp_ms, info.size_bytes)
        change.put(keys.at_offset(of_row, info.last_offset), keys.pack_row(row))


def put_pairs(
    change: WriteBatch, partition: int, segment: int, pairs: bytes, first_offset: int
) -> None:
    """Add topic entries: one key per topic hash."""
    prefix = keys.of_segment(partition, keys.TOPIC, segment)
    ordered = struct.iter_unpack("<II", sort_topic_entries(pairs))
    for topic_hash, group in groupby(ordered, itemgetter(0)):
        offsets = [first_offset + delta for _, delta in group]
        change.put(keys.of_topic(prefix, topic_hash, offsets[0]), _pack(offsets))


def drop_segment(change: WriteBatch, partition: int, segment: int) -> None:
    """Delete all of a segment."""
    for kind in keys.OF_SEGMENT:
        prefix = keys.of_segment(partition, kind, segment)
        change.delete_range(prefix, keys.after(prefix))


def cut_segment(db: KvDatabase, change: WriteBatch, partition: int, segment: int, end: int) -> None:
    """Delete the batches that reach `end`, and the topic entries of offsets from there on."""
    for kind in (keys.BATCH, keys.ROW):
        prefix = keys.of_segment(partition, kind, segment)
        change.delete_range(keys.at_offset(prefix, end), keys.after(prefix))
    prefix = keys.of_segment(partition, keys.TOPIC, segment)
    for key, value in db.scan(prefix, keys.after(prefix)):
        offsets = _unpack(key, value)
        kept = [offset for offset in offsets if offset < end]
        if not kept:
            change.delete(key)
        elif len(kept) < len(offsets):
            change.put(key, _pack(kept))


def read_batches(
    db: KvDatabase, partition: int, segment: int, offset: int, max_bytes: int, upto: int
) -> list[bytes]:
    """Batches from the one that holds `offset` or follows it; at least one below `upto`."""
    prefix = keys.of_segment(partition, keys.BATCH, segment)
    found: list[bytes] = []
    size = 0
    for _, data in db.scan(keys.at_offset(prefix, offset), keys.at_offset(prefix, upto)):
        size += len(data)
        if found and size > max_bytes:
            break
        found.append(data)
        if size >= max_bytes:
            break
    return found


def rows(
    db: KvDatabase, partition: int, segment: int, offset: int
) -> Iterator[tuple[int, keys.BatchRow]]:
    """(last offset, row) of the batches from the one that holds `offset` on."""
    prefix = keys.of_segment(partition, keys.ROW, segment)
    for key, value in db.scan(keys.at_offset(prefix, offset), keys.after(prefix)):
        yield keys.offset_of(key), keys.unpack_row(value)


def offsets_of_topic(
    db: KvDatabase, partition: int, segment: int, topic_hash: int, start: int, upto: int
) -> Iterator[int]:
    """Ascending offsets in [start, upto) under a topic's hash."""
    prefix = keys.of_segment(partition, keys.TOPIC, segment)
    floor = keys.of_topic(prefix, topic_hash, 0)
    stop = keys.of_topic(prefix, topic_hash, upto)
    # The entry that begins before `start` may reach beyond it.
    first = keys.of_topic(prefix, topic_hash, start)
    for key, value in db.scan_from_before(floor, first, stop):
        for offset in _unpack(key, value):
            if start <= offset < upto:
                yield offset


def _pack(offsets: Sequence[int]) -> bytes:
    first = offsets[0]
    return struct.pack(f"<{len(offsets)}I", *(offset - first for offset in offsets))


def _unpack(key: bytes, value: bytes) -> list[int]:
    first = keys.offset_of(key)
    return [first + delta for (delta,) in struct.iter_unpack("<I", value)]


def shorten(db: KvDatabase, number: int, segment: KvSegment, end: int) -> tuple[int, KvSegment]:
    """Where a log ends without the batches that reach `end`, and its last segment then."""
    short = KvSegment(
        segment.number,
        segment.base_offset,
        segment.created_ms,
        segment.indexed,
        counted=segment.base_offset,
    )
    for last, row in rows(db, number, segment.number, 0):
        if last >= end:
            end = min(end, row.base_offset)
            break
        short.count(last, row.size_bytes, row.max_timestamp_ms)
    return end, short


def give_back(db: KvDatabase, number: int, gone: Sequence[KvSegment]) -> None:
    """Free the disk space of dropped segments now, if it is much."""
    if sum(segment.size_bytes for segment in gone) < _COMPACT_BYTES_MIN:
        return
    numbers = [segment.number for segment in gone]
    for kind in keys.OF_SEGMENT:
        first = keys.of_segment(number, kind, min(numbers))
        last = keys.of_segment(number, kind, max(numbers))
        db.compact(first, keys.after(last))
