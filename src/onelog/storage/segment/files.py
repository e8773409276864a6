"""Files of segments that are open for writing, and the names of a partition's directory.

Rules: those of `storage/files.py`. A file with unsynced bytes stays open.
"""

from __future__ import annotations

import os
from pathlib import Path

from onelog.storage.engine import Buffer
from onelog.storage.files import FileCache, FileSlot, OpenFile, sync_directory


class WriteHandle(FileSlot):
    """A file open for writing. It stays open while written bytes wait for their sync.

    Why: a failed write-back is reported to the descriptors that were open at the time.
    """

    __slots__ = ("_cache", "dirty", "file", "path")

    def __init__(self, path: str, cache: FileCache) -> None:
        super().__init__()
        self.path = path
        self._cache = cache
        self.file: OpenFile | None = None
        self.dirty = False

    def open(self, create: bool = False) -> OpenFile:
        """The open file; hold on to the result while using its descriptor."""
        file = self.file
        if file is None:
            flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
            file = self.file = OpenFile(self.path, flags)
            self._cache.admit(self)
        else:
            self.used = True
        return file

    def let_go(self, forced: bool) -> bool:
        """Close the file when no user is left."""
        if self.dirty and not forced:
            return False
        self.file = None
        return True


def write_at(path: str, data: Buffer, position: int) -> None:
    """Write into a small file that is not kept open."""
    OpenFile(path, os.O_WRONLY | os.O_CREAT).write(data, position)


def sync_path(directory: str) -> None:
    """Make the names in a partition's directory durable, and the directory itself in its stream's
    and in the root.

    Why: a directory that exists need not be durable. The process that made it may have died before
    its sync.
    """
    stream = Path(directory).parent
    for path in (directory, stream, stream.parent):
        sync_directory(path)
