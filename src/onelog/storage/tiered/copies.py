"""The tier's own copies of a partition's manifest, so that a start asks the store nothing.

Rules: on a disk there are two files in the partition's folder, `cold.0` and `cold.1`. The older one
is overwritten in place and synced, so the newer one is whole at any moment. The intact one with the
higher sequence number counts. A copy also says what was decided here and is not in the store yet:
the log's start, and a cut. docs/formats/manifest.md has it byte by byte. An engine without a disk
keeps one copy itself.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from onelog.base import faults
from onelog.base.errors import ColdDamaged, StorageError, StorageFull
from onelog.kernel import crc32c
from onelog.objects.manifest import Manifest
from onelog.storage.cold import RowTable
from onelog.storage.engine import PartitionKey
from onelog.storage.files import OpenFile, is_full, sync_directory

FIRST_NAME: Final = "cold.1"
"""The file with the first sequence number."""
NO_CUT: Final = -1
LOST: Final = 1
"""The manifest's copies were damaged, and only the store has it."""
UNMET: Final = 2
"""The cut was made before the store was compared: it counts for rows that are not known here."""
_MAGIC: Final = b"OLT1"
_FRAME: Final = struct.Struct("<4sIQqqIII")
"""Magic, CRC of byte 8 on, sequence, start, cut, flags, bytes of the head, bytes of the rows."""
_COVERED: Final = 8


class TierCopy(NamedTuple):
    """What is known here of a partition's tier."""

    start: int
    """First offset of the log that may be read; the manifest's, or a later one."""
    cut: int
    """The log was truncated here: rows that reach beyond are no longer read. NO_CUT: it was not."""
    head: Manifest | None
    """The newest manifest, without its rows; None: there is none."""
    rows: RowTable
    flags: int = 0


def copy_of(manifest: Manifest) -> TierCopy:
    """The copy of a manifest to which nothing was decided here."""
    head = msgspec.structs.replace(manifest, rows=())
    return TierCopy(manifest.start, NO_CUT, head, RowTable(manifest.rows))


def encode_copy(copy: TierCopy, sequence: int) -> bytes:
    """The bytes of a file."""
    head = b"" if copy.head is None else copy.head.encode()
    rows = copy.rows.to_bytes()
    rest = _FRAME.pack(_MAGIC, 0, sequence, copy.start, copy.cut, copy.flags, len(head), len(rows))[
        _COVERED:
    ]
    crc = crc32c(rows, crc32c(head, crc32c(rest)))
    return b"".join((_MAGIC, struct.pack("<I", crc), rest, head, rows))


def decode_copy(data: bytes) -> tuple[int, TierCopy] | None:
    """Sequence number and content of a file; None: it is damaged."""
    if len(data) < _FRAME.size:
        return None
    magic, crc, sequence, start, cut, flags, head_bytes, row_bytes = _FRAME.unpack_from(data)
    view, middle = memoryview(data), _FRAME.size + head_bytes
    end = middle + row_bytes
    if magic != _MAGIC or end > len(data) or crc32c(view[_COVERED:end]) != crc:
        return None
    try:
        head = Manifest.decode(data[_FRAME.size : middle]) if head_bytes else None
        rows = RowTable.from_bytes(view[middle:end], "the copy of a manifest")
    except ColdDamaged:
        return None
    return sequence, TierCopy(start, cut, head, rows, flags)


class TierCopies(Protocol):
    """Keeps the copies of one partition."""

    def load(self) -> tuple[TierCopy | None, bool]:
        """The newest intact copy, and whether there are copies although none is intact."""
        ...

    def save(self, copy: TierCopy) -> None:
        """Make this the copy that counts; whatever the engine writes afterwards is not there
        without it. Raises StorageFull, StorageError."""
        ...

    def wait(self) -> None:
        """Block until what was saved is durable."""
        ...

    def prove(self) -> None:
        """Block until it is sure that no other process had this partition when it was asked.
        Raises Fenced."""
        ...


class CopyNotes(Protocol):
    """An engine that keeps copies itself."""

    def kept_copy(self, key: PartitionKey) -> bytes | None:
        """What was kept last; None: nothing."""
        ...

    def keep_copy(self, key: PartitionKey, data: bytes) -> None:
        """Keep this, before whatever is written afterwards. Does not block."""
        ...

    def kept_copies(self, prefix: str) -> list[PartitionKey]:
        """Under which keys copies are kept whose stream ids begin so; none if it cannot write."""
        ...

    def delete(self, key: PartitionKey) -> None:
        """Delete a partition, and what is kept of it."""
        ...

    def wait(self) -> None:
        """Block until what was kept is durable."""
        ...

    def prove(self, key: PartitionKey) -> None:
        """Block until it is sure that no other process had the partition when it was asked.
        Raises Fenced."""
        ...


class NotedCopies:
    """Copies that the engine keeps."""

    __slots__ = ("_key", "_notes", "_sequence")

    def __init__(self, notes: CopyNotes, key: PartitionKey) -> None:
        self._notes = notes
        self._key = key
        self._sequence = 0

    def load(self) -> tuple[TierCopy | None, bool]:
        """See `TierCopies`."""
        data = self._notes.kept_copy(self._key)
        found = None if data is None else decode_copy(data)
        if found is None:
            return None, data is not None
        self._sequence = found[0]
        return found[1], False

    def save(self, copy: TierCopy) -> None:
        """See `TierCopies`. The caller holds a lock that the loop wants, so this does not wait."""
        try:
            faults.hit("tier.local")
        except OSError as error:
            raise StorageError(f"cannot keep the copy of a manifest: {error}") from error
        self._notes.keep_copy(self._key, encode_copy(copy, self._sequence + 1))
        self._sequence += 1

    def wait(self) -> None:
        """See `TierCopies`."""
        self._notes.wait()

    def prove(self) -> None:
        """See `TierCopies`."""
        self._notes.prove(self._key)


class TierFiles:
    """Reads and writes the two files."""

    __slots__ = ("_folder", "_sequence")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sequence = 0

    def _path(self, sequence: int) -> Path:
        return self._folder / f"cold.{sequence & 1}"

    def load(self) -> tuple[TierCopy | None, bool]:
        """The newest intact copy, and whether files exist although none is intact."""
        best: TierCopy | None = None
        exists = False
        for parity in (0, 1):
            try:
                data = self._path(parity).read_bytes()
            except FileNotFoundError:
                continue
            exists = True
            found = decode_copy(data)
            if found is not None and found[0] > self._sequence and found[0] & 1 == parity:
                self._sequence, best = found
        return best, exists and best is None

    def save(self, copy: TierCopy) -> None:
        """Make this the copy that counts, durably. Raises StorageFull, StorageError."""
        sequence = self._sequence + 1
        path = self._path(sequence)
        try:
            faults.hit("tier.local")
            fresh = not path.exists()
            file = OpenFile(str(path), os.O_WRONLY | os.O_CREAT)
            file.write(encode_copy(copy, sequence), 0)
            try:
                file.sync()
            except OSError as error:  # whether it counts now is not known: never take it for "full"
                raise OSError(errno.EIO, f"sync of {path} failed: {error}") from error
            if fresh:
                sync_directory(self._folder)
        except OSError as error:
            if is_full(error):
                raise StorageFull(
                    f"no room for {path}, the list of what lies in the object store: free some"
                    " space, then try again"
                ) from error
            raise StorageError(f"cannot write {path}: {error}") from error
        self._sequence = sequence

    def wait(self) -> None:
        """`save` waited for the disk."""

    def prove(self) -> None:
        """Whoever has the data directory has the partition."""
