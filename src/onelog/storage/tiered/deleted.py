"""Partitions that were deleted here, and whose objects are still in the store.

Rules: a deletion waits for no store. It leaves a note, the copy of the manifest, before the
partition goes. The note lies where the partition lies: in a file on the disk, or in the chain of an
engine without a disk, so that it is there wherever a deletion is continued. The objects go after
the grace time, then the manifests, then the note.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from onelog.base import faults
from onelog.base.errors import ColdUnavailable, StorageError
from onelog.base.ids import PartitionId
from onelog.objects import names
from onelog.objects.store import ObjectStore
from onelog.storage.cold import RowTable
from onelog.storage.engine import PartitionKey
from onelog.storage.files import OpenFile, remove, sync_directory
from onelog.storage.tiered.copies import (
    NO_CUT,
    CopyNotes,
    TierCopies,
    TierCopy,
    decode_copy,
    encode_copy,
)

_DELETED_AT_ONCE: Final = 1000
_TEMPORARY: Final = ".tmp"
_IN_CHAIN: Final = "~deleted/"
"""Before the stream id of a note in a chain: no stream has such an id."""


class DeletionNotes(Protocol):
    """Where notes of deletions are kept."""

    def write(self, key: PartitionKey, data: bytes) -> None:
        """Keep a note, before whatever is written afterwards. Raises StorageError."""
        ...

    def noted(self) -> list[PartitionKey]:
        """The partitions with a note."""
        ...

    def read(self, key: PartitionKey) -> bytes:
        """The note of a partition."""
        ...

    def remove(self, key: PartitionKey) -> None:
        """Forget a note, durably."""
        ...


class NoteFiles:
    """Notes in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, key: PartitionKey, data: bytes) -> None:
        """See `DeletionNotes`."""
        path = self._path(key)
        beside = path.with_name(path.name + _TEMPORARY)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = OpenFile(str(beside), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            file.write(data, 0)
            file.sync_all()
            beside.replace(path)
            sync_directory(self._folder)
        except OSError as error:
            raise StorageError(
                f"the deletion of {key.stream_id}/{key.partition} could not be noted in"
                f" {self._folder} ({error}): its objects would stay for ever; try again"
            ) from error

    def noted(self) -> list[PartitionKey]:
        """See `DeletionNotes`."""
        if not self._folder.is_dir():
            return []
        return [
            _key_of(path) for path in sorted(self._folder.iterdir()) if path.suffix != _TEMPORARY
        ]

    def read(self, key: PartitionKey) -> bytes:
        """See `DeletionNotes`."""
        return self._path(key).read_bytes()

    def remove(self, key: PartitionKey) -> None:
        """See `DeletionNotes`."""
        remove(self._path(key))
        sync_directory(self._folder)

    def _path(self, key: PartitionKey) -> Path:
        return self._folder / f"{key.stream_id}.{key.partition}"


class ChainNotes:
    """Notes in the chain of an engine without a disk."""

    def __init__(self, engine: CopyNotes) -> None:
        self._engine = engine

    def write(self, key: PartitionKey, data: bytes) -> None:
        """See `DeletionNotes`: the deletion comes behind it in the chain, and is waited for."""
        self._engine.keep_copy(_noted(key), data)

    def noted(self) -> list[PartitionKey]:
        """See `DeletionNotes`."""
        found = self._engine.kept_copies(_IN_CHAIN)
        return [key._replace(stream_id=key.stream_id.removeprefix(_IN_CHAIN)) for key in found]

    def read(self, key: PartitionKey) -> bytes:
        """See `DeletionNotes`."""
        return self._engine.kept_copy(_noted(key)) or b""

    def remove(self, key: PartitionKey) -> None:
        """See `DeletionNotes`."""
        self._engine.delete(_noted(key))


class DeletedTiers:
    """The notes of deleted partitions."""

    def __init__(self, store: ObjectStore, *notes: DeletionNotes) -> None:
        self._notes = list(notes)
        self._store = store

    def also(self, notes: DeletionNotes) -> None:
        """Notes lie here, too."""
        self._notes.append(notes)

    @staticmethod
    def note(key: PartitionKey, copies: TierCopies, notes: DeletionNotes, now_ms: int) -> None:
        """Note that a partition is to be deleted, if it has objects. Raises StorageError."""
        copy, is_damaged = copies.load()
        if not is_damaged and (copy is None or copy.head is None):
            return
        copy = copy or TierCopy(0, NO_CUT, None, RowTable())
        notes.write(key, encode_copy(copy._replace(start=now_ms), 1))

    def bury(self, now_ms: int, grace_ms: int) -> int:
        """Delete the objects of partitions that were deleted long enough ago. Returns how many
        objects went. Raises ColdUnavailable."""
        count = 0
        for notes in self._notes:
            for key in notes.noted():
                found = decode_copy(notes.read(key))
                if found is None or found[1].start <= now_ms - grace_ms:
                    count += self._bury(key, None if found is None else found[1])
                    notes.remove(key)
        return count

    def keys(self) -> list[PartitionKey]:
        """The partitions that wait."""
        return [key for notes in self._notes for key in notes.noted()]

    def _bury(self, key: PartitionKey, copy: TierCopy | None) -> int:
        try:
            faults.hit("doom.delete")
        except OSError as error:
            place = f"{key.stream_id}/{key.partition}"
            raise ColdUnavailable(f"deleting objects of {place}: {error}") from error
        count = 0 if copy is None else self._delete(_objects_of(copy))
        for folder in (names.pieces_of(*key), names.frames_of(*key), names.manifests_of(*key)):
            count += self._delete(row.name for row in self._store.list(folder))
        return count

    def _delete(self, objects: Iterator[str]) -> int:
        count = 0
        while group := list(itertools.islice(objects, _DELETED_AT_ONCE)):
            self._store.delete(group)
            count += len(group)
        return count


def _key_of(path: Path) -> PartitionKey:
    stream_id, _, number = path.name.rpartition(".")
    return PartitionKey(stream_id, PartitionId(int(number)))


def _noted(key: PartitionKey) -> PartitionKey:
    """Under which key the chain keeps a note."""
    return key._replace(stream_id=f"{_IN_CHAIN}{key.stream_id}")


def _objects_of(copy: TierCopy) -> Iterator[str]:
    """Objects that a copy names: those of rows may lie outside of the partition's folders."""
    yield from (row.object for row in copy.rows)
    if copy.head is not None:
        yield from (one.object for one in copy.head.doomed)
