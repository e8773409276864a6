"""Partitions that were deleted here, and whose objects are still in the store.

Rules: a deletion waits for no store. It leaves a note, a file with the copy of the manifest, before
the partition's folder goes. The objects go after the grace time, then the manifests, then the note.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onelog.base import faults
from onelog.base.errors import ColdUnavailable, StorageError
from onelog.objects import names
from onelog.objects.store import ObjectStore
from onelog.storage.cold import RowTable
from onelog.storage.engine import PartitionKey
from onelog.storage.files import OpenFile, remove, sync_directory
from onelog.storage.tiered.copies import NO_CUT, TierCopies, TierCopy, decode_copy, encode_copy

_DELETED_AT_ONCE: Final = 1000
_TEMPORARY: Final = ".tmp"


class DeletedTiers:
    """The notes of deleted partitions."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._folder = folder
        self._store = store

    def note(self, key: PartitionKey, copies: TierCopies, now_ms: int) -> None:
        """Note that a partition is to be deleted, if it has objects. Raises StorageError."""
        copy, is_damaged = copies.load()
        if not is_damaged and (copy is None or copy.head is None):
            return
        copy = copy or TierCopy(0, NO_CUT, None, RowTable())
        path = self._folder / f"{key.stream_id}.{key.partition}"
        beside = path.with_name(path.name + _TEMPORARY)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = OpenFile(str(beside), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            file.write(encode_copy(copy._replace(start=now_ms), 1), 0)
            file.sync_all()
            beside.replace(path)
            sync_directory(self._folder)
        except OSError as error:
            raise StorageError(
                f"the deletion of {key.stream_id}/{key.partition} could not be noted in"
                f" {self._folder} ({error}): its objects would stay for ever; try again"
            ) from error

    def bury(self, now_ms: int, grace_ms: int) -> int:
        """Delete the objects of partitions that were deleted long enough ago. Returns how many
        objects went. Raises ColdUnavailable."""
        count = 0
        for path in self._notes():
            found = decode_copy(path.read_bytes())
            if found is None or found[1].start <= now_ms - grace_ms:
                count += self._bury(path, None if found is None else found[1])
        return count

    def keys(self) -> list[PartitionKey]:
        """The partitions that wait."""
        return [_key_of(path) for path in self._notes()]

    def _notes(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if path.suffix != _TEMPORARY)

    def _bury(self, path: Path, copy: TierCopy | None) -> int:
        key = _key_of(path)
        try:
            faults.hit("doom.delete")
        except OSError as error:
            raise ColdUnavailable(f"deleting objects of {path.name}: {error}") from error
        count = 0 if copy is None else self._delete(_objects_of(copy))
        for folder in (names.pieces_of(*key), names.frames_of(*key), names.manifests_of(*key)):
            count += self._delete(row.name for row in self._store.list(folder))
        remove(path)
        sync_directory(self._folder)
        return count

    def _delete(self, objects: Iterator[str]) -> int:
        count = 0
        while group := list(itertools.islice(objects, _DELETED_AT_ONCE)):
            self._store.delete(group)
            count += len(group)
        return count


def _key_of(path: Path) -> PartitionKey:
    stream_id, _, number = path.name.rpartition(".")
    return PartitionKey(stream_id, int(number))  # type: ignore[arg-type]


def _objects_of(copy: TierCopy) -> Iterator[str]:
    """Objects that a copy names: those of rows may lie outside of the partition's folders."""
    yield from (row.object for row in copy.rows)
    if copy.head is not None:
        yield from (one.object for one in copy.head.doomed)
