"""How the files of a partition leave: they are deleted, or set aside because they are damaged.

Rules:
- A folder gets another name first, so that a crash never leaves half of a partition.
- Files that are set aside lie beside the partition, as `<partition>.<milliseconds>.damaged`.
  Nothing opens them again: they are for somebody who looks for the cause, and may be removed at any
  time.
- The newest few of a partition are kept. All of them go with the partition. When the disk has
  refused a write, the next look for room takes the oldest until there is some.
- What has another name than ours, or is no folder, was put there by somebody else: it stays.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from onelog.storage.files import sync_directory

DELETED: Final = ".deleted"
DAMAGED: Final = ".damaged"
ASIDE_MAX: Final = 2
"""So many damaged copies of a partition are kept."""


def delete(path: Path, making: threading.Lock) -> None:
    """Delete the folder of a partition, and what was set aside of it.

    `making` is held while folders are made: the folder of a stream goes when it is empty, and
    another partition may be about to lie in it.
    """
    for old in _aside(path):
        _remove(old)
    if path.is_dir():
        _remove(path)
    with making, contextlib.suppress(OSError):  # other partitions still exist
        path.parent.rmdir()


def set_aside(path: Path, now_ms: int) -> None:
    """Give the folder of a partition the name of a damaged one, if there is one."""
    if not path.is_dir():
        return
    old = _aside(path)
    newest_ms = max(map(_stamp, old), default=-1)
    path.rename(path.with_name(f"{path.name}.{max(now_ms, newest_ms + 1)}{DAMAGED}"))
    sync_directory(path.parent)
    for one in _oldest_first(old)[: len(old) + 1 - ASIDE_MAX]:
        _remove(one)


def remove_oldest_aside(root: Path) -> bool:
    """Remove the oldest of all folders that were set aside; False: there is none."""
    found = _oldest_first(filter(_is_ours, root.glob(f"*/*{DAMAGED}")))
    if not found:
        return False
    _remove(found[0])
    return True


def _aside(path: Path) -> list[Path]:
    try:
        return list(filter(_is_ours, path.parent.glob(f"{path.name}.*{DAMAGED}")))
    except FileNotFoundError:  # the folder of the stream just went, with its last partition
        return []


def _oldest_first(found: Iterable[Path]) -> list[Path]:
    return sorted(found, key=_stamp)


def _is_ours(path: Path) -> bool:
    partition, _dot, stamp = path.name.removesuffix(DAMAGED).partition(".")
    return partition.isdecimal() and stamp.isdecimal() and path.is_dir()


def _stamp(path: Path) -> int:
    """When one of ours was set aside."""
    return int(path.name.removesuffix(DAMAGED).partition(".")[2])


def _remove(path: Path) -> None:
    doomed = path.with_name(path.name + DELETED)
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    sync_directory(path.parent)
    shutil.rmtree(doomed)
