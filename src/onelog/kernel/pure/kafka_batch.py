"""The batch of a Produce request, interpreted: checked once, before it is appended as it came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.kernel import corruption as why
from onelog.kernel.pure.crc import crc32c
from onelog.kernel.pure.records import latest_time, open_batch, walk
from onelog.kernel.pure.scan import CRC_FROM, HEADER, check_span, read_header
from onelog.kernel.types import ATTR_CODEC_MASK, HEADER_BYTES, MAGIC, PREFIX_BYTES, BatchInfo

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

_DAMAGED = {why.SHORT_HEADER, why.BAD_LENGTH, why.SHORT_BATCH}


def _check_head(view: memoryview, start: int, end: int) -> BatchInfo | int:
    """The header. Damage is checked first: other faults mean something only in undamaged bytes."""
    if end - start > 16 and view[start + 16] != MAGIC:
        return why.BAD_MAGIC  # older formats have the magic in the same place, and may be shorter
    info = read_header(view, start, end, check_crc=False)
    if isinstance(info, int) and info in _DAMAGED:
        return info
    fields = HEADER.unpack_from(view, start)
    size, crc = fields[1] + PREFIX_BYTES, fields[4]
    if crc32c(view[start + CRC_FROM : start + size]) != crc:
        return why.BAD_CRC
    if size != end - start:
        return why.SECOND_BATCH
    if not isinstance(info, int) and info.last_offset - info.base_offset != info.count - 1:
        return why.NOT_DENSE
    return info


def check_produce_batch(
    buf: Buffer, start: int, end: int, need_keys: bool = False
) -> tuple[BatchInfo, int]:
    """The one batch that fills `buf[start:end]`, as a client may send it, and its latest time.

    Damage raises CorruptBatch, an older format UnsupportedMagic, and a content that is not allowed
    InvalidRecords. Compressed records are not opened: their time is that of the header.
    """
    view = memoryview(buf).cast("B")
    check_span(view, start, end)
    info = _check_head(view, start, end)
    if isinstance(info, int):
        raise why.corrupt(info, start)
    if info.attributes & ATTR_CODEC_MASK:
        return info, info.max_timestamp_ms
    # Offsets ascend, and there are as many as the batch spans: they are dense.
    return info, latest_time(info, walk(info, view, start + HEADER_BYTES, end), need_keys)


def find_headers(
    buf: Buffer,
    position: int,
    records: Buffer | None,
    names: tuple[bytes, ...],
    most: int,
) -> dict[tuple[bytes, bytes | None], int]:
    """The headers of some names in a batch: (name, value) → the first record that has it.

    `names` all begin with `~`. `records` holds the inflated records, if the batch is compressed.
    It stops after `most` different ones. A batch whose bytes have none of the names is not walked.
    """
    found: dict[tuple[bytes, bytes | None], int] = {}
    batch = open_batch(buf, position, records)
    for index, span in enumerate(batch.spans):
        for name, value in batch.headers(span):
            if name in names:
                found.setdefault((name, value), index)
        if len(found) >= most:
            break
    return found
