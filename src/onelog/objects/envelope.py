"""The envelope of manifests and checkpoints: magic, checksum, size, and a body that may be packed.

Rules: little endian: four bytes of magic, CRC-32C of byte 8 on, bytes of the body, a byte that is 1
if zstd packed it, the body. A body is read only if all of this holds. docs/formats has the objects
byte by byte.
"""

from __future__ import annotations

import struct
from typing import Final

from onelog.base.errors import ColdDamaged, CorruptBatch, MessageTooLarge
from onelog.kernel import crc32c
from onelog.record import compression

PLAIN_BYTES: Final = 1024
"""A shorter body is not packed."""
_HEAD: Final = struct.Struct("<4sIIB")
_COVERED: Final = 8


class Envelope:
    """One kind of object: its magic, how large its body may be, and what to do if it is damaged."""

    def __init__(self, magic: bytes, bytes_max: int, about: str, advice: str) -> None:
        self._magic = magic
        self._bytes_max = bytes_max
        self._about = about
        self._advice = advice

    def seal(self, body: bytes) -> bytes:
        """The bytes of the object."""
        assert len(body) <= self._bytes_max, f"{len(body)} bytes are too many for {self._magic!r}"
        packed = len(body) > PLAIN_BYTES
        rest = struct.pack("<IB", len(body), packed)
        rest += compression.deflate(compression.ZSTD, body) if packed else body
        return self._magic + struct.pack("<I", crc32c(rest)) + rest

    def open(self, data: bytes, name: str) -> bytes:
        """The body of the object `name`. Raises ColdDamaged."""
        if len(data) < _HEAD.size:
            raise self.damaged(name, f"it has only {len(data)} bytes")
        magic, crc, size, packed = _HEAD.unpack_from(data)
        if magic != self._magic:
            raise self.damaged(name, f"it does not begin with {self._magic.decode()}")
        if crc32c(memoryview(data)[_COVERED:]) != crc:
            raise self.damaged(name, "its checksum does not hold")
        if packed > 1 or size > self._bytes_max:
            raise self.damaged(name, f"its header is impossible (flag {packed}, {size} bytes)")
        body = data[_HEAD.size :]
        if packed:
            try:
                body = compression.inflate(compression.ZSTD, body, size)
            except (CorruptBatch, MessageTooLarge) as error:
                raise self.damaged(name, str(error)) from None
        if len(body) != size:
            raise self.damaged(name, f"its body has {len(body)} bytes, its header says {size}")
        return body

    def damaged(self, name: str, why: str) -> ColdDamaged:
        """The error of an object that cannot be read."""
        return ColdDamaged(f"{self._about}{name} is damaged: {why}; {self._advice}")
