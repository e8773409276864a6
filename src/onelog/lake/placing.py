"""Puts a finished file where its table wants it.

Rules: the file has its name only when it is whole and durable. A folder gets the file under another
name first; an object store shows nothing before the last byte is there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from pyarrow import fs

from onelog.lake.storage import Storage, make_folder

_CHUNK_BYTES: Final = 8 << 20


def put_file(storage: Storage, path: Path, target: str) -> None:
    """Copy the file `path` to the address `target`."""
    files, inner = storage.open(target)
    make_folder(files, inner.rsplit("/", 1)[0])
    if isinstance(files, fs.LocalFileSystem):
        _put_local(path, Path(inner))
        return
    with path.open("rb") as source, files.open_output_stream(inner) as out:
        while chunk := source.read(_CHUNK_BYTES):
            out.write(chunk)


def _put_local(path: Path, target: Path) -> None:
    beside = target.with_name(target.name + ".tmp")
    with path.open("rb") as source, beside.open("wb") as out:
        shutil.copyfileobj(source, out, _CHUNK_BYTES)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
