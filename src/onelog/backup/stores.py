"""Where backups lie: a folder, or object storage behind the same few calls.

Rules: a name is written whole or not at all. `put` may leave it to `flush` to make names and bytes
survive power loss; a manifest is put only after a `flush`. Every method blocks, and may be called
from several threads. Errors say what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from onelog.backup.disk import Bytes, copy_part, write_all
from onelog.base import faults
from onelog.base.errors import InvalidRequest, NotFound, OnelogError, StorageError, StorageFull
from onelog.objects.access import StoredObject

TEMPORARY: Final = ".tmp"
"""How names end that are being written, or that a crash left half written."""
SCHEMES: Final = ("file", "s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https")
"""How URLs of stores begin. obstore knows more, but what it keeps in memory is no backup."""
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/*")


class BackupStore(Protocol):
    """Names, each with its bytes."""

    at_once: int
    """How many names are best put at the same time."""

    def put(self, name: str, data: Bytes) -> None:
        """Write a name; one that exists is replaced."""
        ...

    def put_part(self, name: str, file: int, position: int, size_bytes: int) -> None:
        """Write a name with a part of an open file."""
        ...

    def touch(self, name: str) -> None:
        """Make a name as young as one that was put now. Raises NotFound."""
        ...

    def flush(self) -> None:
        """Everything that was put so far survives power loss."""
        ...

    def get(self, name: str) -> bytes:
        """All bytes of a name. Raises NotFound."""
        ...

    def head(self, name: str, size_bytes: int) -> bytes:
        """The first bytes of a name, at most so many. Raises NotFound."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every name below a folder, in no order; also those that end with `TEMPORARY`."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete names; one that is not there is no error."""
        ...


def open_backup_store(url: str, options: Mapping[str, str]) -> BackupStore:
    """The store of a URL: a folder (a path, or `file://`), or object storage (`s3://` and others).

    `options` are those of the object storage. Raises InvalidRequest, ConfigError.
    """
    folder = backup_folder(url)
    if folder is None:
        from onelog.backup.object_store import ObjectBackups  # noqa: PLC0415 - an extra

        return ObjectBackups(url, options)
    if options:
        raise InvalidRequest(
            f"{url!r} is a folder, which takes no options ({', '.join(sorted(options))}); a bucket"
            " is written s3://BUCKET/PREFIX"
        )
    if not folder.is_absolute() or "\0" in url:
        raise InvalidRequest(
            f"{url!r}: name a folder by its whole path, such as /srv/backups, or a bucket, such as"
            " s3://backups/onelog"
        )
    return FolderBackups(folder)


def backup_folder(url: str) -> Path | None:
    """The folder that a URL names; None: it names object storage. Raises InvalidRequest."""
    check_scheme(url)
    scheme, found, rest = url.partition("://")
    if found and scheme != "file":
        return None
    return Path(rest if found else url)


def check_scheme(url: str) -> None:
    """Refuse a URL with a typo: what begins like a URL is not taken for a folder."""
    looks = _SCHEME.match(url)
    if looks is None:
        return
    scheme = looks["scheme"].lower()
    slashes = "///" if scheme == "file" else "//"
    if scheme not in SCHEMES:
        told = (
            f"{scheme}: is no store that backups know: write s3://BUCKET/PREFIX, gs://… or az://…"
        )
    elif looks.group() == f"{scheme}:{slashes}":
        return
    else:
        told = f"write {scheme}:{slashes}{url[looks.end() :]}"
    raise InvalidRequest(
        f"{url!r}: {told}; a folder is written by its whole path, such as /srv/backups"
    )


class FolderBackups:
    """Backups in a folder."""

    at_once = 1
    """One copy keeps a disk busy; with more the broker waits longer for its own writes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._unsynced_files: set[Path] = set()
        """Files whose bytes are on the disk, but not the fact that they belong to the file."""
        self._unsynced: set[Path] = set()
        """Folders in which names were made and not synced."""

    def put(self, name: str, data: Bytes) -> None:
        """Write a file."""
        self._put(name, partial(write_all, data))

    def put_part(self, name: str, file: int, position: int, size_bytes: int) -> None:
        """Let the system copy a part of a file; where it can, it shares the blocks."""
        self._put(name, partial(copy_part, file, position, size_bytes))

    def _put(self, name: str, fill: Callable[[int], None]) -> None:
        """Fill a file beside its name, then rename it."""
        path = self._root / name
        beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
        try:
            faults.hit("backup.put")
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            target = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fill(target)
            finally:
                os.close(target)
            beside.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise self._failed("written", error) from error
        with self._lock:
            self._unsynced_files.add(path)
            self._unsynced.update((path.parent, path.parent.parent, self._root, self._root.parent))

    def touch(self, name: str) -> None:
        """Set the time of a file."""
        try:
            os.utime(self._root / name)
        except FileNotFoundError as error:
            raise NotFound(f"{self._root / name} is missing") from error
        except OSError as error:
            raise self._failed("written", error) from error

    def flush(self) -> None:
        """Sync the files that were written since the last time, then their folders.

        Once for all, because each sync by itself makes the file system write its journal, which
        the syncs of the broker wait for.
        """
        with self._lock:
            files, self._unsynced_files = self._unsynced_files, set()
            folders, self._unsynced = self._unsynced, set()
        try:
            for path in (*files, *folders):
                _sync(path)
        except OSError as error:
            raise self._failed("synced", error) from error

    def get(self, name: str) -> bytes:
        """Read a file."""
        return self.head(name, -1)

    def head(self, name: str, size_bytes: int) -> bytes:
        """Read the beginning of a file."""
        try:
            with (self._root / name).open("rb") as file:
                return file.read(size_bytes)
        except FileNotFoundError as error:
            raise NotFound(f"{self._root / name} is missing") from error
        except OSError as error:
            raise self._failed("read", error) from error

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Walk over a folder. A file that goes meanwhile (it got its name, or pruning took it) is
        left out."""
        try:
            for folder, _, names in os.walk(self._root / prefix, onerror=_unless_missing):
                for name in names:
                    path = Path(folder, name)
                    try:
                        state = path.stat()
                    except FileNotFoundError:
                        continue
                    yield StoredObject(
                        path.relative_to(self._root).as_posix(),
                        state.st_size,
                        state.st_mtime_ns // 1_000_000,
                    )
        except OSError as error:
            raise self._failed("listed", error) from error

    def delete(self, names: Sequence[str]) -> None:
        """Delete files."""
        try:
            for name in names:
                (self._root / name).unlink(missing_ok=True)
                with self._lock:
                    self._unsynced_files.discard(self._root / name)
        except OSError as error:
            raise self._failed("changed", error) from error

    def _failed(self, what: str, error: OSError) -> OnelogError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFull(
                f"no room in {self._root}: free some space, or delete old backups there with"
                " `onelog backup prune`, then begin again; what was sent already is used"
            )
        if isinstance(error, PermissionError):
            return StorageError(
                f"{self._root} cannot be {what} ({error}): give the user of this process"
                f" (uid {os.geteuid()}) the right to it"
            )
        return StorageError(f"{self._root} cannot be {what}: {error}")


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
