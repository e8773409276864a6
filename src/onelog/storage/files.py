"""Open files under one bound, and read-only maps of them that an engine may close.

Rules: the engine closes a file by dropping its reference. A user of the file holds a reference of
its own, so that nothing is closed or unmapped under a reader. Files are never written through a
map.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from onelog.storage.engine import Buffer
from onelog.storage.residence import Map

OPEN_FILES_MAX: Final = 1024
"""Files that an engine keeps open, unless the process may open fewer."""
_FORCED_FACTOR: Final = 4
"""Files with unsynced bytes stay open, up to so many times the bound."""
_LOOKS_MAX: Final = 64
"""Slots that are examined at most when a file is opened, so that opening stays cheap."""

PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
"""Errors of a read that say nothing about the disk."""


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class ShortFile(Exception):
    """A file has fewer bytes than it must have."""


class OpenFile:
    """A file descriptor that is closed when the last reference to it goes.

    A caller that uses `fd` keeps the object in a variable: a temporary is closed before the call.
    """

    __slots__ = ("fd",)

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def sync(self) -> None:
        """Make the bytes (and the size) durable."""
        os.fdatasync(self.fd)

    def sync_all(self) -> None:
        """Make everything durable, a directory's names too."""
        os.fsync(self.fd)

    def cut(self, size: int) -> None:
        """Drop the bytes from `size` on."""
        os.ftruncate(self.fd, size)

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`, however many calls the system wants."""
        done = os.pwrite(self.fd, data, position)
        size = len(data)
        while done < size:
            wrote = os.pwrite(self.fd, memoryview(data)[done:], position + done)
            if wrote == 0:
                raise OSError(f"the system wrote nothing at byte {position + done}")
            done += wrote

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class FileSlot:
    """Holds a file open and can reopen it."""

    __slots__ = ("used",)

    DESCRIPTORS = 1
    """How many it takes."""

    def __init__(self) -> None:
        self.used = False

    def let_go(self, forced: bool) -> bool:
        """Close the file; False if it should stay open (never when forced)."""
        raise NotImplementedError


class FileCache:
    """The bound: when too many files are open, those not used lately are closed."""

    __slots__ = ("_limit", "_lock", "_open", "_slots")

    def __init__(self, limit: int = OPEN_FILES_MAX) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = limit if soft == resource.RLIM_INFINITY else max(16, min(limit, soft // 8))
        self._slots: OrderedDict[FileSlot, None] = OrderedDict()
        self._open = 0
        """Descriptors that the slots take."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Descriptors that are open."""
        return self._open

    @property
    def limit(self) -> int:
        """How many files stay open, if all of them may be closed."""
        return self._limit

    def admit(self, slot: FileSlot) -> None:
        """Count a slot that has just opened its file; others may be closed."""
        slot.used = False  # it is at the back; only another use keeps it longer
        with self._lock:
            self._add(slot)
            # Second chance: a slot that was used since the last look goes to the back once.
            looks = _LOOKS_MAX
            while self._open > self._limit and looks:
                looks -= 1
                old = next(iter(self._slots))
                self._remove(old)
                forced = self._open >= self._limit * _FORCED_FACTOR
                if old is slot or (old.used and not forced):
                    old.used = False
                    self._add(old)
                elif not old.let_go(forced):
                    self._add(old)

    def forget(self, slot: FileSlot) -> None:
        """Close a slot's file for good."""
        with self._lock:
            self._remove(slot)
        slot.let_go(forced=True)

    def _add(self, slot: FileSlot) -> None:
        if slot not in self._slots:
            self._open += slot.DESCRIPTORS
        self._slots[slot] = None

    def _remove(self, slot: FileSlot) -> None:
        if slot in self._slots:
            self._open -= slot.DESCRIPTORS
            del self._slots[slot]


class MappedFile(FileSlot):
    """A file mapped for reading, again and longer when it has grown."""

    __slots__ = ("_cache", "_map", "ask_at", "path")

    DESCRIPTORS = 2
    """Python's map has one of its own."""

    def __init__(self, path: str, cache: FileCache) -> None:
        super().__init__()
        self.path = path
        self._cache = cache
        self._map: Map | None = None
        self.ask_at = 0.0
        """When it is to be asked again whether the file is in memory."""

    def peek(self, size: int) -> Map | None:
        """The map, if there is one that covers `size` bytes."""
        found = self._map
        if found is None or len(found) < size:
            return None
        self.used = True
        return found

    def open(self, size: int) -> Map:
        """The map, which covers at least `size` bytes (more than 0)."""
        found = self.peek(size)
        if found is not None:
            return found
        file = OpenFile(self.path, os.O_RDONLY)
        length = os.fstat(file.fd).st_size
        if length < size:
            raise ShortFile(f"{self.path} has {length} bytes, {size} are expected")
        found = Map(file.fd, length, access=mmap.ACCESS_READ)
        found.locate()
        found.file = file
        self._map = found
        self._cache.admit(self)
        return found

    @property
    def failed(self) -> bool:
        """Whether a page could not be read, and zeros lie there now."""
        return self._map is not None and self._map.failed

    def let_go(self, forced: bool) -> bool:
        """Drop the map; views of it keep the memory."""
        self._map = None
        return True


def sync_file(path: str) -> None:
    """Make a file's bytes durable; a missing file is fine."""
    with contextlib.suppress(FileNotFoundError):
        OpenFile(path, os.O_RDWR).sync()


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable."""
    OpenFile(str(path), os.O_RDONLY | os.O_DIRECTORY).sync_all()


def remove(path: str | Path) -> None:
    """Unlink a file; a missing one is fine."""
    Path(path).unlink(missing_ok=True)
