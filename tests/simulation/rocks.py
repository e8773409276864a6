"""The same worlds on the kv engine, whose disk is RocksDB's own and cannot be listened to.

Rules: a power cut takes from the write-ahead log some or all of what was written since the last
sync of it, and perhaps the newest state of the mark beside it. What RocksDB syncs by itself (its
tables and its manifest) is believed. A process that is killed leaves its files as they are at that
moment.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from onelog.base import faults
from onelog.base.errors import OnelogError
from onelog.storage.kv import KvEngine
from onelog.storage.kv.database import KvDatabase
from tests.simulation.compacting import Compacting
from tests.simulation.life import Life
from tests.simulation.world import World


class OnRocks(World):
    """A world whose streams are in RocksDB; the broker's own are in segments."""

    engine = "kv"

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.root = folder.with_name("rocks")
        self.kv: KvEngine | None = None
        self.synced: dict[str, int] = {}
        """Write-ahead log → bytes of it that a sync made durable."""
        self.mark = b""
        """The mark as it was when the database was opened."""

    def engines(self) -> Any:
        """Both engines; a sync of the kv engine tells how far its files are durable."""
        self.kv = KvEngine(self.root, self.clock, reserve_bytes=0)
        self.mark = (self.root / "synced").read_bytes()
        self.note_sizes()
        return {**super().engines(), "kv": self.kv}

    def note_sizes(self) -> None:
        self.synced = {path.name: path.stat().st_size for path in self.logs(self.root)}

    @staticmethod
    def logs(root: Path) -> list[Path]:
        return sorted((root / "db").glob("*.log"))

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Listen to the syncs of RocksDB, too."""
        honest = KvDatabase._sync

        def sync(database: KvDatabase) -> None:
            honest(database)
            self.note_sizes()

        def hit() -> None:
            if self.disk.fails_next:
                self.disk.fails_next -= 1
                raise OSError(errno.EIO, "the simulated disk failed")

        faults.arm("kv.sync", hit)
        try:
            with patch.object(KvDatabase, "_sync", sync), super().attached():
                yield
        finally:
            faults.disarm("kv.sync")

    def leave(self) -> None:
        """Take the files as they are at this moment, then let go of the database."""
        super().leave()
        kv, self.kv = self.kv, None
        assert kv is not None
        left = self.root.with_name("left")
        shutil.copytree(self.root, left)
        if self.is_dark:
            for path in self.logs(left):
                size = path.stat().st_size
                kept = self.chance.randint(min(self.synced.get(path.name, 0), size), size)
                with path.open("r+b") as file:
                    file.truncate(kept)
            if self.chance.random() < 0.5:
                (left / "synced").write_bytes(self.mark)
        with contextlib.suppress(OnelogError):
            kv.close()
        shutil.rmtree(self.root)
        left.rename(self.root)


class LifeOnRocks(OnRocks, Life):
    """Publishers, a reader, a queue and a session."""


class CompactingOnRocks(OnRocks, Compacting):
    """Streams that are altered and compacted."""
