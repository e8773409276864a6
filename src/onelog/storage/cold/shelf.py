"""The directory of a run cache: files that are written once, and memory where the disk has no room.

Rules: the directory is this process's own and empty at its start. A file that cannot be written
(disk full, or failing) makes its run one in memory. After that the cache takes three quarters of
the disk that it took, and an eighth of its bound more with each minute that passes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

from onelog.base import faults
from onelog.base.errors import ColdDamaged, ConfigError
from onelog.storage.engine import Buffer
from onelog.storage.files import OpenFile, remove

MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of runs in memory, while the disk has no room."""
_SUFFIX: Final = ".run"
_GROW_S: Final = 60.0
_GROW_PART: Final = 8


class Shelf:
    """Where the files of runs lie, and how many bytes they may take. The cache locks."""

    __slots__ = (
        "_bound", "_directory", "_failed_at", "_numbers", "disk_bytes", "failures", "last_failure",
        "memory_bytes", "size_bytes",
    )  # fmt: skip

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """Empties the directory, or makes it. Raises ConfigError."""
        self._directory = directory
        self.size_bytes = size_bytes
        """The bound that is configured."""
        self._bound = size_bytes
        self._failed_at = 0.0
        self._numbers = count(1)
        self.disk_bytes = 0
        self.memory_bytes = 0
        self.failures = 0
        self.last_failure = ""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in directory.glob("*" + _SUFFIX):
                remove(path)
        except OSError as error:
            raise ConfigError(
                f"store.cache_dir = {str(directory)!r} cannot be used: {error.strerror}; choose a"
                " directory that the broker may write to"
            ) from error

    def path(self) -> Path:
        """The path of a new file."""
        return self._directory / f"{next(self._numbers):012d}{_SUFFIX}"

    @property
    def disk_bound(self) -> int:
        """Bytes that files may take now."""
        if self._bound < self.size_bytes:
            steps = int((time.monotonic() - self._failed_at) // _GROW_S)
            if steps:
                self._failed_at += steps * _GROW_S
                self._bound += steps * (self.size_bytes // _GROW_PART)
                self._bound = min(self._bound, self.size_bytes)
        return self._bound

    def shrink(self, error: OSError) -> None:
        """A file could not be written."""
        self._bound = min(self._bound, self.disk_bytes * 3 // 4)
        self._failed_at = time.monotonic()
        self.failures += 1
        self.last_failure = f"{self._directory}: {error.strerror or error}"


class RunPlace:
    """Where one run is to be: room for it is reserved."""

    __slots__ = ("_file", "_size", "failure", "in_memory", "path", "size_bytes")

    def __init__(self, size_bytes: int, path: Path | None) -> None:
        self.size_bytes = size_bytes
        """Bytes that are reserved."""
        self.path = path
        self.in_memory = path is None
        self.failure: OSError | None = None
        """Why the file could not be written."""
        self._file: OpenFile | None = None
        self._size = 0

    def write(self, data: Buffer) -> None:
        """Add bytes to the file, if there is one. After a failure nothing more is written."""
        if self.path is None or self.failure is not None:
            return
        try:
            if self._file is None:
                faults.hit("cold.write")
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                self._file = OpenFile(str(self.path), flags)
            self._file.write(data, self._size)
            self._size += len(data)
        except OSError as error:
            self.failure = error

    def restart(self) -> None:
        """Nothing of what was written counts."""
        self._size = 0

    @contextlib.contextmanager
    def lent(self) -> Iterator[tuple[Path, Callable[[int], memoryview]]]:
        """A path that another process may write to, and how its bytes are read afterwards."""
        if self.path is not None:
            self.drop()
            yield self.path, self._mapped
            return
        handle = os.memfd_create("run", os.MFD_CLOEXEC)
        try:
            path = Path(f"/proc/{os.getpid()}/fd/{handle}")
            yield path, lambda size: memoryview(_read_whole(handle, size))
        finally:
            os.close(handle)

    def _mapped(self, size: int) -> memoryview:
        file = OpenFile(str(self.path), os.O_RDONLY)
        found = os.fstat(file.fd).st_size
        if found != size:
            raise ColdDamaged(f"{self.path} has {found} bytes, not {size}")
        return memoryview(mmap.mmap(file.fd, size, access=mmap.ACCESS_READ))

    def drop(self) -> None:
        """Remove the file."""
        self._file = None
        if self.path is not None:
            with contextlib.suppress(OSError):
                remove(self.path)


def _read_whole(handle: int, size: int) -> bytes:
    data = os.pread(handle, size + 1, 0)
    if len(data) != size:
        raise ColdDamaged(f"{len(data)} bytes came, not {size}")
    return data
