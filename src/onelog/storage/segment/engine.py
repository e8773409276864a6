"""The segment engine: a root directory with one directory per stream and partition.

Layout: `<root>/<stream id>/<partition>/`. Rules: the `clean-shutdown` marker exists only while no
engine is open on the root and the last one closed every partition. How the files of a partition
leave, `leaving.py` says.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from onelog.base import faults
from onelog.base.clock import Clock, SystemClock
from onelog.base.errors import (
    Closed,
    Conflict,
    InvalidRequest,
    PartitionStopped,
    StorageError,
    StorageFull,
)
from onelog.base.ids import Offset, PartitionId
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.files import (
    OPEN_FILES_MAX,
    FileCache,
    OpenFile,
    is_full,
    remove,
    sync_directory,
)
from onelog.storage.segment.checkpoint import empty_checkpoint, write_first
from onelog.storage.segment.files import sync_path
from onelog.storage.segment.leaving import DELETED, delete, remove_oldest_aside, set_aside
from onelog.storage.segment.pages import PageBudget
from onelog.storage.segment.partition import SegmentLog
from onelog.storage.segment.segment import EngineShared

MARKER: Final = "clean-shutdown"
_PROBE: Final = "room.tmp"
_PROBE_BYTES: Final = 1024 * 1024
_BEGUN: Final = ".begun" + DELETED
"""A partition that is being made: if that is not finished, the next start deletes it."""
_STREAM_ID: Final = re.compile(r"[A-Za-z0-9~_-][A-Za-z0-9~._-]{0,254}")


class SegmentEngine:
    """Partitions as directories of segment files."""

    volatile = False

    def __init__(
        self,
        root: Path | str,
        clock: Clock | None = None,
        *,
        open_files_max: int = OPEN_FILES_MAX,
        page_cache_bytes: int = 0,
    ) -> None:
        self._root = Path(root)
        self._root.mkdir(parents=True, exist_ok=True)
        self._shared = EngineShared(
            clock or SystemClock(), FileCache(open_files_max), PageBudget(page_cache_bytes)
        )
        self._lock = threading.Lock()
        self._making = threading.Lock()
        """Held while folders of partitions are made, and while one of a stream goes (`delete`)."""
        self._open: dict[PartitionKey, SegmentLog] = {}
        self._closed = False
        marker = self._root / MARKER
        self.was_clean = marker.exists()
        """Whether the last engine on this root was closed cleanly."""
        self._all_clean = True
        if self.was_clean:
            remove(marker)
            sync_directory(self._root)
        for path in self._root.glob(f"*/*{DELETED}"):
            if path.is_dir():
                shutil.rmtree(path)

    def _path(self, key: PartitionKey) -> Path:
        if not _STREAM_ID.fullmatch(key.stream_id) or key.partition < 0:
            raise InvalidRequest(
                f"{key} cannot be the name of a directory: use letters, digits, ~ . _ -"
            )
        return self._root / key.stream_id / str(key.partition)

    def open(self, key: PartitionKey, settings: LogSettings) -> SegmentLog:
        """Open or create a partition, recovering it when the last shutdown was not clean.

        Raises PartitionStopped when the disk prevents recovery: this concerns only this partition.
        """
        path = self._path(key)
        with self._lock:
            if self._closed:
                raise Closed(f"the segment engine on {self._root} is closed")
            held = self._open.get(key)
            if held is not None and not held.closed:
                raise Conflict(f"partition {key.stream_id}/{key.partition} is open already")
            if held is not None:
                self._all_clean &= held.clean
        new = not path.is_dir()
        try:
            with self._making:
                path.mkdir(parents=True, exist_ok=True)
            log = SegmentLog(str(path), self._shared, settings, trusted=self.was_clean)
        except OSError as error:
            if is_full(error):
                raise StorageFull(f"no room to open {path}: free some space") from error
            if new:
                raise StorageError(f"cannot create {path}: {error}") from error
            raise PartitionStopped(
                f"{path} could not be recovered ({error}); the partition is stopped: check the"
                " disk, then restart the broker"
            ) from error
        with self._lock:
            self._open[key] = log
        return log

    def folder(self, key: PartitionKey) -> Path:
        """Where the files of a partition are, or would be."""
        return self._path(key)

    def begin(self, key: PartitionKey, offset: Offset, beside: Mapping[str, bytes]) -> None:
        """Make a partition that does not exist, empty, whose first record gets `offset`; `beside`
        are further files in its folder."""
        path = self._path(key)
        if path.is_dir():
            raise Conflict(f"partition {key.stream_id}/{key.partition} exists: delete it first")
        try:
            begun = path.with_name(path.name + _BEGUN)
            if begun.exists():
                shutil.rmtree(begun)
            with self._making:
                begun.mkdir(parents=True)
            write_first(begun, empty_checkpoint(offset))
            for name, data in beside.items():
                (begun / name).write_bytes(data)
            for written in begun.iterdir():
                OpenFile(str(written), os.O_RDWR).sync_all()
            begun.rename(path)
            sync_path(str(path))
        except OSError as error:
            raise StorageError(f"cannot create {path}: {error}") from error

    def delete(self, key: PartitionKey) -> None:
        """Delete a closed partition and everything kept for it. No error if it does not exist."""
        self._leave(key, lambda path: delete(path, self._making))

    def set_aside(self, key: PartitionKey) -> None:
        """Take a closed partition away, and keep its files as `.damaged`. No error if it does not
        exist."""
        self._leave(key, lambda path: set_aside(path, self._shared.clock.now_ms()))

    def _leave(self, key: PartitionKey, leave: Callable[[Path], None]) -> None:
        path = self._path(key)
        with self._lock:
            held = self._open.get(key)
            if held is not None and not held.closed:
                raise Conflict(f"partition {key.stream_id}/{key.partition} is open: close it first")
            self._open.pop(key, None)
        try:
            leave(path)
        except OSError as error:
            raise StorageError(f"cannot take {path} away: {error}") from error

    def partitions(self) -> list[PartitionKey]:
        """Every partition that exists on disk."""
        found = []
        for stream in sorted(self._root.iterdir()):
            if stream.is_dir():
                found += [
                    PartitionKey(stream.name, PartitionId(int(path.name)))
                    for path in stream.iterdir()
                    if path.name.isdecimal() and path.is_dir()
                ]
        return sorted(found)

    def check_room(self) -> None:
        """Raise StorageFull when the disk has no room for what one append may reserve.

        Damaged files that were set aside make room before that.
        """
        while True:
            try:
                self._probe()
            except StorageFull:
                if not self._give_aside():
                    raise
            else:
                return

    def _give_aside(self) -> bool:
        try:
            return remove_oldest_aside(self._root)
        except OSError:
            return False  # what cannot be removed makes no room

    def _probe(self) -> None:
        path = str(self._root / _PROBE)
        try:
            faults.hit("segment.allocate")
            file = OpenFile(path, os.O_WRONLY | os.O_CREAT)
            file.write(bytes(_PROBE_BYTES), 0)
        except OSError as error:
            if is_full(error):
                raise StorageFull(f"no room in {self._root}: free some space") from error
            raise StorageError(f"cannot write in {self._root}: {error}") from error
        finally:
            remove(path)

    def freeze(self, cuts: Mapping[PartitionKey, Offset], into: Path) -> dict[str, int]:
        """Link the files of open partitions, so that a copy of each ends at its cut."""
        found: dict[str, int] = {}
        for key, cut in cuts.items():
            with self._lock:
                log = self._open.get(key)
            if log is None:
                raise Closed(f"partition {key.stream_id}/{key.partition} is not open")
            place = f"{key.stream_id}/{key.partition}"
            for name, size_bytes in log.freeze(cut, into / place).items():
                found[f"{place}/{name}"] = size_bytes
        return found

    def close(self) -> None:
        """Close every open partition cleanly, then mark the shutdown as clean."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            held = list(self._open.values())
        failure: StorageError | None = None
        for log in held:
            try:
                log.close()
            except StorageError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        if self._all_clean and all(log.clean for log in held):
            self._mark_clean()

    def _mark_clean(self) -> None:
        try:
            OpenFile(str(self._root / MARKER), os.O_WRONLY | os.O_CREAT).sync_all()
            sync_directory(self._root)
        except OSError as error:
            raise StorageError(
                f"the stop could not be noted in {self._root} ({error}): nothing is lost, the next"
                " start reads the end of every log"
            ) from error
