"""Tiers for people: how far history is in the object store, and how it comes back or goes.

Rules: bringing back and deleting first turn the tier off, so that nothing is copied meanwhile. One
of them runs for a stream at a time, as a task of its own. The stream's rows show its progress. A
store that is away is waited for; a full disk ends it, and what came back stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeVar

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ColdUnavailable, Conflict, InvalidRequest, OnelogError
from onelog.log.adopting import Adopted, adopt
from onelog.log.catalog import Catalog
from onelog.log.offloading import Offloaded, offload
from onelog.log.partition import Partition
from onelog.log.stream import Stream
from onelog.log.tier_config import ColdFormat
from onelog.log.tier_work import TierWork
from onelog.log.tiering import BACK_OFF_S, Tiering, has_tier
from onelog.observe.troubles import Troubles

T = TypeVar("T")

LEAVING: Final = "tier-leaving"
"""Incidents: history could not be brought back or deleted."""
_WAIT_S_MAX: Final = 3600.0
"""How long a store may be away before a task gives up."""


class TierInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one partition in the object store."""

    partition: int
    start_offset: int
    local_start_offset: int
    """First offset that is on this machine."""
    cold_end_offset: int
    """First offset behind what is in the store."""
    end_offset: int
    local_bytes: int
    """Bytes of batches on this machine."""
    pieces: int
    cold_bytes: int
    """Bytes of batches in the store."""
    lag_bytes: int
    """Sealed bytes that are not in the store yet."""
    lag_age_ms: int
    """How old the first of them is; 0: there are none."""
    hits: int
    """Reads of what is only in the store that found it in the cache."""
    misses: int
    """Those that waited for the store."""
    last_success_ms: int
    """When something was moved to the store last; 0: never since the start."""
    last_error: str
    """Why the last try failed; empty: it did not."""
    doomed: int
    """Objects that nothing names any more, and that are still there."""
    halted: str
    """Why nothing is moved until somebody acts; empty: nothing hinders it."""
    state: str
    """`copying`, `stopped` (nothing is copied), `off`, or why nothing is moved."""


class StoredStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream with history in the object store, over all of its partitions."""

    stream: str
    engine: str
    tier: str
    """`log`, `iceberg`, `delta`; empty: it has none (any more)."""
    table: str
    """The name of its table; empty: it has none."""
    partitions: int
    offsets: int
    """Offsets between the starts and the ends of its partitions."""
    local_offsets: int
    """Those that are on this machine."""
    local_bytes: int
    cold_bytes: int
    """Bytes of batches in the store."""
    pieces: int
    lag_bytes: int
    """Sealed bytes that are not in the store yet."""
    lag_age_ms: int
    """How old the oldest of them are; 0: there are none."""
    hits: int
    """Reads of what is only in the store that found it in the cache, since the start."""
    misses: int
    """Those that waited for the store."""
    last_success_ms: int
    """When something was moved to the store last; 0: never since the start."""
    state: str
    """`copying`, `stopped` (nothing is copied), `off`, `in the store` (engine object), `halted`,
    or what is being done."""
    problem: str
    """Why nothing is moved, or why the last try failed, and what to do; empty: nothing is wrong."""


class TierTask(msgspec.Struct, kw_only=True):
    """History that comes back from the store, or is deleted there."""

    stream: str
    what: Literal["bring-back", "delete-cold"]
    state: Literal["running", "done", "failed"] = "running"
    pieces: int = 0
    """Pieces that came back so far."""
    left: int = 0
    """Pieces that are still only in the store."""
    error: str = ""


class Tiers:
    """The tiers of a broker's streams."""

    def __init__(
        self, catalog: Catalog, tiering: Tiering, clock: Clock, troubles: Troubles
    ) -> None:
        self._catalog = catalog
        self._tiering = tiering
        self._clock = clock
        self._troubles = troubles
        self._tasks: dict[str, TierTask] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def rows(self, name: str, after: int, limit: int) -> list[TierInfo]:
        """Partitions of a stream by number, from `after` + 1. Raises StreamNotFound."""
        stream = self._catalog.get(name)
        return [self._row(stream, row) for row in stream.local[after + 1 : after + 1 + limit]]

    @staticmethod
    def is_stored(stream: Stream) -> bool:
        """Whether a stream has a tier, or something in the store."""
        return stream.config.engine == "object" or any(
            has_tier(stream, one) for one in stream.local
        )

    def stored(self, stream: Stream) -> StoredStream:
        """What a stream has in the store."""
        config = stream.config
        is_object = config.engine == "object"
        rows = [self._row(stream, one) for one in stream.local]
        size_bytes = stream.size_bytes if is_object else 0
        halted = next((row.halted for row in rows if row.halted), "")
        is_plain = is_object and not any(has_tier(stream, one) for one in stream.local)
        state = "in the store" if is_plain else rows[0].state
        return StoredStream(
            stream=stream.name,
            engine=config.engine,
            tier=config.tier.format.value,
            table=(config.tier.table or stream.name) if config.tier.format.is_table else "",
            partitions=len(rows),
            offsets=sum(row.end_offset - row.start_offset for row in rows),
            local_offsets=0
            if is_object
            else sum(row.end_offset - row.local_start_offset for row in rows),
            local_bytes=0 if is_object else sum(row.local_bytes for row in rows),
            cold_bytes=size_bytes or sum(row.cold_bytes for row in rows),
            pieces=sum(row.pieces for row in rows),
            lag_bytes=sum(row.lag_bytes for row in rows),
            lag_age_ms=max((row.lag_age_ms for row in rows), default=0),
            hits=sum(row.hits for row in rows),
            misses=sum(row.misses for row in rows),
            last_success_ms=max((row.last_success_ms for row in rows), default=0),
            state="halted" if halted and state == halted else state,
            problem=halted or next((row.last_error for row in rows if row.last_error), ""),
        )

    def _row(self, stream: Stream, partition: Partition) -> TierInfo:
        status, lag = partition.tier_status(), partition.tier_lag()
        outcome = self._tiering.outcome_of(partition)
        start = int(partition.start_offset)
        return TierInfo(
            partition=int(partition.id),
            start_offset=start,
            local_start_offset=int(partition.local_start_offset),
            cold_end_offset=start if status is None else int(status.cold_end_offset),
            end_offset=int(partition.end_offset),
            local_bytes=partition.size_bytes if status is None else status.local_bytes,
            pieces=0 if status is None else status.rows,
            cold_bytes=0 if status is None else status.cold_bytes,
            lag_bytes=lag.bytes,
            lag_age_ms=max(0, self._clock.now_ms() - lag.oldest_ms) if lag.bytes else 0,
            hits=0 if status is None else status.hits,
            misses=0 if status is None else status.misses,
            last_success_ms=outcome.success_ms,
            last_error=outcome.error,
            doomed=0 if status is None else status.doomed,
            halted="" if status is None else status.halted,
            state=self._state(stream, "" if status is None else status.halted),
        )

    def _state(self, stream: Stream, halted: str) -> str:
        tier, task = stream.config.tier, self._tasks.get(stream.name)
        if task is not None and task.state != "done":
            return f"{task.what} {task.state}: {task.error or f'{task.left} pieces left'}"
        if halted:
            return halted
        return ("copying" if tier.copies else "stopped") if tier.is_on else "off"

    async def offload(self, name: str) -> Offloaded:
        """Seal what a stream holds and move its history to the store now, as its tier says."""
        return await offload(self._catalog, self._tiering, name)

    async def adopt(self, name: str) -> Adopted:
        """Take the rows of a stream's table over that another writer rewrote."""
        return await adopt(self._catalog, self._tiering, name)

    async def bring_back(self, name: str) -> TierTask:
        """Begin to fetch the history of a stream from the store; afterwards nothing is there."""
        return await self._begin(name, "bring-back")

    async def delete_cold(self, name: str) -> TierTask:
        """Delete what is in the store; the log of each partition begins with what is here."""
        return await self._begin(name, "delete-cold")

    async def _begin(self, name: str, what: Literal["bring-back", "delete-cold"]) -> TierTask:
        stream = self._catalog.get(name)
        if name in self._running:
            raise Conflict(f"the history of {name!r} is being moved already: wait for it")
        works = [work for one in stream.local if (work := self._work(stream, one)) is not None]
        if not works:
            raise InvalidRequest(
                f"the stream {name!r} has nothing in the object store, and no tier"
            )
        if what == "bring-back" and stream.config.engine == "object":
            raise InvalidRequest(
                f"the stream {name!r} has the engine object: there is no disk to bring its history"
                " back to; it stays readable where it is"
            )
        if stream.config.tier.is_on:
            off = msgspec.structs.replace(
                stream.config.tier, format=ColdFormat.NONE, delete_when_off=False
            )
            await self._catalog.alter(msgspec.structs.replace(stream.config, tier=off))
        task = self._tasks[name] = TierTask(stream=name, what=what, left=_left(works))
        running = asyncio.create_task(self._run(task, works), name=f"onelog-tier-{name}")
        self._running[name] = running
        running.add_done_callback(lambda _task: self._running.pop(name, None))
        return task

    def _work(self, stream: Stream, partition: Partition) -> TierWork | None:
        if partition.stopped is not None or not has_tier(stream, partition):
            return None
        return self._tiering.work_of(partition)

    async def _run(self, task: TierTask, works: list[TierWork]) -> None:
        try:
            for work in works:
                while task.what == "bring-back" and await self._retried(work.bring_back):
                    task.pieces += 1
                    task.left = _left(works)
                await self._retried(work.delete_cold)
        except OnelogError as error:
            task.state, task.error = "failed", str(error)
            self._troubles.note(LEAVING, task.stream, error)
        except asyncio.CancelledError:
            task.state, task.error = "failed", "the broker stopped"
            raise
        else:
            task.state, task.left = "done", 0

    async def _retried(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the store answers."""
        began, wait_s = self._clock.monotonic(), BACK_OFF_S[0]
        while True:
            try:
                return await ask()
            except ColdUnavailable:
                if self._clock.monotonic() - began > _WAIT_S_MAX:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, BACK_OFF_S[1])

    async def close(self) -> None:
        """End what runs; it can be begun again."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)


def _left(works: list[TierWork]) -> int:
    """Pieces that are only in the store."""
    count = 0
    for work in works:
        log = work.partition.log
        count += len(log.cold_rows(log.start_offset, log.local_start_offset))
    return count
