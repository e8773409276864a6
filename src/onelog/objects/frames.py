"""Frames: what a Parquet file does not say of the batches whose records it holds.

Rules: frames have the form of a piece (`piece.py`). Their log is the batches that are kept raw; the
batches section has the header of every batch, with the CRC that the rebuilt batch must have; the
file section names the Parquet file and its row groups. A row group belongs to whole batches.
Offsets lead to rows, so rows stay findable when a file is rewritten. docs/formats/frames.md has it
byte by byte; `frames_building.py` makes frames.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from onelog.base.errors import CorruptBatch, MessageTooLarge
from onelog.kernel import FRAME, PLACE_BOTH, PLACE_RAW, PLACE_ROWS, crc32c
from onelog.objects.piece import Footer, damaged
from onelog.objects.postings import Buffer
from onelog.objects.rows import FOOTER_BYTES
from onelog.record import compression

PLACES: Final = (PLACE_ROWS, PLACE_RAW, PLACE_BOTH)
_CODES: Final = "qIIiHqqqhiIIB"
"""The arrays of the batches section, in their order."""
_BATCH_BYTES: Final = 61
_HEAD: Final = struct.Struct("<II")  # CRC of byte 4 on, batches
_CRC: Final = struct.Struct("<I")
assert sum(array(code).itemsize for code in _CODES) == _BATCH_BYTES


class BatchFrame(NamedTuple):
    """The header of a batch, and where its records are."""

    base: int
    last_delta: int
    count: int  # type: ignore[assignment]
    leader_epoch: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    crc: int
    """Of the batch as it will be read."""
    first_row: int
    """The row of its first record; if it has no rows: of the next record that has one."""
    place: int

    @property
    def rows(self) -> int:
        """Rows of the file that belong to the batch."""
        return 0 if self.place == PLACE_RAW else self.count


class RowGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of the file that is read at once, and the batches that it belongs to."""

    first_batch: int
    first_row: int
    rows: int
    """0: its batches are all raw, and the file has no row group for them."""
    number: int
    """The number of the row group in the file; without rows: of the next one."""
    position: int
    size_bytes: int
    """Where it lies in the file."""
    raw_position: int
    raw_bytes: int
    """Its raw batches, in the log of the frames."""
    log_bytes: int
    """Bytes that its batches are rebuilt to."""


class FramedFile(msgspec.Struct, frozen=True, array_like=True):
    """The Parquet file of some frames."""

    path: str
    size_bytes: int
    footer_position: int
    rows: int
    created_ms: int
    """When the oldest segment in it was created."""
    groups: tuple[RowGroup, ...]

    def group_at(self, batch: int) -> int:
        """The group that a batch belongs to."""
        return bisect_right(self.groups, batch, key=lambda group: group.first_batch) - 1


_decoder: Final = msgspec.msgpack.Decoder(FramedFile)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


class FrameTable:
    """The frames of all batches of a piece."""

    __slots__ = ("_arrays",)

    def __init__(self, frames: Sequence[BatchFrame] = ()) -> None:
        columns = zip(*frames, strict=True) if frames else ((),) * len(_CODES)
        self._arrays = [array(code, part) for code, part in zip(_CODES, columns, strict=True)]

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, number: int) -> BatchFrame:
        return BatchFrame(*(part[number] for part in self._arrays))

    def number_at(self, offset: int) -> int:
        """The last batch that begins at or before `offset`, or 0."""
        return max(0, bisect_right(self._arrays[0], offset) - 1)

    def base(self, number: int) -> int:
        """The first offset of a batch."""
        return int(self._arrays[0][number])

    def packed(self, first: int, last: int) -> bytes:
        """The frames from `first` to before `last`, as the kernel rebuilds batches from them."""
        (base, delta, count, epoch, attributes, base_ts, max_ts, producer, producer_epoch,
         sequence, crc, row, place) = (part[first:last] for part in self._arrays)  # fmt: skip
        rows = zip(
            base, base_ts, max_ts, producer, delta, count, epoch, sequence, crc, row, attributes,
            producer_epoch, place, strict=True,
        )  # fmt: skip
        return b"".join([FRAME.pack(*row) for row in rows])

    def encode(self) -> bytes:
        """The batches section."""
        body = b"".join(part.tobytes() for part in self._arrays)
        rest = struct.pack("<I", len(self)) + compression.deflate(compression.ZSTD, body)
        return _CRC.pack(crc32c(rest)) + rest

    @staticmethod
    def decode(data: Buffer, name: str) -> FrameTable:
        """Read a batches section. Raises ColdDamaged."""
        view = memoryview(data)
        if len(view) < _HEAD.size or crc32c(view[_CRC.size :]) != _CRC.unpack_from(view)[0]:
            raise damaged(name, "the checksum of its batches does not hold")
        count = _HEAD.unpack_from(view)[1]
        try:
            body = compression.inflate(
                compression.ZSTD, view[_HEAD.size :], count * _BATCH_BYTES + 1
            )
        except (CorruptBatch, MessageTooLarge) as error:
            raise damaged(name, f"its batches: {error}") from None
        if len(body) != count * _BATCH_BYTES:
            raise damaged(name, f"its batches have {len(body)} bytes for {count} of them")
        found, position = FrameTable(), 0
        for part in found._arrays:
            size = count * part.itemsize
            part.frombytes(body[position : position + size])
            position += size
        found._check(name)
        return found

    def _check(self, name: str) -> None:
        """Batches ascend, and rows follow each other."""
        end = row = 0
        bases, deltas, counts = self._arrays[0], self._arrays[1], self._arrays[2]
        rows, places = self._arrays[11], self._arrays[12]
        for base, delta, count, first, place in zip(
            bases, deltas, counts, rows, places, strict=True
        ):
            if base < end or first != row or place not in PLACES:
                raise damaged(name, f"the frame of batch {base} does not fit the one before it")
            end = base + delta + 1
            row += 0 if place == PLACE_RAW else count


def encode_file(file: FramedFile) -> bytes:
    """The file section."""
    body = msgspec.msgpack.encode(file)
    return _CRC.pack(crc32c(body)) + body


def decode_file(index: Buffer, footer: Footer, name: str) -> FramedFile:
    """The file section of an index part. Raises ColdDamaged."""
    if footer.frames is None:
        raise damaged(name, "it is a piece, and no frames of a Parquet file")
    view = memoryview(index)
    end = len(view) - FOOTER_BYTES
    part = view[end - footer.frames.file_bytes : end]
    if len(part) < _CRC.size or crc32c(part[_CRC.size :]) != _CRC.unpack_from(part)[0]:
        raise damaged(name, "the checksum of its file section does not hold")
    try:
        found = _decoder.decode(part[_CRC.size :])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise damaged(name, f"its file section: {error}") from None
    batch = row = raw = 0
    for at, group in enumerate(found.groups):
        if (
            (group.first_batch < batch if at else group.first_batch != 0)
            or (group.first_row, group.raw_position) != (row, raw)
            or min(group.rows, group.position, group.size_bytes, group.raw_bytes, group.number) < 0
        ):
            raise damaged(name, f"its row group {at} does not fit the one before it")
        batch, row, raw = group.first_batch + 1, row + group.rows, raw + group.raw_bytes
    if row != found.rows or raw != footer.frames.raw_bytes:
        raise damaged(name, "its row groups do not have all rows and all raw batches")
    return found
