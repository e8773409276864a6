"""Maintenance: what partitions need now and then: roll, retention, thinning, compaction, flush.

Rules:
- One owned task with its timers: retention, thinning and compaction each pass over everything; the
  flush makes what streams of durability `os` and `memory` hold durable too, so that recovery has
  less to scan.
- File work is a chore of the syncer's, the loop only decides; partitions are taken in small
  chunks, so that ten thousand of them do not hold the loop. One rewriting runs at a time.
- One partition's error is told to `Troubles` and counted, and the others go on; damage in its log
  stops it (I9). A hook that raises stops nothing: what it was to see to stays, who comes after it
  is told.
- While nobody knows what durable cursors need, nothing leaves (`Pins` raises Unavailable).
- `stop` ends a running rewriting at its next batch and waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import (
    Closed,
    Conflict,
    CorruptBatch,
    InvalidRequest,
    OffsetOutOfRange,
    PartitionStopped,
    StorageFull,
    StreamNotFound,
    Unavailable,
)
from onelog.base.ids import Offset
from onelog.log.catalog import Catalog
from onelog.log.compaction import compact, compaction_due, scope_of
from onelog.log.config import Cleanup, StreamConfig
from onelog.log.handle import PartitionHandle
from onelog.log.judge_process import HelperLost, judge_for
from onelog.log.partition import Durability, Partition
from onelog.log.retention import Decision, apply_retention, new_start, roll_due
from onelog.log.rewriting import Pacer
from onelog.log.stream import Stream
from onelog.log.syncer import Syncer
from onelog.log.thinning import Needs, Thinned, thin
from onelog.observe.logging import get_logger
from onelog.storage.engine import SegmentInfo

PRODUCER_SILENCE_MS: Final = 7 * 24 * 3600 * 1000
"""A producer that wrote nothing for so long is forgotten."""
_CHUNK: Final = 32
"""Partitions per visit to a thread."""
_SYNCS_QUEUED: Final = 4
"""Syncs that the flush queues at once: publishers that wait for theirs come in between."""

Pins = Callable[[str, int], Offset | None]
"""(stream, partition) → the lowest offset that a durable cursor needs; None: there is none.

Raises Unavailable when that is not known."""
NeedsOf = Callable[[str, int], Needs | None]
"""(stream, partition) → which records durable cursors need; None: nobody needs any."""
Leaving = Callable[[PartitionHandle, Offset], Awaitable[None]]
"""Sees to records of a partition below an offset before they may leave."""
_T = TypeVar("_T")
_log = get_logger("maintenance")
FAILED: Final = "maintenance"
"""Incidents: maintenance of a partition failed."""
HELPER: Final = "helper-process"
"""Incidents: the process that judges a compaction was lost; a thread made the pass."""
HOOK: Final = "maintenance-hook"
"""Incidents: who is asked or told of leaving records raised."""


def _unknown(_stream: str, _partition: int) -> Needs | None:
    return None


class Counters(msgspec.Struct):
    """What was done since the start."""

    runs: int = 0
    segments_rolled: int = 0
    segments_deleted: int = 0
    bytes_deleted: int = 0
    compactions: int = 0
    records_compacted: int = 0
    bytes_compacted: int = 0
    """Bytes that compaction gave back."""
    thinnings: int = 0
    bytes_thinned: int = 0
    """Bytes that thinning gave back."""
    producers_expired: int = 0
    alarms: int = 0
    """How often durable cursors lost records because they held back too much."""
    errors: int = 0


class _Visit(NamedTuple):
    """One partition in a thread, with what was true of it on the loop."""

    partition: Partition
    config: StreamConfig
    now_ms: int
    pin: Offset | None
    pins_known: bool
    high_watermark: Offset
    last_stable_offset: Offset


class _Retained(NamedTuple):
    rolled: bool
    decision: Decision | None


class Maintenance:
    """Keeps the partitions of a catalog in shape."""

    def __init__(
        self,
        catalog: Catalog,
        syncer: Syncer,
        clock: Clock,
        pins: Pins,
        *,
        needs: NeedsOf = _unknown,
        interval_s: float = 30.0,
        flush_interval_s: float = 1.0,
        helper_bytes_min: int = 0,
    ) -> None:
        self.counters = Counters()
        self.pinned_bytes: dict[tuple[str, int], int] = {}
        """Bytes that durable cursors hold back from retention, where there are any."""
        self.over_quota: set[tuple[str, int]] = set()
        """Partitions whose durable cursors lost records at the last run."""
        self.before_trim: list[Leaving] = []
        """Asked before retention takes records; when one fails, they stay until the next run."""
        self.after_trim: list[Callable[[PartitionHandle], Awaitable[None]]] = []
        """Told when retention took records of a partition."""
        self.before_compaction: list[Leaving] = []
        """Asked before compaction may take all but the last record of a key."""
        self._catalog = catalog
        self._syncer = syncer
        self._clock = clock
        self._troubles = catalog.troubles
        self._pins = pins
        self._needs = needs
        self._held: dict[Partition, tuple[_Visit, Sequence[SegmentInfo]]] = {}
        """What the last pass of retention found to be held back."""
        self._thinned: dict[Partition, Thinned] = {}
        self._interval_s = interval_s
        self._flush_interval_s = flush_interval_s
        self._stopping = threading.Event()
        self._stopped = asyncio.Event()
        self._rewriting = asyncio.Lock()
        self._find_judge = judge_for(helper_bytes_min, self._stopping)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to run by the timers."""
        assert self._task is None, "maintenance runs already"
        self._task = asyncio.create_task(self._run(), name="onelog-maintenance")

    async def stop(self) -> None:
        """End, after what is under way. Idempotent."""
        self._stopping.set()
        self._stopped.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._flush_interval_s, self.flush_once))
            group.create_task(self._every(self._interval_s, self.retain_once))
            group.create_task(self._every(self._interval_s, self.compact_once))
            group.create_task(self._every(self._interval_s, self.thin_once))

    async def _every(self, interval_s: float, once: Callable[[], Awaitable[None]]) -> None:
        while not self._stopped.is_set():
            try:
                await asyncio.wait_for(self._stopped.wait(), interval_s)
            except TimeoutError:
                try:
                    await once()
                except Exception as error:  # noqa: BLE001 - the next run may do better
                    self.counters.errors += 1
                    self._troubles.note(FAILED, once.__name__, error)

    async def run_once(self) -> None:
        """One pass of retention, thinning and compaction over every partition."""
        await self.retain_once()
        await self.thin_once()
        await self.compact_once()

    # -- retention

    async def retain_once(self) -> None:
        """Roll, apply retention and forget silent producers, in every partition."""
        self.counters.runs += 1
        held: dict[Partition, tuple[_Visit, Sequence[SegmentInfo]]] = {}
        for chunk in self._chunks(lambda _: True):
            for visit, result in await self._in_thread(chunk, _retain):
                partition = visit.partition
                self.counters.segments_rolled += result.rolled
                self.counters.producers_expired += partition.producers.expire(
                    visit.now_ms - PRODUCER_SILENCE_MS
                )
                if result.decision is not None:
                    await self._apply(partition, result.decision)
                    if result.decision.held and visit.config.cleanup is Cleanup.DELETE:
                        held[partition] = (visit, result.decision.held)
        self._held = held
        self._thinned = {one: row for one, row in self._thinned.items() if one in held}

    async def _apply(self, partition: Partition, decision: Decision) -> None:
        self._note_pins(partition, decision)
        if decision.start is None:
            return
        if not await self._may_leave(self.before_trim, partition, decision.start):
            return
        try:
            await apply_retention(partition, decision)
        except Exception as error:  # noqa: BLE001 - the other partitions go on
            self._failed(partition, "retention", error)
            return
        self.counters.segments_deleted += decision.segments
        self.counters.bytes_deleted += decision.bytes
        for trimmed in tuple(self.after_trim):
            try:
                await trimmed(partition)
            except Exception as error:  # noqa: BLE001 - the others are told
                self._hook_failed(partition, error, partition.start_offset)

    async def _may_leave(
        self, hooks: Sequence[Leaving], partition: Partition, upto: Offset
    ) -> bool:
        """Let everybody see to records before they leave; False: one could not, so they stay."""
        for leaving in tuple(hooks):
            try:
                await leaving(partition, upto)
            except Exception as error:  # noqa: BLE001 - the other partitions go on
                self._hook_failed(partition, error, upto)
                return False
        return True

    def _hook_failed(self, partition: Partition, error: Exception, upto: Offset) -> None:
        passing = isinstance(error, OffsetOutOfRange | Conflict)  # trimmed or cut meanwhile
        if partition.stopped is None and not passing:
            self.counters.errors += 1
            self._troubles.note(HOOK, partition.place, error, offset=int(upto))

    def _note_pins(self, partition: Partition, decision: Decision) -> None:
        key = (partition.stream, int(partition.id))
        if decision.pinned_bytes:
            self.pinned_bytes[key] = decision.pinned_bytes
        else:
            self.pinned_bytes.pop(key, None)
        if not decision.quota_exceeded:
            self.over_quota.discard(key)
            return
        self.over_quota.add(key)
        self.counters.alarms += 1
        _log.warning(
            "durable cursors hold back more than retention.pin_bytes_max: the oldest records go",
            stream=key[0],
            partition=key[1],
            start_offset=decision.start,
        )

    # -- compaction

    async def compact_once(self) -> None:
        """Compact every partition that is dirty enough, one after the other."""
        async with self._rewriting:
            for chunk in self._chunks(lambda config: config.cleanup.compacts):
                for visit, due in await self._in_thread(chunk, _is_due):
                    if due and not self._stopped.is_set():
                        await self._compact(visit.partition, visit.config)

    async def _compact(self, partition: Partition, config: StreamConfig) -> None:
        work = partial(
            compact,
            partition.log,
            scope_of(partition),
            now_ms=self._clock.now_ms(),
            config=config.compaction,
            segment_bytes=config.segment_bytes,
            pace=Pacer(self._clock, self._stopping),
        )
        upto = partition.last_stable_offset
        if not await self._may_leave(self.before_compaction, partition, upto):
            return
        try:
            try:
                result = await self._syncer.chores.run(partial(work, find_judge=self._find_judge))
            except HelperLost as error:
                self._troubles.note(HELPER, partition.place, error)
                result = await self._syncer.chores.run(work)  # here, in the thread
        except (OffsetOutOfRange, Conflict):
            return  # trimmed or cut meanwhile: the next run sees what is left
        except Exception as error:  # noqa: BLE001 - the other partitions go on
            self._failed(partition, "compaction", error)
            return
        self.counters.compactions += 1
        self.counters.records_compacted += result.records_dropped
        self.counters.bytes_compacted += result.bytes_before - result.bytes_after

    # -- thinning

    async def thin_once(self) -> None:
        """Give back what is held back for a few records among many."""
        async with self._rewriting:
            for visit, held in list(self._held.values()):
                if visit.partition.stopped is None:
                    await self._thin(visit, held)

    async def _thin(self, visit: _Visit, held: Sequence[SegmentInfo]) -> None:
        partition = visit.partition
        try:
            needs = self._needs(partition.stream, partition.id)
        except (StreamNotFound, Unavailable):
            return
        if needs is None:
            return
        thinned = self._thinned.setdefault(partition, Thinned())
        rows = [row for row in held if row.end_offset < partition.end_offset]
        for group in thinned.due(rows, needs, visit.config.segment_bytes):
            if self._stopped.is_set() or not needs.still_hold():
                return
            if not await self._may_leave(self.before_trim, partition, group[-1].end_offset):
                return
            try:
                await self._thin_group(partition, group, needs)
            except (OffsetOutOfRange, Conflict, InvalidRequest):
                return  # trimmed or cut meanwhile: the next run sees what is left
            except Exception as error:  # noqa: BLE001 - the other partitions go on
                self._failed(partition, "thinning", error)
                return
            thinned.note(group, needs)

    async def _thin_group(
        self, partition: Partition, group: Sequence[SegmentInfo], needs: Needs
    ) -> None:
        pace = Pacer(self._clock, self._stopping)
        rewriting = await self._syncer.chores.run(partial(thin, partition.log, group, needs, pace))
        if not needs.still_hold():
            await self._syncer.chores.run(rewriting.abort)
            return
        await self._syncer.chores.run(rewriting.commit)
        self.counters.thinnings += 1
        self.counters.bytes_thinned += rewriting.bytes_before - rewriting.bytes_after

    # -- flush

    async def flush_once(self) -> None:
        """Begin to sync partitions that do not sync by themselves and hold unsynced records.

        On a full disk: look whether there is room again.
        """
        if self._catalog.shared.room.is_full:
            await self._catalog.look_for_room()
        for chunk in _chunks(self._partitions(), 16 * _CHUNK):
            queued = 0
            for _, partition in chunk:
                if partition.durability is Durability.FSYNC or partition.stopped is not None:
                    continue
                if partition.log.durable_offset < partition.end_offset:
                    partition.request_sync()
                    queued += 1
                    if queued % _SYNCS_QUEUED == 0:
                        await self._syncer.run(_nothing)  # until a thread got as far as this
            await asyncio.sleep(0)

    # -- inside

    def _partitions(self) -> list[tuple[Stream, Partition]]:
        return [
            (stream, partition) for stream in self._catalog.streams() for partition in stream.local
        ]

    def _chunks(self, wanted: Callable[[StreamConfig], bool]) -> Iterator[list[_Visit]]:
        """Running partitions of the wanted streams; each chunk is looked at when it is due."""
        rows = [row for row in self._partitions() if wanted(row[0].config)]
        for chunk in _chunks(rows, _CHUNK):
            visits = []
            for stream, partition in chunk:
                if partition.stopped is None:
                    try:
                        visits.append(self._visit(stream, partition))
                    except Exception as error:  # noqa: BLE001 - the others go on
                        self._failed(partition, "looking up its pin", error)
            yield visits

    def _visit(self, stream: Stream, partition: Partition) -> _Visit:
        pin, pins_known = None, True
        try:
            pin = self._pins(stream.name, partition.id)
        except Unavailable:
            pins_known = False
        return _Visit(
            partition,
            stream.config,
            self._clock.now_ms(),
            pin,
            pins_known,
            partition.high_watermark,
            partition.last_stable_offset,
        )

    async def _in_thread(
        self, visits: list[_Visit], look: Callable[[_Visit], _T]
    ) -> list[tuple[_Visit, _T]]:
        """What `look` found in a thread, of the partitions where it did not fail."""

        def work() -> list[tuple[_Visit, _T | Exception]]:
            found: list[tuple[_Visit, _T | Exception]] = []
            for visit in visits:
                try:
                    found.append((visit, look(visit)))
                except Exception as error:  # noqa: BLE001 - the others go on
                    found.append((visit, error))
            return found

        good: list[tuple[_Visit, _T]] = []
        for visit, result in await self._syncer.chores.run(work):
            if isinstance(result, Exception):
                self._failed(visit.partition, "looking at it", result)
            else:
                good.append((visit, result))
        return good

    def _failed(self, partition: Partition, what: str, error: Exception) -> None:
        if isinstance(error, Closed) or partition.stopped is not None:
            return  # deleted or stopped meanwhile
        self.counters.errors += 1
        self._troubles.note(FAILED, partition.place, error, at=what)
        if isinstance(error, StorageFull):
            self._catalog.shared.room.refused(error)
        if isinstance(error, CorruptBatch):
            partition.stop_damaged(partition.start_offset, error)
        elif isinstance(error, PartitionStopped):
            partition.stop(error)


def _retain(visit: _Visit) -> _Retained:
    """In a thread: seal what is too old, and decide what goes."""
    log, config = visit.partition.log, visit.config
    deletes = config.cleanup.deletes
    segments = log.segments()
    rolled = bool(segments) and roll_due(
        segments[-1],
        now_ms=visit.now_ms,
        segment_age_ms=config.roll_age_ms,
        retention_age_ms=config.retention.age_ms if deletes else -1,
    )
    if rolled:
        log.roll()
        segments = log.segments()
    if not deletes or not visit.pins_known:
        return _Retained(rolled, None)
    decision = new_start(
        segments,
        config.partition_retention(),
        visit.now_ms,
        high_watermark=visit.high_watermark,
        pin=visit.pin,
        durable_cursors=visit.pin is not None,
    )
    return _Retained(rolled, decision)


def _is_due(visit: _Visit) -> bool:
    """In a thread: whether compaction has enough to do."""
    return compaction_due(
        visit.partition.log,
        upto=visit.last_stable_offset,
        now_ms=visit.now_ms,
        config=visit.config.compaction,
    )


def _nothing() -> None:
    return None


def _chunks(rows: list[_T], size: int) -> Iterator[list[_T]]:
    left = iter(rows)
    while chunk := list(islice(left, size)):
        yield chunk
