"""A checkpoint of a chain: the state after one of its objects, so that a start reads no older ones.

Rules: it counts only if its checksum holds. The state itself is opaque here. `fences` are all
objects that ended older epochs: they stay for ever, so that a write that was frozen for weeks still
meets one. docs/formats/chain.md has it byte by byte.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from onelog.base.errors import ColdDamaged
from onelog.objects.envelope import Envelope
from onelog.objects.wal import NONCE_BYTES

VERSION: Final = 1
CHECKPOINT_BYTES_MAX: Final = 1 << 30
"""Bytes that a checkpoint may inflate to."""
_ENVELOPE: Final = Envelope(
    b"OLK1",
    CHECKPOINT_BYTES_MAX,
    about="the checkpoint ",
    advice="restore the object from a copy of the bucket",
)


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
        return _ENVELOPE.seal(msgspec.msgpack.encode(self))

    @staticmethod
    def decode(data: bytes, name: str) -> ChainCheckpoint:
        """A checkpoint whose checksum holds. Raises ColdDamaged."""
        try:
            found = _decoder.decode(_ENVELOPE.open(data, name))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _ENVELOPE.damaged(name, f"its body cannot be read ({error})") from None
        if found.version != VERSION:
            raise ColdDamaged(
                f"{name} has format {found.version}, this program reads {VERSION}: use the version"
                " of OneLog that wrote it"
            )
        if found.epoch < 1 or found.seq < 0 or len(found.nonce) != NONCE_BYTES:
            raise _ENVELOPE.damaged(name, "its numbers are impossible")
        return found


_decoder: Final = msgspec.msgpack.Decoder(ChainCheckpoint)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""
