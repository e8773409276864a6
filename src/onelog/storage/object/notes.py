"""The notes that the object engine writes into its chain; docs/formats/chain.md lists them.

Rules: a note says what holds after it, and is applied in the order of the chain. In one object all
notes come before the data.
"""

from __future__ import annotations

from typing import Final

import msgspec

from onelog.base.errors import ColdDamaged
from onelog.objects.rows import Row


class PartitionNote(msgspec.Struct, frozen=True, array_like=True):
    """A note about one partition."""

    stream_id: str
    partition: int

    @property
    def name(self) -> tuple[str, int]:
        """Which partition."""
        return self.stream_id, self.partition


class StateNote(PartitionNote, frozen=True, array_like=True, tag="state"):
    """Derived state as of an offset."""

    kind: str
    offset: int
    blob: bytes


class StartNote(PartitionNote, frozen=True, array_like=True, tag="start"):
    """The log begins at `offset`."""

    offset: int


class CutNote(PartitionNote, frozen=True, array_like=True, tag="cut"):
    """The log ends at `offset`."""

    offset: int


class HighNote(PartitionNote, frozen=True, array_like=True, tag="high"):
    """The high watermark to keep."""

    offset: int


class RowsNote(PartitionNote, frozen=True, array_like=True, tag="rows"):
    """The batches in [base, end) lie in these rows now, wherever they were."""

    base: int
    end: int
    rows: tuple[Row, ...]


class DropNote(PartitionNote, frozen=True, array_like=True, tag="drop"):
    """The partition is deleted."""


class ForgetNote(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Objects that were deleted."""

    objects: tuple[str, ...]


EngineNote = StateNote | StartNote | CutNote | HighNote | RowsNote | DropNote | ForgetNote

_decoder: Final = msgspec.msgpack.Decoder(tuple[EngineNote, ...])
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def decode_notes(data: bytes, name: str) -> tuple[EngineNote, ...]:
    """The notes of an object. Raises ColdDamaged."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ColdDamaged(
            f"the notes of {name} cannot be read ({error}): a newer version of OneLog wrote them,"
            " or the object is damaged"
        ) from None
