"""An engine whose every read is cold until it is brought, so that each caller shows what it does.

A read succeeds only while a lease of that very read is held. `gate` holds couriers back: a test
that clears it sees that the loop goes on meanwhile. A bring on the thread of a running loop would
hold every connection up: it raises, and `in_loop` lists who asked for it. `pytest --cold` gives
this engine to every broker of every test, and fails a test that finds such a caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from onelog import assembly
from onelog.base.errors import PartitionStopped, StorageError
from onelog.broker import Broker, BrokerSettings
from onelog.storage.engine import (
    Cold,
    Engine,
    Lease,
    LogSettings,
    PartitionKey,
    PartitionLog,
)
from onelog.storage.segment import SegmentEngine
from tests.support.brokers import FAST, running

WAIT_S = 10


def is_in_loop() -> bool:
    """Whether this thread runs an event loop: what waits here holds everybody up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def callers() -> str:
    """The frames of the broker that lead here, the innermost first."""
    rows = [row for row in traceback.extract_stack() if "/src/onelog/" in row.filename]
    return " < ".join(
        f"{row.filename.partition('/src/onelog/')[2]}:{row.lineno} {row.name}"
        for row in reversed(rows)
    )


class _Held(Lease):
    def __init__(self, held: Counter[object], key: object) -> None:
        self._held: Counter[object] | None = held
        self._key = key
        held[key] += 1

    def release(self) -> None:
        if self._held is not None:
            self._held[self._key] -= 1
            self._held = None


class ColdLog:
    """A partition of it; everything but reads is the engine's own."""

    def __init__(self, engine: ColdEngine, log: PartitionLog) -> None:
        self._engine = engine
        self._log = log
        self._held: Counter[object] = Counter()
        self._failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def _look(self, read: tuple[object, ...], look: Callable[[], Any]) -> Any:
        key = (self._engine.generation, *read)
        if self._engine.is_cold and self._held[key] <= 0:
            if isinstance(self._engine.failure, PartitionStopped) and self._failed:
                raise self._engine.failure
            self._engine.cold_reads += 1
            raise Cold(key, 1, remote=self._engine.is_remote)
        return look()

    def read(self, offset: int, max_bytes: int, upto: int) -> memoryview:
        if not self._log.start_offset <= offset < min(upto, self._log.end_offset):
            return self._log.read(offset, max_bytes, upto)  # nothing is there, or out of range
        return self._look(("read", offset), lambda: self._log.read(offset, max_bytes, upto))

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return self._look(("time", timestamp_ms), lambda: self._log.offset_for_time(timestamp_ms))

    def offsets_of_topic(self, topic: int, start: int, upto: int, limit: int) -> list[int] | None:
        look = lambda: self._log.offsets_of_topic(topic, start, upto, limit)  # noqa: E731
        return self._look(("topic", topic, start), look)

    def bring(self, cold: Cold) -> Lease:
        engine = self._engine
        if is_in_loop():
            engine.in_loop.append(callers())
            raise AssertionError("cold bytes are read on the loop's thread")
        assert engine.gate.wait(WAIT_S), "the test forgot the gate"
        if engine.failure is not None:
            self._failed = True
            raise engine.failure
        engine.brought += 1
        return _Held(self._held, cold.key)


class ColdEngine:
    """Wraps another engine."""

    volatile = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.gate = threading.Event()
        self.gate.set()
        self.is_cold = True
        self.is_remote = False
        """Whether its bytes lie in an object store."""
        self.failure: StorageError | None = None
        self.cold_reads = 0
        self.brought = 0
        self.generation = 0
        """Only what was brought in this one counts as brought."""
        self.in_loop: list[str] = []
        """Who brought on the thread of a loop: files, lines and functions."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forget(self) -> None:
        """Everything is cold again, whatever is leased."""
        self.generation += 1

    def open(self, key: PartitionKey, settings: LogSettings) -> ColdLog:
        return ColdLog(self, self._engine.open(key, settings))


def make_cold(monkeypatch: pytest.MonkeyPatch) -> list[ColdEngine]:
    """Brokers that are opened from now on have a cold engine; it is put into the list."""
    engines: list[ColdEngine] = []

    def make(*args: Any, **more: Any) -> ColdEngine:
        engines.append(ColdEngine(SegmentEngine(*args, **more)))
        return engines[-1]

    monkeypatch.setattr(assembly, "SegmentEngine", make)
    return engines


@contextlib.asynccontextmanager
async def cold_broker(
    path: Path, monkeypatch: pytest.MonkeyPatch, settings: BrokerSettings = FAST
) -> AsyncIterator[tuple[Broker, ColdEngine]]:
    """A broker on a cold engine; nobody may read cold bytes on the loop."""
    engines = make_cold(monkeypatch)
    async with running(path, settings) as broker:
        (engine,) = engines
        try:
            yield broker, engine
        finally:
            engine.gate.set()
    assert engine.in_loop == []
