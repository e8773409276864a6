"""A store in a folder: a disk of its own, or a network file system.

Rules: a name appears whole and synced, or not at all: its bytes are written beside it, synced, and
then linked (a new name) or renamed; the folders above it are synced before the answer. Files that
a crash left half written end with `.tmp` and are no objects; they go when they are a day old. A
folder that vanished, or that got empty, is away: nothing is written where it was, and no object of
it is taken for deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from onelog.base.errors import ColdUnavailable, InvalidRequest, NotFound, StorageError
from onelog.objects.access import Buffer, NameTaken, StoredObject

_TEMPORARY: Final = ".tmp"
_ABANDONED_S: Final = 24 * 3600
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class FolderAccess:
    """Objects as files."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._root = Path(path)
        if not self._root.is_absolute() or "\0" in path:
            raise InvalidRequest(
                f"file://{path} names no folder: write its whole path, such as file:///srv/onelog"
            )
        if options:
            raise InvalidRequest(
                f"file://{path} is a folder, which takes no options ({', '.join(sorted(options))})"
            )
        self._was_there = self._root.is_dir()
        """Only the folder of a new store is made here."""
        self._was_used = False
        """Whether anything was in it: folders below it stay for ever, so it never gets empty."""

    def put(
        self, name: str, parts: Sequence[Buffer], size_bytes: int, *, is_new: bool = False
    ) -> int:
        """See `Access`."""
        path = self._path(name)
        if self._was_there:
            self._check_root()  # one that vanished is never made again: answered bytes lie in it
        beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        try:
            self._make(path.parent)
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                for part in parts:
                    _write_all(file, memoryview(part).cast("B"))
                os.fsync(file)
            finally:
                os.close(file)
            if is_new:
                os.link(beside, path)
                beside.unlink()
            else:
                beside.replace(path)
            _sync(path.parent)
        except FileExistsError:
            raise NameTaken(name) from None
        except OSError as error:
            raise self._failed(name, error) from error
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
        self._was_there = self._was_used = True
        return 1

    def _make(self, folder: Path) -> None:
        """Make a folder and those above it, so that they survive power loss."""
        if folder.is_dir():
            return
        if folder != self._root:
            self._make(folder.parent)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sync(folder.parent)

    def get(self, name: str) -> bytes:
        """See `Access`."""
        return self._read(name, 0, None)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """See `Access`."""
        return self._read(name, start, length)

    def get_suffix(self, name: str, length: int) -> bytes:
        """See `Access`."""
        return self._read(name, -length, length)

    def _read(self, name: str, start: int, length: int | None) -> bytes:
        try:
            with self._path(name).open("rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                start = max(0, size_bytes + start) if start < 0 else min(start, size_bytes)
                ends = size_bytes if length is None else min(size_bytes, start + length)
                data = bytearray(ends - start)
                view = memoryview(data)
                while view and (count := os.preadv(file.fileno(), [view], start)):
                    view, start = view[count:], start + count
                return bytes(data[: len(data) - len(view)])
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            raise NotFound(f"file://{self._root}: {name} is missing") from None
        except OSError as error:
            raise self._failed(name, error) from error

    def list(self, prefix: str, after: str) -> Iterator[StoredObject]:
        """See `Access`."""
        self._check_root()
        try:
            yield from self._walk(self._path(prefix), prefix, after)
        except OSError as error:
            raise self._failed(prefix, error) from error

    def _walk(self, folder: Path, prefix: str, after: str) -> Iterator[StoredObject]:
        """Names in the order of a bucket: a folder counts with the slash behind it."""
        try:
            with os.scandir(folder) as found:
                entries = [(one.name + "/" * one.is_dir(), one) for one in found]
        except (FileNotFoundError, NotADirectoryError):
            return
        for text, entry in sorted(entries, key=lambda one: one[0]):
            name = prefix + text
            if text.endswith("/"):
                if name > after or after.startswith(name):
                    yield from self._walk(folder / entry.name, name, after)
                continue
            with contextlib.suppress(FileNotFoundError):  # it goes while we look
                status = entry.stat()
                if text.endswith(_TEMPORARY):
                    if time.time() - status.st_mtime > _ABANDONED_S:
                        Path(entry.path).unlink()
                elif name > after:
                    yield StoredObject(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def delete(self, names: Sequence[str]) -> int:
        """See `Access`."""
        folders = set()
        for name in names:
            path = self._path(name)
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                continue
            except OSError as error:
                raise self._failed(name, error) from error
            folders.add(path.parent)
        for folder in folders:
            try:
                _sync(folder)
            except OSError as error:
                raise self._failed(str(folder), error) from error
        return len(names)

    def _path(self, name: str) -> Path:
        if name.startswith("/") or ".." in name.split("/"):
            raise InvalidRequest(f"{name!r} is no name of an object")
        return self._root / name

    def _check_root(self) -> None:
        """A folder that is not there (not mounted) must not look like objects that are gone."""
        if not self._root.is_dir():
            raise ColdUnavailable(
                f"the folder {self._root} is not there: mount it, or make it, if this is a new"
                " store",
                "bucket",
            )
        self._was_there = True
        was_used = self._was_used  # another thread may put the first object while we look
        try:
            with os.scandir(self._root) as entries:
                is_empty = next(entries, None) is None
        except OSError as error:
            raise self._failed("", error) from error
        if is_empty and was_used:
            raise ColdUnavailable(
                f"the folder {self._root} is empty, and it held objects: it was emptied, or what"
                " was mounted there is gone. Mount it again, or restore it from a copy",
                "bucket",
            )
        if not is_empty:
            self._was_used = True

    def _failed(self, name: str, error: OSError) -> StorageError:
        told = f"file://{self._root}: {name}: {error.strerror or error}"
        if error.errno in _FULL:
            return ColdUnavailable(f"{told}: make room on that disk", "away")
        if error.errno in _REFUSED:
            return ColdUnavailable(
                f"{told}: let the user of this process read and write there", "refused"
            )
        return ColdUnavailable(f"{told}: look at that disk", "away")


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
