"""Opens and deletes the partitions of streams, many at a time, in threads.

Rules: the recovery of a large log does not hold the loop. A damaged partition is opened as stopped:
it refuses work, the others run (I9). So is one that lies on other nodes, with NotLeader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from onelog.base.errors import (
    CorruptBatch,
    InvalidRequest,
    NotLeader,
    OnelogError,
    PartitionCorrupt,
    PartitionStopped,
    StorageFull,
)
from onelog.base.ids import PartitionId
from onelog.log.begun import Begun
from onelog.log.config import StreamConfig
from onelog.log.hosting import EverythingHere, Hosting
from onelog.log.partition import Partition
from onelog.log.shared import Shared
from onelog.log.stopped import StoppedLog
from onelog.log.stream import StreamRecord
from onelog.observe.logging import get_logger
from onelog.storage.engine import Engine, PartitionKey, PartitionLog

_JOBS_MAX: Final = 256
"""Jobs in threads at once for the partitions of one stream. Further partitions share these jobs."""

_log = get_logger("log")
_R = TypeVar("_R")
_T = TypeVar("_T")


class Deleting(msgspec.Struct, frozen=True):
    """A stream whose data is to be deleted."""

    id: str
    engine: str
    partitions: int
    done: tuple[int, ...] = ()
    """The nodes of a cluster that have nothing of it any more."""

    def keys(self) -> list[PartitionKey]:
        """Its partitions."""
        return [PartitionKey(self.id, PartitionId(number)) for number in range(self.partitions)]


class Opener:
    """Opens partitions with the engines of this node."""

    def __init__(self, engines: Mapping[str, Engine], shared: Shared, begun: Begun) -> None:
        self._engines = engines
        self._shared = shared
        self._begun = begun
        self.hosting: Hosting = EverythingHere()
        """Which partitions lie here."""
        self._there: frozenset[PartitionKey] | None = None
        """The partitions that the engines hold; None: not listed yet."""

    async def look(self) -> frozenset[PartitionKey]:
        """List the partitions that exist, before any is opened: opening one may create it."""

        def look() -> frozenset[PartitionKey]:
            engines = self._engines.values()
            return frozenset(key for engine in engines for key in engine.partitions())

        self._there = await self._shared.syncer.chores.run(look)
        return self._there

    def engine(self, config: StreamConfig) -> Engine:
        """The engine that a stream is stored in."""
        engine = self._engines.get(config.engine)
        if engine is None:
            raise InvalidRequest(
                f"stream {config.name}: engine {config.engine!r} is not one of"
                f" {', '.join(sorted(self._engines))}"
            )
        return engine

    async def open(self, record: StreamRecord, first: int) -> list[Partition]:
        """The partitions from `first` on."""
        numbers = [PartitionId(number) for number in range(first, record.config.partitions)]
        try:
            opened = await self.in_chunks(numbers, lambda number: self._open(record, number))
        except StorageFull as error:
            self._shared.room.refused(error)
            raise
        for partition in opened:
            self._tell_torn(partition)
        return opened

    def _tell_torn(self, partition: Partition) -> None:
        torn = partition.log.torn
        if torn is None:
            return
        self._shared.torn_tails += 1
        self._shared.torn_bytes += torn.size_bytes
        _log.warning(
            "a torn tail was cut: an append that a crash interrupted, or that the disk lost",
            stream=partition.stream,
            partition=int(partition.id),
            bytes=torn.size_bytes,
            segments=torn.segments,
            from_offset=int(torn.end_offset),
        )

    async def in_chunks(self, rows: Sequence[_R], work: Callable[[_R], _T]) -> list[_T]:
        """The results of `work` for every row, in threads. Many rows share one job."""
        size = 1 + len(rows) // _JOBS_MAX
        chunks = [rows[at : at + size] for at in range(0, len(rows), size)]

        def job(chunk: Sequence[_R]) -> list[_T]:
            return [work(row) for row in chunk]

        done = await asyncio.gather(
            *(self._shared.syncer.chores.run(partial(job, chunk)) for chunk in chunks)
        )
        return [result for results in done for result in results]

    def _open(self, record: StreamRecord, number: PartitionId) -> Partition:
        """In a thread: open one partition, as stopped when it is damaged."""
        config = record.config
        engine, key = self.engine(config), PartitionKey(record.id, number)
        must_hold = key in self._begun

        wrap = partial(self._wrap, config, number)
        if not self.hosting.has(record, number):
            place = f"{config.name}/{number}"
            return _stopped(wrap, NotLeader(f"{place} lies on other nodes of the cluster"))
        log: PartitionLog | None = None
        try:
            if must_hold and self._there is not None and key not in self._there:
                raise _vanished(config.name, number)  # nothing is created in its place
            log = engine.open(key, config.log_settings())
            if must_hold and log.end_offset == 0:
                raise _vanished(config.name, number)
            return wrap(log)
        except (PartitionStopped, CorruptBatch) as error:
            # Damage shows in the recovery, or when the batches are replayed.
            if log is not None:
                log.close()
            damage = _damage(f"{config.name}/{number}", error)
        return _stopped(wrap, damage)

    def _wrap(self, config: StreamConfig, number: PartitionId, log: PartitionLog) -> Partition:
        return Partition(
            config.name,
            number,
            log,
            durability=config.durability,
            message_bytes_max=config.batch_bytes_max,
            timestamps=config.timestamps,
            shared=self._shared,
            replicated=self.hosting.is_shared,
        )

    async def remake(self, record: StreamRecord, old: Partition) -> Partition:
        """An empty partition in place of a stopped one, whose data is dropped.

        What a damaged one has is set aside, for somebody who looks for the cause.
        """
        key, number = PartitionKey(record.id, old.id), old.id
        is_damaged = isinstance(old.stopped, PartitionStopped)

        def work() -> Partition:
            old.close_deleted()
            engine = self.engine(record.config)
            with self._shared.hold.leaving():
                if is_damaged:
                    engine.set_aside(key)
                else:
                    engine.delete(key)
            return self._open(record, number)

        await self._begun.forget_one(key)
        return await self._shared.syncer.chores.run(work)

    async def delete(self, deleting: Deleting) -> None:
        """Delete the data of a stream."""
        engine = self._engines.get(deleting.engine)
        if engine is None:
            raise InvalidRequest(
                f"engine {deleting.engine!r} is not configured, but holds the deleted stream"
                f" {deleting.id}; configure it again so that its data can be removed"
            )

        def delete(key: PartitionKey) -> None:
            with self._shared.hold.leaving():
                engine.delete(key)

        await self.in_chunks(deleting.keys(), delete)


def _stopped(wrap: Callable[[PartitionLog], Partition], error: OnelogError) -> Partition:
    partition = wrap(StoppedLog(error))
    partition.stop(error)
    return partition


def _vanished(stream: str, number: PartitionId) -> PartitionCorrupt:
    return PartitionCorrupt(
        f"{stream}/{number} held records, and its files are gone. Restore the partition from a"
        f" backup or a replica, then restart; or give up what the stream held with `onelog stream"
        f" start-over '{stream}'`, then restart"
    )


def _damage(name: str, error: OnelogError) -> PartitionStopped:
    if isinstance(error, PartitionStopped):
        return error
    return PartitionCorrupt(
        f"{name} is damaged: {error}. Restore the partition from a backup or a replica,"
        " then restart"
    )
