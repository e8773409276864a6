"""An engine that names rows of a store: pieces that a test cut of the log, which stays as it is.

Rules: everything but the rows is the engine's own. `reads` counts what the broker itself reads of a
partition, so that a test sees who read it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from onelog import assembly
from onelog.kernel import scan_batches
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row, rows_between
from onelog.objects.store import ObjectStore
from onelog.storage.engine import LogSettings, PartitionKey, PartitionLog, in_place
from onelog.storage.tier import Tier
from onelog.storage.tiered import TieredEngine
from tests.support.pieces import put_piece


class NamedTier:
    """A tier that notes until when objects are held."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.held_until_ms: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def hold_doomed(self, until_ms: int) -> None:
        self.held_until_ms.append(until_ms)


class NamingLog:
    """A partition that names rows."""

    def __init__(self, log: PartitionLog, key: PartitionKey) -> None:
        self._log = log
        self.key = key
        self.rows: list[Row] = []
        assert log.tier is not None, "a broker with a store has tiers"
        self.tier = NamedTier(log.tier)
        self.reads: Counter[int] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, offset: int, max_bytes: int, upto: int) -> memoryview:
        self.reads[offset] += 1
        return self._log.read(offset, max_bytes, upto)

    def cold_rows(self, start: int, upto: int) -> list[Row]:
        return list(rows_between(self.rows, start, upto))

    def hold_cold(self, until_ms: int) -> None:
        self.tier.hold_doomed(until_ms)

    def put(
        self,
        store: ObjectStore,
        start: int,
        end: int,
        *,
        aborted: Iterable[AbortedSpan] = (),
        before: bytes = b"",
        name: str = "",
    ) -> Row:
        """Copy offsets into an object, and name it from now on; both are batch boundaries."""
        batches: list[bytes] = []
        at = start
        while at < end:
            data = in_place(self._log, lambda at=at: bytes(self._log.read(at, 1 << 20, end)))
            if not data:
                break
            infos = scan_batches(data)
            batches += [data[i.position : i.position + i.size_bytes] for i in infos]
            at = infos[-1].last_offset + 1
        name = name or f"t/{self.key.stream_id}/{self.key.partition}/{start:020}-{end:020}.p"
        row = put_piece(store, name, start, end, batches, aborted=aborted, before=before)
        self.rows.append(row)
        self.rows.sort(key=lambda one: one.base)
        return row


class NamingEngine:
    """Wraps the tiered engine."""

    def __init__(self, engine: TieredEngine) -> None:
        self._engine = engine
        self.volatile = engine.volatile
        self.logs: dict[str, dict[int, NamingLog]] = defaultdict(dict)
        """By stream id and partition."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def open(self, key: PartitionKey, settings: LogSettings) -> NamingLog:
        log = NamingLog(self._engine.open(key, settings), key)
        self.logs[key.stream_id][int(key.partition)] = log
        return log

    def newest(self, partition: int = 0) -> NamingLog:
        """A partition of the stream that was made last."""
        return self.logs[list(self.logs)[-1]][partition]


def make_naming(monkeypatch: pytest.MonkeyPatch) -> list[NamingEngine]:
    """Brokers that are opened from now on have such an engine; it is put into the list."""
    engines: list[NamingEngine] = []

    tiered = assembly._tiered

    def make(*args: Any) -> NamingEngine:
        engines.append(NamingEngine(tiered(*args)))
        return engines[-1]

    monkeypatch.setattr(assembly, "_tiered", make)
    return engines
