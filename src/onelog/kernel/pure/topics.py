"""Topic index chunks, interpreted: sorted (topic hash, relative offset) pairs under a header.

Format, little endian: magic u32, CRC-32C u32 of all that follows, count u32, lowest relative
offset u32 (0xFFFFFFFF if empty), then count pairs (hash u32, relative offset u32), ascending.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest
from onelog.kernel import corruption as why
from onelog.kernel.pure.crc import crc32c
from onelog.kernel.pure.scan import check_span

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

CHUNK_MAGIC = 0x31544C4F  # "OLT1"
CHUNK_HEADER = struct.Struct("<IIII")
_U32_MAX = 0xFFFFFFFF


def _pairs(entries: Buffer) -> list[tuple[int, int]]:
    view = memoryview(entries).cast("B")
    if len(view) % 8:
        raise InvalidRequest(f"{len(view)} bytes are not whole pairs of u32")
    return list(struct.iter_unpack("<II", view))


def meets_topics(entries: Buffer, wanted: Buffer) -> bool:
    """Whether a pair may be of a topic whose hash is in `wanted`, a table of bits: bit `hash %
    bits`. The table has a power of two of bytes."""
    pairs, bits = _pairs(entries), memoryview(wanted).cast("B")
    size = len(bits)
    if not size or size & (size - 1) or size > 1 << 28:
        raise InvalidRequest(f"{size} bytes are not a power of two")
    return any(bits[key % (size * 8) >> 3] >> (key & 7) & 1 for key, _ in pairs)


def move_topic_entries(entries: Buffer, add: int) -> bytes:
    """The pairs in their order, `add` added to each relative offset."""
    return _packed(_moved(entries, add))


def pack_topic_entries(
    rows: list[tuple[bytes, int]], long_bytes: int
) -> tuple[bytes, list[tuple[bytes, int]]]:
    """The pairs of all rows (pairs, add) that are shorter than `long_bytes`, in one piece, each
    moved by its `add`; and the rows that are longer."""
    short = [_packed(_moved(pairs, add)) for pairs, add in rows if len(pairs) < long_bytes]
    longer = [(pairs, add) for pairs, add in rows if len(pairs) >= long_bytes]
    for pairs, _ in longer:
        _pairs(pairs)
    return b"".join(short), longer


def sort_topic_entries(entries: Buffer, add: int = 0) -> bytes:
    """The pairs sorted by (hash, relative offset), `add` added to each relative offset."""
    return _packed(sorted(_moved(entries, add)))


def _moved(entries: Buffer, add: int) -> list[tuple[int, int]]:
    pairs = _pairs(entries)
    for _, rel in pairs:
        if not 0 <= rel + add <= _U32_MAX:
            raise InvalidRequest(f"relative offset {rel} + {add} does not fit 32 bits")
    return [(key, rel + add) for key, rel in pairs]


def _packed(pairs: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack("<II", key, rel) for key, rel in pairs)


def make_topic_chunk(sorted_entries: Buffer) -> bytes:
    """Sorted pairs as a chunk that can be appended to an index file."""
    pairs = _pairs(sorted_entries)
    lowest = min((rel for _, rel in pairs), default=_U32_MAX)
    body = struct.pack("<II", len(pairs), lowest) + bytes(sorted_entries)
    return struct.pack("<II", CHUNK_MAGIC, crc32c(body)) + body


def _chunk_at(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """CRC field and end of the chunk at `position`; an end of -1 if there is none."""
    if end - position < CHUNK_HEADER.size:
        return 0, -1
    magic, crc, count, _ = CHUNK_HEADER.unpack_from(view, position)
    if magic != CHUNK_MAGIC or count * 8 > end - position - CHUNK_HEADER.size:
        return 0, -1
    return crc, position + CHUNK_HEADER.size + count * 8


def check_topic_chunks(buf: Buffer, end: int) -> int:
    """Bytes at the start of `buf[:end]` that are intact chunks."""
    view = memoryview(buf).cast("B")
    check_span(view, 0, end)
    position = 0
    while position < end:
        crc, after = _chunk_at(view, position, end)
        if after < 0 or crc32c(view[position + 8 : after]) != crc:
            break
        position = after
    return position


def lookup_topic_chunks(
    buf: Buffer,
    end: int,
    hash: int,  # noqa: A002
    rel_min: int,
    limit: int,
) -> list[int]:
    """The lowest `limit` relative offsets >= `rel_min` under `hash`, ascending, each once."""
    view = memoryview(buf).cast("B")
    check_span(view, 0, end)
    found: set[int] = set()
    position = 0
    while position < end:
        _, after = _chunk_at(view, position, end)
        if after < 0:
            raise why.corrupt(why.BAD_CHUNK, position)
        pairs = struct.iter_unpack("<II", view[position + CHUNK_HEADER.size : after])
        found.update(rel for key, rel in pairs if key == hash and rel >= rel_min)
        position = after
    return sorted(found)[: max(limit, 0)]
