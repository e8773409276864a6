"""Writes a log's unsynced tail again, so that the next sync really puts it on the disk.

Why: when an fsync fails, the system marks the pages clean that it could not write. They can still
be read from its cache, and a later fsync succeeds without writing them: bytes that a restart reads
without error may be nowhere on the disk. Bytes that are written anew are dirty again, so the sync
that follows puts them on the disk or fails.

Rules: the same copy of the bytes is checked and written; positions do not change.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from onelog.base import faults
from onelog.base.limits import BATCH_BYTES_MAX
from onelog.kernel import scan_valid
from onelog.storage.files import OpenFile

_WINDOW_BYTES: Final = 4 * 1024 * 1024


def renew(path: str, start: int, end: int) -> None:
    """Write the batches in the bytes [start, end) of a file again and make them durable.

    Raises OSError when they have changed, or the disk does not accept them.
    """
    file = OpenFile(path, os.O_RDWR)
    window_bytes = _WINDOW_BYTES
    while start < end:
        data = _read(file, start, min(window_bytes, end - start))
        batches, stop, why = scan_valid(memoryview(data), 0, True, -1)
        if not batches:
            if window_bytes < BATCH_BYTES_MAX and start + len(data) < end:
                window_bytes = BATCH_BYTES_MAX  # one large batch may not fit a window
                continue
            raise OSError(errno.EIO, f"{path} changed while it was recovered, byte {start}: {why}")
        faults.hit("segment.renew")
        file.write(memoryview(data)[:stop], start)
        start += stop
    faults.hit("segment.fsync")
    file.sync()


def _read(file: OpenFile, start: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.pread(file.fd, size, start)
        if not part:
            raise OSError(errno.EIO, f"the file ends at byte {start}")
        parts.append(part)
        start += len(part)
        size -= len(part)
    return b"".join(parts)
