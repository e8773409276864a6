"""Reading a view's partition as consumers do: fetch, go on behind what came, until its end."""

from __future__ import annotations

from typing import NamedTuple

from onelog.kernel import ATTR_CONTROL, scan_batches
from onelog.protocols.kafka.topics import Fetched
from onelog.protocols.kafka.views.partition import ViewPartition
from onelog.record.batch import decode


class Shown(NamedTuple):
    """A record that a view showed."""

    offset: int
    topic: bytes | None
    value: bytes | None


class Fetch(NamedTuple):
    """What one fetch gave."""

    records: list[Shown]
    batch_end: int
    """Behind the last batch: where most clients go on."""
    record_end: int
    """Behind the last record, control records too: where KafkaJS goes on."""
    fillers: int


def look(
    part: ViewPartition, offset: int, max_bytes: int = 1 << 20, scan_bytes: int = 1 << 25
) -> Fetched:
    """One fetch with everything that belongs to it, in this thread."""
    found = part.fetch(offset, max_bytes, committed=True)
    if found.rest is not None:
        found.rest.go_on(scan_bytes, max_bytes)
        found = found.rest.fetched()
    return found


def fetch(
    part: ViewPartition, offset: int, max_bytes: int = 1 << 20, scan_bytes: int = 1 << 25
) -> Fetch:
    """What a consumer at `offset` is sent: V3 and V4 hold for every answer."""
    found = look(part, offset, max_bytes, scan_bytes)
    filler = found.filler(offset) if found.filler is not None else b""
    data = b"".join(bytes(piece) for piece in found.records) or filler
    records: list[Shown] = []
    batch_end, record_end, fillers = offset, offset, 0
    for info in scan_batches(data):
        slices = decode(data, info)
        offsets = slices.offsets()
        assert offsets, "never an empty batch"
        assert offsets[-1] >= offset, "never a batch without a record at or after the offset"
        assert info.last_offset >= batch_end
        batch_end, record_end = info.last_offset + 1, offsets[-1] + 1
        if info.attributes & ATTR_CONTROL:
            assert (info.base_offset, info.producer_id) == (offset, -1)
            assert info.last_offset == offsets[-1]
            fillers += 1
            continue
        records += [
            Shown(at, slices.topic(index), slices.value(index))
            for index, at in enumerate(offsets)
            if at >= offset
        ]
    assert fillers <= 1
    assert not (fillers and records)
    return Fetch(records, batch_end, record_end, fillers)


def drain(
    part: ViewPartition,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    scan_bytes: int = 1 << 25,
    by_record: bool = False,
) -> list[Shown]:
    """Everything from `offset` to the end; each fetch moves the consumer on."""
    found: list[Shown] = []
    while offset < part.ends().high_watermark:
        got = fetch(part, offset, max_bytes, scan_bytes)
        following = got.record_end if by_record else got.batch_end
        assert following > offset, "every fetch moves the consumer on"
        found += got.records
        offset = following
    return found
