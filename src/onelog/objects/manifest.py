"""The manifest of a partition's tier: all of its pieces, as one object that is never changed.

Rules: a manifest is always whole; each has the number after the last one's, and the newest counts.
It counts only if its checksum holds and its rows ascend without overlap. The nonce says which
writer made it. A manifest holds the stream's own record, so that a bucket alone restores a stream.
docs/formats/manifest.md has it byte by byte.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from onelog.base.errors import ColdDamaged
from onelog.objects.envelope import Envelope
from onelog.objects.rows import Row, check_rows

VERSION: Final = 1
NONCE_BYTES: Final = 16
MANIFEST_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes that a manifest may inflate to: about 800,000 rows."""
_ENVELOPE: Final = Envelope(
    b"OLM1", MANIFEST_BYTES_MAX, about="", advice="an older manifest may be whole"
)


class Doomed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An object that no row names any more; it is deleted after a grace time."""

    object: str
    since_ms: int


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The pieces of one partition, and what else a start needs to know of its tier."""

    version: int
    seq: int
    """From 1, without a gap."""
    nonce: bytes
    """Which writer made it."""
    leader_epoch: int
    stream: bytes
    """The stream's record, as the metadata has it (JSON)."""
    partition: int
    start: int
    """The first offset of the log that may be read."""
    rows: tuple[Row, ...] = ()
    doomed: tuple[Doomed, ...] = ()
    marks: dict[str, str] = {}
    """What the commits to a table left behind; empty without a table."""

    @property
    def end(self) -> int:
        """The first offset behind the last piece; the start, if there is none."""
        return max(self.start, self.rows[-1].end) if self.rows else self.start

    def encode(self) -> bytes:
        """The bytes of the object."""
        return _ENVELOPE.seal(msgspec.msgpack.encode(self))

    @staticmethod
    def decode(data: bytes, name: str = "the manifest") -> Manifest:
        """A manifest whose checksum holds and whose rows are in order. Raises ColdDamaged."""
        body = _ENVELOPE.open(data, name)
        try:
            found = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _ENVELOPE.damaged(name, f"its body cannot be read ({error})") from None
        if found.version != VERSION:
            raise ColdDamaged(
                f"{name} has format {found.version}, this program reads {VERSION}: use the version"
                " of OneLog that wrote it"
            )
        if found.seq < 1 or found.start < 0 or found.partition < 0:
            raise _ENVELOPE.damaged(name, "its number, start or partition is impossible")
        if len(found.nonce) != NONCE_BYTES:
            raise _ENVELOPE.damaged(name, f"its nonce has {len(found.nonce)} bytes")
        check_rows(found.rows, name)
        return found


_decoder: Final = msgspec.msgpack.Decoder(Manifest)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def encode_with(head: Manifest, count: int, rows: bytes) -> bytes:
    """The bytes of the object `head` with `count` rows, each in msgpack, one behind the other."""
    fields = msgspec.structs.astuple(head)
    at = head.__struct_fields__.index("rows")
    body = bytearray((0x90 | len(fields),))
    for field in fields[:at]:
        body += msgspec.msgpack.encode(field)
    body += _array_head(count) + rows
    for field in fields[at + 1 :]:
        body += msgspec.msgpack.encode(field)
    return _ENVELOPE.seal(bytes(body))


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)
