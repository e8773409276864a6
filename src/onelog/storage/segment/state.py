"""A partition's derived states (producers, epochs, ...) as files, each as of an offset.

Rules: a state file is whole or ignored (CRC). The newest two of a name are kept, so that a damaged
one has a fallback. States beyond the log's end are deleted when the log is cut: other records will
get those offsets.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Final

from onelog.base import faults
from onelog.base.errors import InvalidRequest
from onelog.kernel import crc32c
from onelog.storage.files import OpenFile, remove, sync_directory

STATE: Final = ".state"
_MAGIC: Final = b"OLS1"
_FRAME: Final = struct.Struct("<4sIQQ")  # magic, CRC-32C of the rest, offset, blob bytes
_NAME: Final = re.compile(r"[a-z0-9_-]{1,64}")
_FILE: Final = re.compile(r"(\d{20})\.([a-z0-9_-]{1,64})\.state")
_KEPT: Final = 2


def _files(directory: str, name: str | None = None) -> list[tuple[int, str]]:
    """Offset and path of the states in a directory, oldest first."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if match and name in (None, match[2]):
                found.append((int(match[1]), entry.path))
    return sorted(found)


def save_state(directory: str, name: str, offset: int, blob: bytes) -> None:
    """Keep a state durably; older ones of the name go."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"state name {name!r}: use 1 to 64 of a-z, 0-9, _ and -")
    rest = struct.pack("<QQ", offset, len(blob)) + blob
    path = f"{directory}/{offset:020}.{name}{STATE}"
    faults.hit("segment.state")
    try:
        file = OpenFile(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        file.write(_MAGIC + struct.pack("<I", crc32c(rest)) + rest, 0)
        file.sync_all()
    except OSError:
        remove(path + ".tmp")
        raise
    Path(path + ".tmp").replace(path)
    sync_directory(directory)
    for _, old in _files(directory, name)[:-_KEPT]:
        remove(old)


def load_state(directory: str, name: str, end: int) -> tuple[int, bytes] | None:
    """The newest intact state of `name` at or before `end`."""
    for offset, path in reversed(_files(directory, name)):
        if offset <= end:
            blob = _decode(Path(path).read_bytes(), offset)
            if blob is not None:
                return offset, blob
    return None


def states_upto(directory: str, end: int) -> list[str]:
    """The paths of the states at or before `end`."""
    return [path for offset, path in _files(directory) if offset <= end]


def drop_states(directory: str, end: int) -> bool:
    """Remove the states beyond `end`. Returns whether there were any."""
    beyond = [path for offset, path in _files(directory) if offset > end]
    for path in beyond:
        remove(path)
    return bool(beyond)


def _decode(data: bytes, offset: int) -> bytes | None:
    if len(data) < _FRAME.size:
        return None
    magic, crc, stored, size = _FRAME.unpack_from(data)
    intact = magic == _MAGIC and stored == offset and len(data) == _FRAME.size + size
    return data[_FRAME.size :] if intact and crc32c(data[8:]) == crc else None
