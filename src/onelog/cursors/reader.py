"""Reading a source: the committed records of some filters from a position on.

Rules: a reader never sees control batches, records of aborted transactions, or records at or past
the last stable offset. A read is bounded in the bytes that it looks at, so that a filter without
matches cannot hold the loop; it then returns no record and a position further on. The records of
one exact topic are found through the topic index. Stored bytes are checked (CRC) before they are
used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, cast

from onelog.base.errors import CorruptBatch
from onelog.base.ids import Offset, TimestampMs
from onelog.cursors.shared_reads import Row, SharedRead, SharedReads
from onelog.cursors.sources import Source, SourceSet
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_TRANSACTIONAL,
    BatchInfo,
    Slices,
    pick_records,
    scan_batches,
    select_records,
)
from onelog.log.handle import AbortedTxn, Cold
from onelog.log.inflating import slices_now
from onelog.record.record import Record
from onelog.record.reserved import read_expiry_ms

READ_BYTES: Final = 1024 * 1024
"""Bytes that one read looks at."""

LOOK_RECORDS: Final = 20_000
"""Records of one compressed batch that one read looks at."""

FIRST_BYTES: Final = 16 * 1024
BYTES_PER_RECORD: Final = 1024

INDEX_SPAN: Final = 64
"""An index answer denser than one record in this many offsets is read by scanning instead."""

_SPECIAL: Final = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL
"""A batch with one of these attributes cannot be read as it is."""

_shared = SharedReads()


def read_records(
    wanted: SourceSet,
    source: Source,
    position: Offset,
    limit: int,
    *,
    max_bytes: int = READ_BYTES,
    upto: int | None = None,
) -> tuple[list[Record], Offset]:
    """At most `limit` matching records from `position` on (below `upto`), and where to go on."""
    end = source.partition.last_stable_offset
    if upto is not None:
        end = min(end, Offset(upto))
    position = max(position, source.partition.start_offset)
    if position >= end or limit <= 0:
        return [], position
    if wanted.exact is not None:
        offsets = _from_index(wanted.exact, source, position, end, limit)
        if offsets is not None:
            return _read_listed(wanted, source, offsets, (position, end), limit, max_bytes)
    # Few records are wanted: look at few bytes first, and at more only when nothing is found.
    share = min(max_bytes, FIRST_BYTES + limit * BYTES_PER_RECORD)
    rows, following = _scan(wanted, source, position, end, limit, share)
    while not rows and following < end and share < max_bytes:
        max_bytes -= share
        share = min(max_bytes, 4 * share)
        rows, following = _scan(wanted, source, following, end, limit, share)
    return _as_records(source, rows), following


def read_at(wanted: SourceSet, source: Source, offset: Offset) -> Record | None:
    """The record at one offset, if it is still there and matches."""
    if not source.partition.start_offset <= offset < source.partition.last_stable_offset:
        return None
    rows, _following = _scan(wanted, source, offset, Offset(offset + 1), 1, 1)
    return _as_records(source, rows)[0] if rows else None


def read_batch(source: Source, offset: Offset) -> SharedRead | None:
    """The checked batches of one read, of which the first holds an offset or follows it; or Cold.

    None: there are none.
    """
    read = _shared.find(source.partition, offset)
    if read is None:
        data = source.partition.read_now(offset, 1, committed=True)
        infos = check_batches(source, data, offset)
        if not infos:
            return None
        read = SharedRead(data, infos)
        _shared.hold(source.partition, read)
    return read


def read_places(source: Source, offsets: Sequence[int]) -> list[Record]:
    """The committed records at these ascending offsets, of any topic; removed ones are left out.
    Each batch is read once, however many of the offsets lie in it."""
    found: list[Record] = []
    partition, number = source.partition, bisect_left(offsets, source.partition.start_offset)
    end = partition.last_stable_offset
    while number < len(offsets) and offsets[number] < end:
        offset = Offset(offsets[number])
        data = partition.read_now(offset, 1, committed=True)
        infos = check_batches(source, data, offset)
        if not infos:
            break
        stop = bisect_left(offsets, infos[-1].last_offset + 1, number)
        chosen = list(offsets[number:stop])
        fixed = source.stream.fixed_topic_at(partition.id, offset)
        topic = None if fixed is None else fixed.encode()
        if len(infos) == 1 and not infos[0].attributes & _SPECIAL:
            rows = pick_records(data, chosen, topic)
        else:
            rows = _chosen(source, data, infos, set(chosen), topic)
        found += _as_records(source, rows)
        number = stop
    return found


def record_in(source: Source, data: bytes | bytearray | memoryview, offset: int) -> Record | None:
    """The record at an offset of batches that are at hand, if it lies in a plain one."""
    view = memoryview(data)
    for info in scan_batches(view, 0, False):
        if info.base_offset <= offset <= info.last_offset and not info.attributes & _SPECIAL:
            batch = view[info.position : info.position + info.size_bytes]
            fixed = source.stream.fixed_topic_at(source.partition.id, Offset(offset))
            rows = pick_records(batch, [offset], None if fixed is None else fixed.encode())
            return _as_records(source, rows)[0] if rows else None
    return None


def _chosen(
    source: Source,
    data: memoryview,
    infos: list[BatchInfo],
    offsets: set[int],
    fixed: bytes | None,
) -> list[Row]:
    aborted = source.partition.aborted_between(infos[0].base_offset, infos[-1].last_offset + 1)
    rows: list[Row] = []
    for info in infos:
        if not is_hidden(info, aborted):
            slices = slices_now(source.partition, data, info)
            rows += [
                (fixed or slices.topic(index), *slices.record(index))
                for index in range(len(slices))
                if slices.offset(index) in offsets
            ]
    return rows


def expires_at(record: Record, stream_ttl_ms: int) -> int | None:
    """When a record expires (ms since the epoch): by its own expiry or by its stream's, the
    earlier."""
    own = read_expiry_ms(record.headers)
    ends = [] if own is None else [own]
    if stream_ttl_ms >= 0:
        ends.append(record.timestamp_ms + stream_ttl_ms)
    return min(ends, default=None)


def _from_index(
    topic: str, source: Source, position: Offset, upto: Offset, limit: int
) -> list[Offset] | None:
    if source.stream.fixed_topic_at(source.partition.id, position) is not None:
        return None  # all records here have the topic, or none has it: scanning costs the same
    offsets = source.partition.topic_offsets_now(topic.encode(), position, upto, limit)
    if offsets and offsets[-1] - position < len(offsets) * INDEX_SPAN:
        return None
    return offsets


def _read_listed(
    wanted: SourceSet,
    source: Source,
    offsets: list[Offset],
    span: tuple[Offset, Offset],
    limit: int,
    max_bytes: int,
) -> tuple[list[Record], Offset]:
    """The records at these offsets, batch by batch. A full `found` list ends the read."""
    assert wanted.exact is not None
    topic = wanted.exact.encode()
    position, upto = span
    following = Offset(offsets[-1] + 1) if len(offsets) >= limit else upto
    all_rows: list[Row] = []
    number, last_number, looked_at = 0, len(offsets), 0
    while number < last_number:
        offset = offsets[number]
        held = _shared.find(source.partition, offset)
        if held is None:
            if looked_at >= max_bytes:
                return _as_records(source, all_rows), offset
            data = source.partition.read_now(offset, 1, committed=True)
            looked_at += len(data)
            infos = check_batches(source, data, offset)
            if not infos:
                break
            read = SharedRead(data, infos)
            _shared.hold(source.partition, read)
        else:
            read, infos = held, held.infos
        batch_end = min(Offset(infos[-1].last_offset + 1), following)
        stop = bisect_left(offsets, batch_end, number)
        if read.is_plain:
            # The index may name other topics of the same hash.
            chosen = cast("list[int]", offsets[number:stop])
            picked = read.pick(chosen, shared=held is not None)
            rows = [row for row in picked if row[0] == topic]
        else:
            rows, at = [], offset
            while at < batch_end and len(rows) < last_number:
                more, at = _select(wanted, source, read.data, infos, (at, batch_end), last_number)
                rows += more
        all_rows += rows
        number = stop
    return _as_records(source, all_rows), max(following, position)


def _scan(
    wanted: SourceSet, source: Source, position: Offset, upto: Offset, limit: int, max_bytes: int
) -> tuple[list[Row], Offset]:
    fixed_until = source.stream.record.fixed_until
    number = source.partition.id
    if fixed_until is not None and number < len(fixed_until) and position < fixed_until[number]:
        upto = min(upto, Offset(fixed_until[number]))
    data = source.partition.read_now(position, max_bytes, committed=True)
    infos = check_batches(source, data, position)
    if not infos:
        return [], upto
    return _select(wanted, source, data, infos, (position, upto), limit)


def check_batches(source: Source, data: memoryview, offset: int) -> list[BatchInfo]:
    """The batches of stored bytes, checked. Damage stops the partition and raises."""
    try:
        return scan_batches(data)
    except CorruptBatch as error:
        raise source.partition.stop_damaged(offset, error) from error


def _select(
    wanted: SourceSet,
    source: Source,
    data: memoryview,
    infos: list[BatchInfo],
    span: tuple[Offset, Offset],
    limit: int,
) -> tuple[list[Row], Offset]:
    """Matching records of checked batches in [start, upto), and the position to go on from."""
    position, upto = span
    fixed = source.stream.fixed_topic_at(source.partition.id, position)
    topic = None if fixed is None else fixed.encode()
    aborted = source.partition.aborted_between(position, infos[-1].last_offset + 1)
    plain = not aborted and len(wanted.filters) == 1
    rows: list[Row] = []
    for info in infos:
        if info.last_offset < position:
            continue
        if info.base_offset >= upto:
            return rows, upto
        left = limit - len(rows)
        if plain and not info.attributes & (ATTR_CODEC_MASK | ATTR_CONTROL):
            # One call handles this batch and all plain batches behind it.
            rest = data[info.position :]
            more, following = select_records(rest, wanted.only, position, upto, left, topic)
        else:
            more, following = [], min(info.last_offset + 1, upto)
            if not is_hidden(info, aborted):
                try:
                    slices = _slices(source, data, info)
                except Cold:
                    if position > span[0]:
                        break  # those before it go out; it is cold for the next read
                    raise
                more, following = _matching(wanted, slices, (position, following), left, topic)
        rows += more
        position = Offset(following)
        if len(rows) >= limit or position <= info.last_offset:
            break
    return rows, position


def is_hidden(info: BatchInfo, aborted: list[AbortedTxn]) -> bool:
    """Whether no reader may see a batch: a control batch, or one of an aborted transaction."""
    if info.attributes & ATTR_CONTROL:
        return True
    return bool(info.attributes & ATTR_TRANSACTIONAL) and any(
        txn.producer_id == info.producer_id
        and txn.first_offset <= info.base_offset <= txn.last_offset
        for txn in aborted
    )


def _slices(source: Source, data: memoryview, info: BatchInfo) -> Slices:
    is_packed = info.attributes & ATTR_CODEC_MASK
    return slices_now(source.partition, data, info, check_crc=not is_packed)


def _matching(
    wanted: SourceSet,
    slices: Slices,
    span: tuple[int, int],
    limit: int,
    fixed: bytes | None,
) -> tuple[list[Row], int]:
    """At most `limit` matching rows of a batch in [start, upto), and where to go on.

    It looks at a bounded number of records, so that a batch of a million holds the loop in shares.
    """
    rows: list[Row] = []
    start, upto = span
    first = bisect_left(range(len(slices)), start, key=slices.offset)
    for index in range(first, len(slices)):
        offset = slices.offset(index)
        if offset >= upto:
            break
        if len(rows) >= limit or index - first >= LOOK_RECORDS:
            return rows, offset
        topic = fixed if fixed is not None else slices.topic(index)
        if topic is not None and wanted.matches(topic):
            rows.append((topic, *slices.record(index)))
    return rows, upto


def _as_records(source: Source, rows: list[Row]) -> list[Record]:
    stream, partition = source.stream.name, source.partition.id
    return [
        Record(
            stream,
            partition,
            Offset(offset),
            topic.decode(errors="replace") if topic is not None else "",
            TimestampMs(timestamp_ms),
            key,
            value,
            headers,
        )
        for topic, offset, timestamp_ms, key, value, headers in rows
    ]
