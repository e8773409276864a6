"""Partitions over real engines for tests of the log floor, and what they hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onelog.base.clock import Clock, ManualClock
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, BatchInfo, scan_batches
from onelog.log.catalog import Catalog
from onelog.log.handle import PartitionHandle
from onelog.log.partition import Appended, Durability, Partition
from onelog.log.shared import Shared
from onelog.log.syncer import Syncer
from onelog.metadata.local import LocalStore
from onelog.metadata.store import MetadataStore
from onelog.observe.troubles import Troubles
from onelog.record.batch import Row, append_time_of, build_batch, decode
from onelog.storage.engine import Engine, LogSettings, PartitionKey, PartitionLog
from onelog.storage.memory import MemoryEngine
from onelog.storage.segment import SegmentEngine

KEY = PartitionKey("s-1", PartitionId(0))


class Held(NamedTuple):
    """One record of a log."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def memory_log(clock: Clock, **settings: Any) -> PartitionLog:
    """A fresh log of the memory engine, without a topic index."""
    return MemoryEngine(clock).open(KEY, LogSettings(topic_index=False, **settings))


def make_partition(
    log: PartitionLog, syncer: Syncer, clock: Clock, durability: Durability = Durability.OS
) -> Partition:
    """A partition over a log."""
    return Partition(
        "s",
        PartitionId(0),
        log,
        durability=durability,
        message_bytes_max=1 << 20,
        shared=Shared(syncer, clock, Troubles(clock)),
    )


def row(key: bytes | None, value: bytes | None, timestamp_ms: int = 1_700_000_000_000) -> Row:
    """A message without topic and headers."""
    return (None, key, value, (), timestamp_ms)


def put(
    partition: Partition,
    *rows: Row,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> Appended:
    """Append one batch as a client would."""
    attributes = ATTR_TRANSACTIONAL if transactional else 0
    data = bytearray(build_batch(rows, codec=codec, attributes=attributes, producer=producer))
    return append_batches(partition, data)


def append_batches(partition: PartitionHandle, data: bytearray) -> Appended:
    """Append batches that a client built, one step after the other as the publisher does it."""
    for info in scan_batches(data):
        repeated = partition.check_batch(info)
        if repeated is not None:
            return repeated
    placed = partition.append_checked(data)
    first, end = placed[0], Offset(placed[-1].last_offset + 1)
    return Appended(Offset(first.base_offset), end, append_time_ms=append_time_of(first))


def batches(log: PartitionLog) -> Iterator[tuple[memoryview, BatchInfo]]:
    """Every batch of a log."""
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, 1 << 20, log.end_offset)
        infos = scan_batches(data)
        if not infos:
            return
        for info in infos:
            yield data, info
        offset = Offset(infos[-1].last_offset + 1)


def held(log: PartitionLog) -> list[Held]:
    """Every data record of a log, aborted ones too."""
    found = []
    for data, info in batches(log):
        if not info.attributes & ATTR_CONTROL:
            slices = decode(data, info)
            found += [Held(at, key, value, ts) for at, ts, key, value, _ in slices.records()]
    return found


def pairs(log: PartitionLog) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of every data record."""
    return [(one.key, one.value) for one in held(log)]


def markers(log: PartitionLog) -> list[int]:
    """Offsets of the control batches."""
    return [info.base_offset for _, info in batches(log) if info.attributes & ATTR_CONTROL]


class GatedLog:
    """A real log whose syncs wait for the test, are counted, and fail when told to."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.syncs = 0
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def begin_sync(self, *_asked: Any) -> bool:
        """False: every sync goes through the gate."""
        return False

    def sync(self) -> Offset:
        """Sync what was appended before this call, once the test lets it."""
        durable = self._log.sync()
        self.entered.release()
        assert self.gate.acquire(timeout=10), "the test forgot to open the gate"
        self.syncs += 1
        if self.error is not None:
            raise self.error
        return durable


def offsets(found: Sequence[Held]) -> list[int]:
    """The offsets of records."""
    return [one.offset for one in found]


class Node:
    """A catalog with everything below it, on one directory."""

    def __init__(self, directory: Path, threads: int = 2) -> None:
        self.directory = directory
        self.threads = threads
        self.clock = ManualClock()
        self.troubles = Troubles(self.clock)

    async def start(
        self,
        engines: Mapping[str, Engine] | None = None,
        through: Callable[[MetadataStore], MetadataStore] | None = None,
    ) -> Catalog:
        """Open it; `through` is what lies between the catalog and its store."""
        self.syncer = Syncer(self.threads)
        self.store = await LocalStore.open(self.directory / "metadata.db", self.clock)
        self.engines: Mapping[str, Engine] = engines or {
            "segment": SegmentEngine(self.directory / "segment", self.clock),
            "memory": MemoryEngine(self.clock),
        }
        store: MetadataStore = self.store if through is None else through(self.store)
        self.catalog = Catalog(store, self.engines, self.syncer, self.clock, self.troubles)
        await self.catalog.open()
        return self.catalog

    async def stop(self) -> None:
        await self.catalog.close()
        for engine in self.engines.values():
            engine.close()
        await self.store.close()
        await self.syncer.close()

    async def restart(self) -> Catalog:
        await self.stop()
        return await self.start()
