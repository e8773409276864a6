"""A checkpoint of a chain: the state after one of its objects, so that a start reads no older ones.

Rules: it counts only if its checksum holds. The state itself is opaque here. `fences` are all
objects that ended older epochs: they stay for ever, so that a write that was frozen for weeks still
meets one. docs/formats/chain.md has it byte by byte.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from onelog.base.errors import ColdDamaged, CorruptBatch, MessageTooLarge
from onelog.kernel import crc32c
from onelog.objects.wal import NONCE_BYTES
from onelog.record import compression

VERSION: Final = 1
CHECKPOINT_BYTES_MAX: Final = 1 << 30
"""Bytes that a checkpoint may inflate to."""
PLAIN_BYTES: Final = 1024
"""A shorter checkpoint is not compressed."""
_MAGIC: Final = b"OLK1"
_HEAD: Final = struct.Struct("<4sIIB")  # magic, CRC-32C of byte 8 on, bytes inflated, zstd
_COVERED: Final = 8


class ChainPlace(NamedTuple):
    """A WAL object of a chain."""

    epoch: int
    seq: int


class ChainCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """The state of a chain after the object `seq` of an epoch; `seq` 0: what the epoch begins
    with."""

    version: int
    epoch: int
    seq: int
    nonce: bytes
    """Which writer made it."""
    link: int
    """The checksum of the object `seq`, which the next one names; 0 for `seq` 0."""
    fences: tuple[ChainPlace, ...]
    state: bytes

    def encode(self) -> bytes:
        """The bytes of the object."""
        body = msgspec.msgpack.encode(self)
        assert len(body) <= CHECKPOINT_BYTES_MAX, "a checkpoint is too large"
        packed = len(body) > PLAIN_BYTES
        rest = struct.pack("<IB", len(body), packed)
        rest += compression.deflate(compression.ZSTD, body) if packed else body
        return _MAGIC + struct.pack("<I", crc32c(rest)) + rest

    @staticmethod
    def decode(data: bytes, name: str) -> ChainCheckpoint:
        """A checkpoint whose checksum holds. Raises ColdDamaged."""
        try:
            found = _decoder.decode(_body(data, name))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _damaged(name, f"its body cannot be read ({error})") from None
        if found.version != VERSION:
            raise ColdDamaged(
                f"{name} has format {found.version}, this program reads {VERSION}: use the version"
                " of OneLog that wrote it"
            )
        if found.epoch < 1 or found.seq < 0 or len(found.nonce) != NONCE_BYTES:
            raise _damaged(name, "its numbers are impossible")
        return found


_decoder: Final = msgspec.msgpack.Decoder(ChainCheckpoint)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def _damaged(name: str, why: str) -> ColdDamaged:
    return ColdDamaged(
        f"the checkpoint {name} is damaged: {why}; restore the object from a copy of the bucket"
    )


def _body(data: bytes, name: str) -> bytes:
    if len(data) < _HEAD.size:
        raise _damaged(name, f"it has only {len(data)} bytes")
    magic, crc, size, packed = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise _damaged(name, "it does not begin with OLK1")
    if crc32c(memoryview(data)[_COVERED:]) != crc:
        raise _damaged(name, "its checksum does not hold")
    if packed > 1 or size > CHECKPOINT_BYTES_MAX:
        raise _damaged(name, f"its header is impossible (flag {packed}, {size} bytes)")
    body = data[_HEAD.size :]
    if packed:
        try:
            body = compression.inflate(compression.ZSTD, body, size)
        except (CorruptBatch, MessageTooLarge) as error:
            raise _damaged(name, str(error)) from None
    if len(body) != size:
        raise _damaged(name, f"its body has {len(body)} bytes, its header says {size}")
    return body
