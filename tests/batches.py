"""Record batches for tests of storage: small to write down, easy to compare."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from onelog.base.ids import Offset
from onelog.kernel import BatchInfo, scan_batches
from onelog.record.batch import Row, build_batch, decode
from onelog.storage.engine import PartitionLog, in_place


def make_batch(
    base_offset: int,
    count: int = 1,
    *,
    size: int = 20,
    topic: bytes | None = None,
    timestamp_ms: int = 1_700_000_000_000,
    codec: int = 0,
) -> bytes:
    """A batch of `count` records whose values name their offsets."""
    rows: list[Row] = [
        (topic, topic, b"%d" % (base_offset + at) + b"." * size, (), timestamp_ms)
        for at in range(count)
    ]
    return build_batch(rows, base_offset=base_offset, codec=codec, tag_topics=topic is not None)


def append(log: PartitionLog, *batches: bytes, topics: bytes | None = None) -> list[BatchInfo]:
    """Append batches in one call."""
    data = b"".join(batches)
    infos = scan_batches(data)
    log.append(data, infos, topics)
    return infos


def fill(log: PartitionLog, count: int, *, size: int = 20) -> None:
    """Append `count` batches of one record each, one call each."""
    for _ in range(count):
        append(log, make_batch(log.end_offset, size=size))


def read_all(log: PartitionLog, start: int | None = None, max_bytes: int = 1 << 20) -> bytes:
    """Everything from `start` (the log's start) to the end."""
    offset = log.start_offset if start is None else Offset(start)
    out = bytearray()
    while True:
        view = in_place(log, partial(log.read, offset, max_bytes, log.end_offset))
        if not len(view):
            return bytes(out)
        out += view
        offset = Offset(scan_batches(view)[-1].last_offset + 1)


def values(data: bytes | memoryview) -> list[bytes | None]:
    """The values of all records in a run of batches."""
    found: list[bytes | None] = []
    for info in scan_batches(data):
        slices = decode(data, info)
        found += [slices.value(at) for at in range(len(slices))]
    return found


def spans(data: bytes | memoryview) -> list[tuple[int, int]]:
    """First and last offset of each batch."""
    return [(info.base_offset, info.last_offset) for info in scan_batches(data)]


def offsets_of(batches: Sequence[bytes]) -> list[tuple[int, int]]:
    """First and last offset of each batch of a list."""
    return spans(b"".join(batches))
