"""Maintenance: what partitions need now and then: roll, retention, tiering, thinning, compaction,
flush.

Rules:
- One owned task has a timer for each kind of pass. Retention, thinning and compaction each pass
  over all partitions. The flush also makes the records of streams of durability `os` and `memory`
  durable, so that recovery has less to scan.
- Threads of the syncer's `chores` do the file work; the loop only decides (`log/visits.py`). One
  rewriting runs at a time.
- An error of one partition or of one hook stops nothing else (`log/visits.py`, `log/leaving.py`).
- While nobody knows what durable cursors need, nothing leaves (`Pins` raises Unavailable).
- On several nodes the leader of a partition decides; only compaction is each replica's own work, as
  far as the leader lets it, and copies are thinned to what their leader kept (`log/thinnings.py`).
- Streams with a tier are not thinned: what is held back lies in the object store anyway.
- `stop` ends a running rewriting at its next batch and waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from onelog.base.clock import Clock
from onelog.base.errors import (
    Conflict,
    OffsetOutOfRange,
)
from onelog.base.ids import Offset
from onelog.log.catalog import Catalog
from onelog.log.compaction import compact, compaction_due, scope_of
from onelog.log.config import Cleanup, StreamConfig
from onelog.log.judge_process import HelperLost, judge_for
from onelog.log.leaving import Leaving, LeavingHooks, Left
from onelog.log.partition import Durability, Partition
from onelog.log.retention import Decision, apply_retention, new_start, roll_due
from onelog.log.rewriting import Pacer
from onelog.log.syncer import Syncer
from onelog.log.thinnings import Held, NeedsOf, Thinnings, no_needs
from onelog.log.tiering import Tiering
from onelog.log.visits import CHUNK, FAILED, Counters, Pins, Visit, Visits, chunks_of
from onelog.observe.logging import get_logger

PRODUCER_SILENCE_MS: Final = 7 * 24 * 3600 * 1000
"""A producer that has written nothing for this long is forgotten."""
_SYNCS_QUEUED: Final = 4
"""Syncs that the flush queues at once. The syncs of waiting publishers come in between."""

_log = get_logger("maintenance")
HELPER: Final = "helper-process"
"""Incidents: the process that judges a compaction was lost, and a thread made the pass."""


class _Retained(NamedTuple):
    rolled: bool
    decision: Decision | None


class Maintenance:
    """Maintains the partitions of a catalog."""

    def __init__(
        self,
        catalog: Catalog,
        syncer: Syncer,
        clock: Clock,
        pins: Pins,
        *,
        needs: NeedsOf = no_needs,
        interval_s: float = 30.0,
        flush_interval_s: float = 1.0,
        helper_bytes_min: int = 0,
    ) -> None:
        self.counters = Counters()
        self.pinned_bytes: dict[tuple[str, int], int] = {}
        """Bytes that durable cursors hold back from retention, for partitions where there are
        any."""
        self.over_quota: set[tuple[str, int]] = set()
        """Partitions whose durable cursors lost records in the last pass."""
        self.before_trim: list[Leaving] = []
        """Asked before retention takes records; when one fails, the records stay until the next
        pass."""
        self.after_trim: list[Left] = []
        """Called after retention took records of a partition."""
        self.before_compaction: list[Leaving] = []
        """Asked before compaction may take all but the last record of a key."""
        self._catalog = catalog
        self._syncer = syncer
        self._clock = clock
        self._troubles = catalog.troubles
        self.visits = Visits(catalog, syncer.chores, clock, pins, self.counters)
        self._hooks = LeavingHooks(self._troubles, self.counters)
        self.tiering = Tiering(catalog, clock, self._hooks, self.visits.failed)
        """What moves history to the object store."""
        self._held: dict[Partition, Held] = {}
        """What the last pass of retention found held back."""
        self._interval_s = interval_s
        self._flush_interval_s = flush_interval_s
        self._stopping = threading.Event()
        self._stopped = asyncio.Event()
        self.thinnings = Thinnings(
            catalog, syncer, clock, self.visits, self._may_be_thinned, self._stopping, needs
        )
        """What thins segments that are held back."""
        self._rewriting = asyncio.Lock()
        self._find_judge = judge_for(helper_bytes_min, self._stopping)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to run by the timers."""
        assert self._task is None, "maintenance runs already"
        self._task = asyncio.create_task(self._run(), name="onelog-maintenance")

    async def stop(self) -> None:
        """Stop, and wait for work under way. Idempotent."""
        self._stopping.set()
        self._stopped.set()
        await self.tiering.stop()
        if self._task is not None:
            await self._task
        await self._hooks.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._flush_interval_s, self.flush_once))
            group.create_task(self._every(self._interval_s, self.retain_once))
            group.create_task(self._every(self._interval_s, self.compact_once))
            group.create_task(self._every(self._interval_s, self.thin_once))
            group.create_task(self._every(self._interval_s, self.tier_once, self.tiering.pause_s))

    async def _every(
        self,
        interval_s: float,
        once: Callable[[], Awaitable[None]],
        sooner: Callable[[float], float] = lambda interval_s: interval_s,
    ) -> None:
        while not self._stopped.is_set():
            try:
                await asyncio.wait_for(self._stopped.wait(), sooner(interval_s))
            except TimeoutError:
                try:
                    await once()
                except Exception as error:  # noqa: BLE001 - the next run may do better
                    self.counters.errors += 1
                    self._troubles.note(FAILED, once.__name__, error)

    async def run_once(self) -> None:
        """One pass of retention, tiering, thinning and compaction over every partition."""
        await self.retain_once()
        await self.tier_once()
        await self.thin_once()
        await self.compact_once()

    # -- retention

    async def retain_once(self) -> None:
        """Roll, apply retention and forget silent producers, in every partition."""
        self.counters.runs += 1
        held: dict[Partition, Held] = {}
        for chunk in self.visits.chunks(lambda _: True):
            for visit, result in await self.visits.in_thread(chunk, _retain):
                partition = visit.partition
                self.counters.segments_rolled += result.rolled
                self.counters.producers_expired += partition.producers.expire(
                    visit.now_ms - PRODUCER_SILENCE_MS
                )
                if result.decision is not None:
                    await self._apply(partition, result.decision)
                    thins = visit.config.cleanup is Cleanup.DELETE and not visit.has_tier
                    if result.decision.held and thins:
                        held[partition] = Held(visit.key, visit.config, result.decision.held)
        self._held = held

    async def _may_be_thinned(self, partition: Partition, upto: Offset) -> bool:
        return await self._hooks.may_leave(self.before_trim, partition, upto)

    async def _apply(self, partition: Partition, decision: Decision) -> None:
        self._note_pins(partition, decision)
        if decision.start is None:
            return
        if not await self._hooks.may_leave(self.before_trim, partition, decision.start):
            return
        try:
            await apply_retention(partition, decision)
        except Exception as error:  # noqa: BLE001 - the other partitions go on
            self.visits.failed(partition, "retention", error)
            return
        self.counters.segments_deleted += decision.segments
        self.counters.bytes_deleted += decision.bytes
        await self._hooks.tell(self.after_trim, partition)

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

    async def tier_once(self) -> None:
        """Move history to the object store, and let local bytes go."""
        await self.tiering.once()

    # -- compaction

    async def compact_once(self) -> None:
        """Compact every partition that is dirty enough, one after the other."""
        async with self._rewriting:
            compacts = self.visits.chunks(lambda config: config.cleanup.compacts, copies=True)
            for chunk in compacts:
                for visit, due in await self.visits.in_thread(chunk, _is_due):
                    if due and not self._stopped.is_set():
                        await self._compact(visit.partition, visit.config)

    async def _compact(self, partition: Partition, config: StreamConfig) -> None:
        scope, progress = scope_of(partition), partition.progress
        work = partial(
            compact,
            partition.log,
            scope,
            now_ms=self._clock.now_ms(),
            config=config.compaction,
            segment_bytes=config.segment_bytes,
            pace=Pacer(self._clock, self._stopping),
        )
        if not await self._hooks.may_leave(self.before_compaction, partition, scope.upto):
            return
        if progress is not None and progress is partition.progress:
            progress.let_compact(scope.upto)
        try:
            try:
                result = await self._syncer.chores.run(partial(work, find_judge=self._find_judge))
            except HelperLost as error:
                self._troubles.note(HELPER, partition.place, error)
                result = await self._syncer.chores.run(work)  # here, in the thread
        except (OffsetOutOfRange, Conflict):
            return  # trimmed or cut meanwhile: the next pass sees what is left
        except Exception as error:  # noqa: BLE001 - the other partitions go on
            self.visits.failed(partition, "compaction", error)
            return
        self.counters.compactions += 1
        self.counters.records_compacted += result.records_dropped
        self.counters.bytes_compacted += result.bytes_before - result.bytes_after

    # -- thinning

    async def thin_once(self) -> None:
        """Rewrite segments that are held back for a few records among many, to free the rest."""
        async with self._rewriting:
            await self.thinnings.once(self._held)

    # -- flush

    async def flush_once(self) -> None:
        """Begin to sync partitions that do not sync by themselves and hold unsynced records.

        If the disk was full: find out whether there is room again.
        """
        if self._catalog.shared.room.is_full:
            await self._catalog.look_for_room()
        for chunk in chunks_of(self.visits.partitions(), 16 * CHUNK):
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


def _retain(visit: Visit) -> _Retained:
    """In a thread: seal a segment that is too old, and decide which segments go."""
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
        high_watermark=visit.droppable,
        pin=visit.pin,
        durable_cursors=visit.pin is not None,
    )
    return _Retained(rolled, decision)


def _is_due(visit: Visit) -> bool:
    """In a thread: whether compaction has enough to do."""
    return compaction_due(
        visit.partition.log,
        upto=visit.compactable,
        now_ms=visit.now_ms,
        config=visit.config.compaction,
    )


def _nothing() -> None:
    return None
