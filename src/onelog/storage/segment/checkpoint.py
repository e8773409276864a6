"""The partition's checkpoint: which segments are durable, and up to where the log is known good.

Rules: there are two files, `checkpoint.0` and `checkpoint.1`. The older one is overwritten in
place and synced, so the newer one is whole at any moment, and a full disk does not keep retention
from making room. The intact one with the higher sequence number counts.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Final

import msgspec

from onelog.base import faults
from onelog.kernel import crc32c
from onelog.storage.files import OpenFile, sync_directory

VERSION: Final = 1
UNKNOWN: Final = -1
"""In `index_bytes`: no index file of the segment can be trusted. In `topics_bytes`: none kept."""
_MAGIC: Final = b"OLC1"
_FRAME: Final = struct.Struct("<4sIIQ")  # magic, CRC-32C of the rest, body bytes, sequence
_BLOCK_BYTES: Final = 4096


class SegmentRow(msgspec.Struct, array_like=True, frozen=True):
    """A segment as of a moment: its durable bytes and what its index files must look like."""

    base_offset: int
    size_bytes: int
    last_batch_at: int = 0
    max_timestamp_ms: int = -1
    created_ms: int = -1
    index_bytes: int = UNKNOWN
    index_crc: int = 0
    times_bytes: int = 0
    times_crc: int = 0
    topics_bytes: int = UNKNOWN


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """The facts that recovery relies on."""

    version: int
    start_offset: int
    end_offset: int
    sealed: tuple[SegmentRow, ...]
    tail: SegmentRow
    """The segment that the recovery point lies in; its size is the recovery point's position."""
    swap: tuple[int, ...] = ()
    """Bases of `.cleaned` segments that are to replace others; `sealed` names them already."""
    cut: bool = False
    """The log was truncated to this point: files behind it are to be deleted."""
    high_watermark: int = 0
    """The high watermark that was kept last; never beyond the end that the log had then."""


_decoder: Final = msgspec.msgpack.Decoder(Checkpoint)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def empty_checkpoint(offset: int = 0) -> Checkpoint:
    """The checkpoint of an empty partition."""
    return Checkpoint(VERSION, offset, offset, (), SegmentRow(offset, 0))


class CheckpointFile:
    """Reads and writes a partition's checkpoint."""

    __slots__ = ("_directory", "_sequence")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._sequence = 0

    def _path(self, sequence: int) -> str:
        return f"{self._directory}/checkpoint.{sequence & 1}"

    def load(self) -> tuple[Checkpoint | None, bool]:
        """The newest intact checkpoint, and whether files exist although none is intact."""
        best: Checkpoint | None = None
        exists = False
        for parity in (0, 1):
            path = Path(self._path(parity))
            if not path.exists():
                continue
            exists = True
            found = _decode(path.read_bytes())
            if found is not None and found[0] > self._sequence and found[0] & 1 == parity:
                self._sequence, best = found
        return best, exists and best is None

    def save(self, checkpoint: Checkpoint) -> None:
        """Make `checkpoint` the one that counts, durably."""
        sequence = self._sequence + 1
        data = _encode(checkpoint, sequence)
        faults.hit("segment.checkpoint")
        path = self._path(sequence)
        fresh = not Path(path).exists()
        file = OpenFile(path, os.O_WRONLY | os.O_CREAT)
        file.write(data, 0)
        try:
            file.sync()
        except OSError as error:  # whether it counts now is not known: never take it for "full"
            raise OSError(errno.EIO, f"sync of {path} failed: {error}") from error
        if fresh:
            sync_directory(self._directory)
        faults.hit("segment.checkpoint.written")
        self._sequence = sequence


def write_first(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write the first checkpoint of a copy of a partition; the copier makes it durable."""
    path = directory / "checkpoint.1"
    path.write_bytes(_encode(checkpoint, 1))
    return path


def _encode(checkpoint: Checkpoint, sequence: int) -> bytes:
    body = msgspec.msgpack.encode(checkpoint)
    rest = struct.pack("<IQ", len(body), sequence) + body
    data = _MAGIC + struct.pack("<I", crc32c(rest)) + rest
    return data + bytes(-len(data) % _BLOCK_BYTES)


def _decode(data: bytes) -> tuple[int, Checkpoint] | None:
    if len(data) < _FRAME.size:
        return None
    magic, crc, size, sequence = _FRAME.unpack_from(data)
    end = _FRAME.size + size
    if magic != _MAGIC or end > len(data) or crc32c(data[8:end]) != crc:
        return None
    try:
        found = _decoder.decode(data[_FRAME.size : end])
    except msgspec.MsgspecError:
        return None
    return (sequence, found) if found.version == VERSION else None
