"""Postings: which offsets of a piece belong to a topic's hash, and the directory that finds them.

Rules: postings ascend by hash, and each hash has one. A posting is u32 hash, u32 records, u32 first
offset - base, then the step to each further offset as an unsigned varint. The directory cuts the
postings into *spans*, each with its CRC-32C, so that one request fetches a span and it is checked
on its own. With at most 8,192 postings each is a span: a hash that the directory lacks is not in
the piece. With more, a span begins with the first posting that begins in each 4 KiB.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from onelog.base.errors import ColdDamaged
from onelog.kernel import crc32c, encode_uvarint

POSTINGS_LISTED_MAX: Final = 8192
"""With more postings than this, the directory does not name every hash."""
SPAN_BYTES: Final = 4096
ENTRY: Final = struct.Struct("<III")  # hash, position, CRC-32C up to the next entry's position
_HEAD: Final = struct.Struct("<III")  # hash, records, first offset - base
_ONE_BYTE_STEPS: Final = 0x80
_STRETCH_BYTES: Final = 8 * 1024
"""Pairs that are encoded before a pause."""

Buffer = bytes | bytearray | memoryview


class TopicSpan(NamedTuple):
    """Bytes of the postings in which a topic's posting lies, if the piece has one."""

    position: int
    """Where it begins in the postings."""
    size_bytes: int
    crc: int


class Postings(NamedTuple):
    """The postings of a piece, encoded."""

    data: bytes
    directory: bytes
    is_full: bool
    """Whether the directory has every hash."""


def encode_postings(pairs: Buffer, pause: Callable[[], None] | None = None) -> Postings:
    """The postings of u32 pairs (topic hash, offset - base), which are sorted.

    `pause` is called now and then: other threads of the interpreter want their turn.
    """
    out, starts = bytearray(), []
    key = last = -1
    begun = count = 0
    view = memoryview(pairs)
    for at in range(0, len(view), _STRETCH_BYTES):
        if pause is not None:
            pause()
        for found, rel in struct.iter_unpack("<II", view[at : at + _STRETCH_BYTES]):
            if found != key:
                if count:
                    struct.pack_into("<I", out, begun + 4, count)
                key, last, begun, count = found, rel, len(out), 1
                starts.append((key, begun))
                out += _HEAD.pack(key, 1, rel)
            elif rel != last:
                step, last = rel - last, rel
                count += 1
                if step < _ONE_BYTE_STEPS:
                    out.append(step)
                else:
                    out += encode_uvarint(step)
    if count:
        struct.pack_into("<I", out, begun + 4, count)
    is_full = len(starts) <= POSTINGS_LISTED_MAX
    return Postings(bytes(out), _directory(out, starts, is_full=is_full), is_full)


def _directory(data: bytearray, starts: list[tuple[int, int]], *, is_full: bool) -> bytes:
    if not starts:
        return b""
    if not is_full:
        starts = list(_first_of_each_block(starts))
    view = memoryview(data)
    ends = [*(position for _, position in starts[1:]), len(data)]
    return b"".join(
        ENTRY.pack(key, position, crc32c(view[position:end]))
        for (key, position), end in zip(starts, ends, strict=True)
    )


def _first_of_each_block(starts: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    block = -1
    for key, position in starts:
        if position // SPAN_BYTES != block:
            block = position // SPAN_BYTES
            yield key, position


class TopicDirectory:
    """The spans of a piece's postings."""

    __slots__ = ("_entries", "_is_full", "_postings_bytes")

    def __init__(self, data: Buffer, postings_bytes: int, *, is_full: bool) -> None:
        """Raises ColdDamaged when the entries are not as they must be."""
        if len(data) % ENTRY.size or bool(len(data)) != bool(postings_bytes):
            raise ColdDamaged(f"a topic directory of {len(data)} bytes is impossible")
        self._entries = memoryview(data).cast("B").cast("I")
        self._postings_bytes = postings_bytes
        self._is_full = is_full
        _check_ascending(self._entries[0::3], 1 << 32, "hashes")
        positions = self._entries[1::3]
        _check_ascending(positions, postings_bytes, "positions")
        if data and positions[0] != 0:
            raise ColdDamaged("the topic directory does not begin with the first posting")

    def __len__(self) -> int:
        return len(self._entries) // 3

    def find(self, topic_hash: int) -> TopicSpan | None:
        """Where the posting of a hash lies; None: the piece has no record with it."""
        entries = self._entries
        at = bisect_right(range(len(self)), topic_hash, key=lambda i: entries[3 * i]) - 1
        if at < 0 or (self._is_full and entries[3 * at] != topic_hash):
            return None
        position = entries[3 * at + 1]
        end = entries[3 * at + 4] if at + 1 < len(self) else self._postings_bytes
        return TopicSpan(position, end - position, entries[3 * at + 2])


def _check_ascending(numbers: memoryview, end: int, what: str) -> None:
    last = -1
    for number in numbers:
        if number <= last or number >= end:
            raise ColdDamaged(f"the {what} of a topic directory are not in order")
        last = number


def read_posting(data: Buffer, span: TopicSpan, topic_hash: int, offsets: int) -> list[int]:
    """The offsets - base of a hash, ascending, from the bytes of a span; none if it has none.

    `offsets` is how many offsets the piece spans. Raises ColdDamaged.
    """
    if len(data) != span.size_bytes or crc32c(data) != span.crc:
        raise ColdDamaged(
            f"{span.size_bytes} bytes of postings at {span.position} do not have their checksum"
        )
    view = memoryview(data).cast("B")
    position = 0
    while position < len(view):
        if len(view) - position < _HEAD.size:
            raise ColdDamaged("a posting is cut short")
        key, count, rel = _HEAD.unpack_from(view, position)
        position += _HEAD.size
        if count < 1 or count - 1 > len(view) - position:
            raise ColdDamaged(f"a posting claims {count} records")
        if key > topic_hash:
            return []
        if key == topic_hash:
            return _offsets(view, position, count, rel, offsets)
        position = _behind(view, position, count - 1)
    return []


def decode_postings(data: Buffer) -> bytes:
    """All postings as u32 pairs (topic hash, offset - base). Raises ColdDamaged."""
    view = memoryview(data).cast("B")
    pairs = array("I")
    position = 0
    while position < len(view):
        if len(view) - position < _HEAD.size:
            raise ColdDamaged("a posting is cut short")
        key, count, rel = _HEAD.unpack_from(view, position)
        position += _HEAD.size
        end = _behind(view, position, count - 1)
        for found in _offsets(view[:end], position, count, rel, 1 << 32):
            pairs.append(key)
            pairs.append(found)
        position = end
    return pairs.tobytes()


def _offsets(view: memoryview, position: int, count: int, rel: int, limit: int) -> list[int]:
    found = [rel]
    step = shift = 0
    while len(found) < count and position < len(view):
        byte = view[position]
        position += 1
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < _ONE_BYTE_STEPS:
            if step == 0:
                break
            rel += step
            found.append(rel)
            step = shift = 0
        elif shift > 28:
            break
    if len(found) != count or rel >= limit:
        raise ColdDamaged("the steps of a posting are damaged")
    return found


def _behind(view: memoryview, position: int, varints: int) -> int:
    """Where so many varints end. Each ends with a byte below 0x80."""
    while varints:
        if position >= len(view):
            raise ColdDamaged("a posting is cut short")
        varints -= view[position] < _ONE_BYTE_STEPS
        position += 1
    return position
