"""The lock of a data directory: one process at a time. The error for a second one names the
first."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from onelog.base.errors import ConfigError, DataDirLocked, StorageError


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Hold the data directory for this process. A second process is refused with the first one's
    pid."""
    file = data_dir / "lock"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"data_dir = {str(data_dir)!r} cannot be used: {error.strerror}; choose another one "
            "with --data DIR"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise DataDirLocked(
                f"data directory {str(data_dir)!r} is in use by OneLog process {holder}; "
                "stop it, or choose another directory with --data DIR"
            ) from None
        except OSError as error:
            raise StorageError(f"{file} cannot be locked: {error.strerror}") from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # releases the lock; the file stays, because deleting it would race
