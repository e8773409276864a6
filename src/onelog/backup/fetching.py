"""Fetches the files of a backup into a folder, and checks every byte on the way.

Rules: each object is read once. A piece whose checksum is wrong is not written, and the restore
ends with an error. Everything is synced before `fetch` returns.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from onelog.backup.manifest import BackupManifest, PieceRow, object_name
from onelog.backup.repository import THREADS, Progress, Repository, is_sound
from onelog.base import faults
from onelog.base.errors import NotFound, StorageError, StorageFull


class _Place(NamedTuple):
    piece: PieceRow
    path: Path
    position: int


def fetch(
    repository: Repository,
    manifest: BackupManifest,
    into: Path,
    progress: Progress,
    renamed: Mapping[str, str],
) -> None:
    """Write every file of a backup below a folder; some under another name. Raises StorageError."""
    wanted: defaultdict[bytes, list[_Place]] = defaultdict(list)
    paths = []
    for row in manifest.files:
        path = into / renamed.get(row.path, _checked(row.path))
        paths.append(path)
        position = 0
        for piece in row.pieces:
            wanted[piece.object].append(_Place(piece, path, position))
            position += piece.size_bytes
        if position != row.size_bytes:
            raise StorageError(f"the manifest of backup {manifest.summary.id} contradicts itself")
    total, done = manifest.summary.size_bytes, 0

    def take(name: bytes) -> int:
        try:
            data = repository.store.get(object_name(name))
        except NotFound as error:
            raise StorageError(f"{error}: {wanted[name][0].path.name} needs it; {_HINT}") from error
        for piece, path, position in wanted[name]:
            if not is_sound(data, piece):
                raise StorageError(f"{repository.url}: {object_name(name)} is damaged; {_HINT}")
            part = memoryview(data)[piece.position : piece.position + piece.size_bytes]
            _write(path, part, position)
        return sum(place.piece.size_bytes for place in wanted[name])

    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        threads = ThreadPoolExecutor(THREADS)
        try:
            for size in threads.map(take, wanted):
                done += size
                progress(done, total)
        finally:
            threads.shutdown(cancel_futures=True)
        _sync_all(paths, into)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"no room in {into}: {total} bytes are needed. Empty the folder, free some space,"
                " then restore again"
            ) from error
        raise StorageError(f"{into} cannot be written: {error}") from error


_HINT = (
    "choose another backup (`onelog backup list`), whose files are sound (`onelog backup verify`)"
)


def _checked(path: str) -> str:
    """A path of a manifest, which must stay below the folder."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise StorageError(f"the manifest names the file {path!r}, which is outside of the data")
    return path


def _write(path: Path, data: memoryview, position: int) -> None:
    faults.hit("restore.write")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        while data:
            wrote = os.pwrite(descriptor, data, position)
            data, position = data[wrote:], position + wrote
    finally:
        os.close(descriptor)


def _sync_all(paths: list[Path], into: Path) -> None:
    folders = {into, into.parent}
    for path in paths:
        folders.update(parent for parent in path.parents if parent.is_relative_to(into))
    for path in (*paths, *folders):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, survive power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
