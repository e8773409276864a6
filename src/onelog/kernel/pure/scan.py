"""Batches as wholes, interpreted: scan, check, find, fit, patch; records are not looked into.

Rules: a field is read only after the bytes are known to be there; checks run in one order, so that
both implementations name the same fault.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest
from onelog.base.limits import BATCH_BYTES_MAX, RECORDS_PER_BATCH_MAX
from onelog.kernel import corruption as why
from onelog.kernel.pure.crc import crc32c
from onelog.kernel.types import HEADER_BYTES, MAGIC, PREFIX_BYTES, BatchInfo

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_FROM = 21
_OFFSET_MAX = (1 << 63) - 2

assert HEADER.size == HEADER_BYTES


def check_span(view: memoryview, start: int, end: int) -> None:
    """Refuse a range that does not lie inside the buffer."""
    if not 0 <= start <= end <= len(view):
        raise InvalidRequest(f"bytes {start} to {end} are outside the buffer of {len(view)} bytes")


def read_header(view: memoryview, position: int, end: int, check_crc: bool) -> BatchInfo | int:
    """The header at `position`, or the number of its fault."""
    if end - position < HEADER_BYTES:
        return why.SHORT_HEADER
    (
        base, length, epoch, magic, crc, attributes, last_delta,
        base_ts, max_ts, producer_id, producer_epoch, sequence, count,
    ) = HEADER.unpack_from(view, position)  # fmt: skip
    size = length + PREFIX_BYTES
    code = 0
    if magic != MAGIC:
        code = why.BAD_MAGIC
    elif not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
        code = why.BAD_LENGTH
    elif size > end - position:
        code = why.SHORT_BATCH
    elif last_delta < 0:
        code = why.BAD_LAST_DELTA
    elif not 0 <= base <= _OFFSET_MAX - last_delta:
        code = why.BAD_BASE_OFFSET
    elif not 0 <= count <= min(RECORDS_PER_BATCH_MAX, last_delta + 1):
        code = why.BAD_COUNT
    elif check_crc and crc32c(view[position + CRC_FROM : position + size]) != crc:
        code = why.BAD_CRC
    if code:
        return code
    return BatchInfo(
        position, size, base, base + last_delta, epoch, attributes,
        base_ts, max_ts, producer_id, producer_epoch, sequence, count,
    )  # fmt: skip


def batch_at(view: memoryview, position: int, end: int, check_crc: bool = False) -> BatchInfo:
    """The batch at `position`. Raises CorruptBatch."""
    info = read_header(view, position, end, check_crc)
    if isinstance(info, int):
        raise why.corrupt(info, position)
    return info


def scan_batches(
    buf: Buffer, start: int = 0, check_crc: bool = True, limit: int = 0
) -> list[BatchInfo]:
    """Every batch of `buf[start:]`, which must be whole batches; with `limit`, the first ones."""
    view = memoryview(buf).cast("B")
    check_span(view, start, len(view))
    found: list[BatchInfo] = []
    while start < len(view) and not 0 < limit <= len(found):
        info = batch_at(view, start, len(view), check_crc)
        found.append(info)
        start += info.size_bytes
    return found


def scan_valid(
    buf: Buffer, start: int = 0, check_crc: bool = True, expect_offset: int = -1
) -> tuple[list[BatchInfo], int, str]:
    """The good batches from `start`, where they end, and why ("" at the end of the buffer).

    Base offsets ascend without overlap, from `expect_offset` if that is given.
    """
    view = memoryview(buf).cast("B")
    check_span(view, start, len(view))
    found: list[BatchInfo] = []
    while start < len(view):
        info = read_header(view, start, len(view), check_crc)
        if not isinstance(info, int) and info.base_offset < expect_offset:
            info = why.BAD_ORDER
        if isinstance(info, int):
            return found, start, why.explain(info, start)
        found.append(info)
        expect_offset = info.last_offset + 1
        start += info.size_bytes
    return found, start, ""


def mark_batches(
    buf: Buffer, start: int, least: int, apart: int, expect_offset: int = -1
) -> tuple[bytes, bytes, int, int, int, str]:
    """Check the batches from `start` on, each CRC too, until `least` bytes of them were good.

    Returns base offsets (i64) and positions (u32) of some, the first one and whatever begins
    `apart` bytes or more behind the last such; the last offset of the first batch; the offset
    behind the last one; where the good ones end, and why ("": there are enough, or no more).
    """
    view = memoryview(buf).cast("B")
    check_span(view, start, len(view))
    if apart < 1 or least < 0 or len(view) >= 1 << 32:
        raise InvalidRequest(f"marks {apart} bytes apart in {len(view)} bytes")
    offsets, positions = array("q"), array("I")
    first_last, at, mark_at = -1, start, start
    stop = min(len(view), start + least)
    while at < stop:
        info = read_header(view, at, len(view), True)
        if not isinstance(info, int) and info.base_offset < expect_offset:
            info = why.BAD_ORDER
        if isinstance(info, int):
            said = why.explain(info, at)
            return offsets.tobytes(), positions.tobytes(), first_last, expect_offset, at, said
        if first_last < 0:
            first_last = info.last_offset
        if at >= mark_at:
            offsets.append(info.base_offset)
            positions.append(at)
            mark_at = at + apart
        expect_offset = info.last_offset + 1
        at += info.size_bytes
    return offsets.tobytes(), positions.tobytes(), first_last, expect_offset, at, ""


def find_batch(buf: Buffer, start: int, end: int, offset: int) -> int:
    """Position of the first batch in [start, end) whose last offset is >= `offset`; -1 if none."""
    view = memoryview(buf).cast("B")
    check_span(view, start, end)
    while start < end:
        info = batch_at(view, start, end)
        if info.last_offset >= offset:
            return start
        start += info.size_bytes
    return -1


def fit_batches(buf: Buffer, start: int, end: int, max_bytes: int, upto: int) -> int:
    """The end of the whole batches from `start` that lie below `upto` and within `max_bytes`.

    At least one batch, if the first lies below `upto`; otherwise `start`.
    """
    view = memoryview(buf).cast("B")
    check_span(view, start, end)
    position = start
    while position < end:
        info = batch_at(view, position, end)
        if info.last_offset >= upto:
            break
        after = position + info.size_bytes
        if position > start and after - start > max_bytes:
            break
        position = after
    return position


def place_batches(
    buf: bytearray | memoryview, base_offset: int, leader_epoch: int
) -> list[BatchInfo]:
    """Give the batches that fill `buf` the offsets from `base_offset` on, and an epoch.

    Their CRCs stay valid. Returns the batches with the new values.
    """
    view = memoryview(buf).cast("B")
    placed: list[BatchInfo] = []
    position = 0
    while position < len(view):
        info = batch_at(view, position, len(view))
        struct.pack_into(">q", view, position, base_offset)
        struct.pack_into(">i", view, position + PREFIX_BYTES, leader_epoch)
        placed.append(batch_at(view, position, len(view)))
        base_offset = placed[-1].last_offset + 1
        position += info.size_bytes
    return placed
