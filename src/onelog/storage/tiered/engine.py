"""The tiered engine: it wraps an engine and gives each of its partitions a tier.

Rules: opening asks the store nothing. A partition that never had a tier has no file of one. Where a
partition is deleted, a note stays there until its objects are deleted, too (`deleted.py`).
"""

from __future__ import annotations

import copy
import os
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from onelog.base.clock import Clock
from onelog.base.errors import StorageError
from onelog.base.ids import Offset, PartitionId
from onelog.objects import names
from onelog.objects.store import ObjectStore
from onelog.objects.sweeping import Keeper
from onelog.storage.cold import Bringing, PlanHold, RunCache
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.files import OpenFile, sync_directory
from onelog.storage.tables import Tables
from onelog.storage.tiered.commits import HOUSE_BYTES, KEPT
from onelog.storage.tiered.copies import FIRST_NAME, NotedCopies, TierCopies, TierFiles
from onelog.storage.tiered.deleted import ChainNotes, DeletedTiers, DeletionNotes, NoteFiles
from onelog.storage.tiered.inner import KeepingEngine, LocalEngine, MovingEngine
from onelog.storage.tiered.moving import PartitionTier
from onelog.storage.tiered.partition import TieredLog
from onelog.storage.tiered.state import TierState


def _house_of(path: Path) -> bytes:
    """The random number of a data directory, made when it is asked for first."""
    try:
        if path.exists():
            found = path.read_bytes()
            if len(found) == HOUSE_BYTES:
                return found
        found = secrets.token_bytes(HOUSE_BYTES)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = OpenFile(str(path), os.O_WRONLY | os.O_CREAT)
        file.write(found, 0)
        file.sync_all()
        sync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error
    return found


class TieredEngine:
    """Local partitions whose sealed segments may move to the store."""

    volatile = False

    def __init__(
        self,
        inner: LocalEngine,
        store: ObjectStore,
        cache: RunCache,
        folder: Path,
        clock: Clock,
        *,
        bringing: Bringing | None = None,
        tables: Tables | None = None,
    ) -> None:
        """`folder` is for the engine's own files; `bringing` rebuilds rows of tables, and
        `tables` writes them."""
        self.store = store
        self.cache = cache
        self._deletions: DeletionNotes = NoteFiles(folder / "deleted")
        self.deleted = DeletedTiers(store, self._deletions)
        """Objects of partitions that were deleted, of all engines beside this one, too."""
        self.house = _house_of(folder / "house")
        """Says which data directory this is, in every manifest that it writes."""
        self.plans = PlanHold(folder / "plans", clock.now_ms())
        """Until when objects stay for those who planned to read them."""
        self._inner: MovingEngine = inner
        self._copies: Callable[[PartitionKey], TierCopies] = lambda key: TierFiles(
            inner.folder(key)
        )
        self._is_beside = False
        self._clock = clock
        self._bringing = bringing
        self._tables = tables
        self._lock = threading.Lock()
        self._tiers: dict[PartitionKey, PartitionTier] = {}

    def beside(self, inner: KeepingEngine) -> TieredEngine:
        """An engine for the partitions of another engine, which keeps what is known of them, with
        the same store, cache, tables and buried objects. This one is closed after it."""
        made = copy.copy(self)
        made._inner, made._copies, made._is_beside = inner, partial(NotedCopies, inner), True
        made._deletions = ChainNotes(inner)
        self.deleted.also(made._deletions)
        return made

    def open(self, key: PartitionKey, settings: LogSettings) -> TieredLog:
        """Open or create a partition, recovering it when the last shutdown was not clean."""
        inner = self._inner.open(key, settings)
        try:
            state = TierState(key, inner, self._copies(key), self.store, self.cache, self._bringing)
        except BaseException:
            inner.close()
            raise
        tier = PartitionTier(
            self.store,
            state,
            inner,
            settings,
            self._clock,
            self.house,
            self._tables,
            plans=self.plans,
        )
        with self._lock:
            self._tiers[key] = tier
        if self._tables is not None and any(row.kind == "parquet" for row in state.rows[-1:]):
            self._tables.expect_reads()
        return TieredLog(inner, state, tier)

    def delete(self, key: PartitionKey) -> None:
        """Delete a closed partition; its objects go later. No error if it does not exist."""
        self._leave(key, self._inner.delete)

    def set_aside(self, key: PartitionKey) -> None:
        """As `delete`, but the files that lie here are kept as damaged ones."""
        self._leave(key, self._inner.set_aside)

    def _leave(self, key: PartitionKey, leave: Callable[[PartitionKey], None]) -> None:
        self.deleted.note(key, self._copies(key), self._deletions, self._clock.now_ms())
        leave(key)
        with self._lock:
            self._tiers.pop(key, None)

    def partitions(self) -> list[PartitionKey]:
        """Every partition that exists on disk."""
        return self._inner.partitions()

    def check_room(self) -> None:
        """Raise StorageFull when the disk has no room for an append."""
        self._inner.check_room()

    def freeze(self, cuts: Mapping[PartitionKey, Offset], into: Path) -> dict[str, int]:
        """Link the files of open partitions. What is only in the store stays there: a copy reads it
        from the same store."""
        found = self._inner.freeze(cuts, into)
        for key, cut in cuts.items():
            with self._lock:
                tier = self._tiers.get(key)
            data = None if tier is None else tier.frozen(cut)
            if data is not None:
                place = f"{key.stream_id}/{key.partition}/{FIRST_NAME}"
                found[place] = len(data)
                self._write(into / place, data)
        return found

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error}") from error

    def close(self) -> None:
        """Close every open partition cleanly, and empty the cache."""
        self._inner.close()
        if self._is_beside:
            return
        self.cache.close()
        if self._tables is not None:
            self._tables.close()

    # The sweep.

    def keepers(self) -> Mapping[str, Keeper]:
        """Who knows which objects of a folder are needed."""
        return {
            names.PIECES: self._keep,
            names.FRAMES: self._keep,
            names.MANIFESTS: self._keep_manifests,
        }

    def _keep_manifests(self, wanted: Sequence[str]) -> Collection[str]:
        """All but those that commits should have deleted: older than the last few."""
        kept: set[str] = set()
        for name in wanted:
            found = names.parse_manifest(name)
            tier = None
            if found is not None:
                with self._lock:
                    tier = self._tiers.get(
                        PartitionKey(found.stream_id, PartitionId(found.partition))
                    )
            if found is None or tier is None or found.seq > tier.status().seq - KEPT:
                kept.add(name)
        return kept

    def _keep(self, wanted: Sequence[str]) -> Collection[str]:
        """Those of some objects that are needed. What belongs to no partition that is open here is
        somebody else's, or waits for a restore: it is needed."""
        kept: set[str] = set()
        asked: dict[PartitionKey, list[str]] = defaultdict(list)
        for name in wanted:
            found = names.parse_ranged(name)
            if found is None:
                kept.add(name)
            else:
                asked[PartitionKey(found.stream_id, PartitionId(found.partition))].append(name)
        for key, objects in asked.items():
            with self._lock:
                tier = self._tiers.get(key)
            kept.update(objects if tier is None else tier.keep(objects))
        return kept
