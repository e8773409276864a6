"""The digest of the sources of a compiled kernel module, which the module carries in itself.

Rules: `setup.py` loads this file by its path before anything is installed, so it imports nothing of
ours. The digest covers the files that Cython and the C compiler read: the module's own .pyx and
every shared declaration. It is searched in the module's file, which works on every platform and
loads nothing. Without sources beside a module (an installed wheel) there is nothing to compare.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import Final

MARK: Final = b"onelog-kernel-sources:"
"""Stands before the digest in the file of a compiled module (`_native/origin.h`)."""
SHARED: Final = ("*.pxd", "*.h")


def digest(folder: Path, name: str) -> str:
    """The digest of the sources of a module, as they are now."""
    shared = [path for pattern in SHARED for path in sorted(folder.glob(pattern))]
    found = hashlib.sha256()
    for path in (folder / f"{name}.pyx", *shared):
        data = path.read_bytes()
        found.update(f"{path.name} {len(data)}\n".encode() + data)
    return found.hexdigest()


def carried(path: Path) -> str:
    """The digest that a compiled module carries; empty: it is older than this rule."""
    data = path.read_bytes()
    at = data.find(MARK)
    start = at + len(MARK)
    return data[start : start + 64].decode(errors="replace") if at >= 0 else ""


def stale_modules(folder: Path) -> list[str]:
    """The modules that were compiled from other sources than those that lie beside them."""
    compiled = {path: path.stem for path in sorted(folder.glob("*.pyx"))}
    ending = sysconfig.get_config_var("EXT_SUFFIX")
    return [
        name
        for name in compiled.values()
        if (file := folder / f"{name}{ending}").exists() and carried(file) != digest(folder, name)
    ]
