"""A WAL object: record batches of many partitions, and notes about them, in one link of a chain.

Rules: header, directory, notes, data, in this order; the entries of the directory fill the data
without a gap. Each object names the checksum of the one before it, so that a swapped or lost object
is seen. A *fence* has no data: it ends a chain and names the epoch that goes on. Every length and
every CRC is checked before it is used: damaged bytes raise ColdDamaged, whatever they are. What a
note means is a matter of whoever writes the chain. docs/formats/chain.md has it byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from onelog.base.errors import ColdDamaged
from onelog.kernel import crc32c
from onelog.objects.access import Buffer

MAGIC: Final = b"OLW1"
VERSION: Final = 1
HEADER_BYTES: Final = 96
NONCE_BYTES: Final = 16
FENCE_BYTES_MAX: Final = 107
"""A larger object is no fence: header, an empty directory, and one number."""
FENCE: Final = 1
CLEAN_END: Final = 2
NO_NOTES: Final = msgspec.msgpack.encode(())
NOT_INDEXED: Final = -1
"""Bytes of topic pairs of an entry whose stream has no topic index."""
_FLAGS: Final = FENCE | CLEAN_END
_HEADER: Final = struct.Struct("<4sIHHIQQ16sIIIIQqQ8s")
_COVERED: Final = 8
_I64_MAX: Final = (1 << 63) - 1
assert _HEADER.size == HEADER_BYTES


class WalEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Neighbouring batches of one partition, and where they lie in the data."""

    stream_id: str
    partition: int
    base: int
    end: int
    """The first offset behind the last batch."""
    position: int
    log_bytes: int
    """Bytes of batches."""
    topic_bytes: int
    """Bytes of topic pairs behind the batches; NOT_INDEXED: there is no index."""
    max_timestamp_ms: int
    crc: int
    """CRC-32C of batches and pairs."""

    @property
    def size_bytes(self) -> int:
        """Bytes of batches and pairs."""
        return self.log_bytes + max(0, self.topic_bytes)


class WalHeader(NamedTuple):
    """What a WAL object says of itself."""

    flags: int
    node: int
    epoch: int
    seq: int
    """From 1, without a gap."""
    nonce: bytes
    """Which writer made it."""
    link: int
    """The `crc` of the object before it; 0 for the first one and for a fence."""
    written_ms: int
    """For people, and for ages of objects: no order depends on it."""
    known: int = 0
    """All objects up to this one were in the store when this one left: one of them that is gone
    was lost."""


class Wal(NamedTuple):
    """A WAL object that was read, and whose checksums hold."""

    header: WalHeader
    crc: int
    """Bytes 4 to 7: the checksum of header, directory and notes."""
    entries: tuple[WalEntry, ...]
    notes: bytes
    data: memoryview

    @property
    def is_fence(self) -> bool:
        """Whether it ends the chain."""
        return bool(self.header.flags & FENCE)

    def batches(self, entry: WalEntry) -> memoryview:
        """The batches of an entry."""
        return self.data[entry.position : entry.position + entry.log_bytes]

    def topics(self, entry: WalEntry) -> memoryview | None:
        """The topic pairs of an entry; None: there is no index."""
        if entry.topic_bytes == NOT_INDEXED:
            return None
        begin = entry.position + entry.log_bytes
        return self.data[begin : begin + entry.topic_bytes]


class EncodedWal(NamedTuple):
    """A WAL object, ready for a store."""

    parts: list[Buffer]
    crc: int
    size_bytes: int


_entries: Final = msgspec.msgpack.Decoder(tuple[WalEntry, ...])
"""Made once, here: msgspec breaks when threads use a type for the first time together."""
_fence: Final = msgspec.msgpack.Decoder(tuple[int])


def encode_wal(
    header: WalHeader, entries: Sequence[WalEntry], notes: bytes, data: Sequence[Buffer]
) -> EncodedWal:
    """The bytes of a WAL object. The buffers of `data` are those of the entries, in their order."""
    directory = msgspec.msgpack.encode(entries)
    data_bytes = sum(entry.size_bytes for entry in entries)
    rest = _HEADER.pack(
        MAGIC,
        0,
        VERSION,
        header.flags,
        header.node,
        header.epoch,
        header.seq,
        header.nonce,
        header.link,
        len(entries),
        len(directory),
        len(notes),
        data_bytes,
        header.written_ms,
        header.known,
        bytes(8),
    )[_COVERED:]
    crc = crc32c(notes, crc32c(directory, crc32c(rest)))
    head = b"".join((MAGIC, struct.pack("<I", crc), rest, directory, notes))
    return EncodedWal([head, *data], crc, len(head) + data_bytes)


def encode_fence(node: int, epoch: int, seq: int, nonce: bytes, new_epoch: int) -> bytes:
    """The object that ends epoch `epoch` before `seq`: `new_epoch` goes on."""
    header = WalHeader(FENCE, node, epoch, seq, nonce, 0, 0)
    made = encode_wal(header, (), msgspec.msgpack.encode((new_epoch,)), ())
    return b"".join(made.parts)


def fenced_by(wal: Wal, name: str) -> int:
    """The epoch that a fence names. Raises ColdDamaged."""
    try:
        return _fence.decode(wal.notes)[0]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(name, f"its note is not that of a fence ({error})") from None


def decode_wal(data: Buffer, name: str) -> Wal:
    """A WAL object whose checksums hold and whose numbers fit each other. Raises ColdDamaged."""
    view = memoryview(data).cast("B")
    if len(view) < HEADER_BYTES:
        raise _damaged(name, f"it has only {len(view)} bytes")
    magic, crc, version, flags, node, epoch, seq, nonce, link, *rest = _HEADER.unpack_from(view)
    count, directory_bytes, notes_bytes, data_bytes, written_ms, known, zeros = rest
    body = HEADER_BYTES + directory_bytes + notes_bytes
    if magic != MAGIC or body + data_bytes != len(view):
        raise _damaged(name, f"{len(view)} bytes are not what its header says")
    if crc32c(view[_COVERED:body]) != crc:
        raise _damaged(name, "its checksum does not hold")
    if version != VERSION:
        raise ColdDamaged(
            f"{name} has format {version}, this program reads {VERSION}: use the version of OneLog"
            " that wrote it"
        )
    if flags & ~_FLAGS or any(zeros):
        raise _damaged(name, "its header is impossible")
    try:
        entries = _entries.decode(view[HEADER_BYTES : HEADER_BYTES + directory_bytes])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(name, f"its directory cannot be read ({error})") from None
    if len(entries) != count:
        raise _damaged(name, f"its directory has {len(entries)} entries, not {count}")
    held = view[body:]
    _check_entries(entries, held, name)
    header = WalHeader(flags, node, epoch, seq, nonce, link, written_ms, known)
    notes = bytes(view[HEADER_BYTES + directory_bytes : body])
    return Wal(header, crc, entries, notes, held)


def _check_entries(entries: Sequence[WalEntry], data: memoryview, name: str) -> None:
    position = 0
    for entry in entries:
        if (
            entry.position != position
            or entry.log_bytes < 0
            or entry.topic_bytes < NOT_INDEXED
            or not 0 <= entry.base < entry.end <= _I64_MAX
            or entry.size_bytes > len(data) - position
        ):
            raise _damaged(name, "an entry of its directory is impossible")
        position += entry.size_bytes
        if crc32c(data[entry.position : position]) != entry.crc:
            raise _damaged(name, f"the checksum at byte {entry.position} of its data is wrong")
    if position != len(data):
        raise _damaged(name, "its directory does not fill its data")


def _damaged(name: str, why: str) -> ColdDamaged:
    return ColdDamaged(
        f"the WAL object {name} is damaged: {why}; restore the object from a copy of the bucket"
    )
