"""Tiered engines for tests: over a store, and one that moves everything before it is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from onelog.base.clock import Clock, ManualClock
from onelog.base.ids import Offset
from onelog.objects.piece import AbortedSpan
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.engine import LogSettings, PartitionKey, in_place
from onelog.storage.segment import SegmentEngine
from onelog.storage.tier import TierSettings
from onelog.storage.tiered import TieredEngine, TieredLog
from tests.support.pieces import small_cache

TIER = TierSettings()
SMALL = LogSettings(segment_bytes=2_000, index_interval_bytes=256, tier=TIER)
KEY = PartitionKey("s-1", 0)
_NUMBERS = itertools.count()


class Owner:
    """What the floor above says of a partition's records."""

    stream = b'{"name":"s"}'
    leader_epoch = 3

    def __init__(self, aborted: Sequence[AbortedSpan] = ()) -> None:
        self.spans = aborted

    def state(self, end: Offset) -> bytes:
        return b"state as of %d" % end

    def aborted(self, start: Offset, end: Offset) -> list[AbortedSpan]:
        return [span for span in self.spans if span.first < end and span.last >= start]


def memory_store() -> ObjectStore:
    """A store of its own."""
    return open_store(StoreSettings(url=f"memory://tier-{next(_NUMBERS)}"))


def tiered(
    path: Path,
    store: ObjectStore,
    clock: Clock | None = None,
    kind: type[TieredEngine] = TieredEngine,
) -> TieredEngine:
    """A tiered engine below a folder."""
    clock = clock or ManualClock()
    inner, beside = SegmentEngine(path, clock), path.with_name(path.name + "-tier")
    return kind(inner, store, small_cache(beside / "cache"), beside / "tiers", clock)


def upload_all(log: TieredLog, stable: int | None = None, owner: Owner | None = None) -> int:
    """Copy what may be copied; the number of pieces."""
    upto = log.end_offset if stable is None else Offset(stable)
    count = 0
    while log.tier.upload(upto, owner or Owner()) is not None:
        count += 1
    return count


def move_all(log: TieredLog) -> None:
    """Nothing stays on this machine."""
    log.roll()
    log.sync()
    upload_all(log)
    log.tier.trim_local(log.end_offset)


class MovedLog:
    """A tiered log that has everything in the store whenever somebody reads it."""

    def __init__(self, log: TieredLog) -> None:
        self.log = log
        self.moves = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def _moved(self, read: Callable[[], Any]) -> Any:
        if self.moves and self.log.local_start_offset < self.log.end_offset:
            move_all(self.log)
        return in_place(self.log, read)

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        return self._moved(partial(self.log.read, offset, max_bytes, upto))

    def offset_for_time(self, timestamp_ms: int) -> Offset | None:
        return self._moved(partial(self.log.offset_for_time, timestamp_ms))

    def offsets_of_topic(self, *args: Any) -> list[Offset] | None:
        return self._moved(partial(self.log.offsets_of_topic, *args))

    def rewrite(self, start: Offset, end: Offset) -> Any:
        """Only local segments are rewritten: they come back for it, and stay."""
        self.moves = False
        while self.log.tier.bring_back():
            pass
        self.log.tier.delete_cold()
        return self.log.rewrite(start, end)


class MovedEngine(TieredEngine):
    """A tiered engine whose logs are all in the store."""

    def open(self, key: PartitionKey, settings: LogSettings) -> Any:
        return MovedLog(super().open(key, msgspec.structs.replace(settings, tier=TIER)))
