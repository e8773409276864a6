"""Tiering: which sealed segments go to the object store, and when their local bytes may leave.

Rules:
- A round goes over all partitions that have a tier, a few at a time: each copies one piece, lets
  local bytes go that the local window no longer wants, and tells the store what left the log.
  Rounds follow each other while any partition copied something.
- Threads of the tier do what blocks: never those that sync, and never couriers of readers.
- `store.upload_bytes_per_s` is kept over all partitions, piece by piece.
- A store that is away is asked again after 0.1 to 30 s, with jitter; one that refuses this broker
  after a minute. Local bytes go meanwhile if they are in the store.
- Before bytes leave the disk, the hooks of `before_cold` save what must not be read from the
  store. Pins of cursors hold back the total retention, never local bytes.
- A partition whose tier is halted (fenced, or another store) is a standing trouble. So are a store
  that refuses us, and bytes that have waited too long.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ColdUnavailable, Conflict, StorageError
from onelog.log.catalog import Catalog
from onelog.log.config import StreamConfig
from onelog.log.leaving import Leaving, LeavingHooks
from onelog.log.partition import Partition
from onelog.log.pool import Pool
from onelog.log.retention import new_local_start
from onelog.log.stream import Stream
from onelog.log.tier_work import TierFenced, TierWork

HALTED: Final = "tier-halted"
"""Standing: nothing of a partition is moved to the store until somebody acts."""
STORE: Final = "tier-store"
"""Standing: the store cannot be used by tiers."""
LAG: Final = "tier-lag"
"""Standing: bytes of a partition wait for the store for too long."""
FAILED: Final = "tiering"
"""Incidents: the tier of a partition failed."""
UPLOADS: Final = 4
"""Threads of the tier: pieces that are copied at once."""
LAG_ALARM_S: Final = 15 * 60.0
BACK_OFF_S: Final = (0.1, 30.0)
REFUSED_S: Final = 60.0
"""When to try again after a store refused this broker: somebody has to do something."""
AWAY_ALARM_S: Final = 60.0
_STOP_S: Final = 10.0
"""How long a stop waits for copies under way; the next start makes the rest."""
_PLACE: Final = "store"


Bury = Callable[[int, int], int]
"""(now, grace in ms) → objects that were deleted. It blocks. Raises ColdUnavailable."""


class TierCounters(msgspec.Struct):
    """What tiers did since the start."""

    pieces: int = 0
    bytes: int = 0
    pieces_dropped: int = 0
    """Times that local bytes were dropped."""
    objects_deleted: int = 0
    errors: int = 0
    last_success_ms: int = 0


class TierLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How tiers treat the store."""

    upload_bytes_per_s: int = 0
    """0: no bound."""
    grace_ms: int = 15 * 60_000
    uploads: int = UPLOADS


class TierOutcome(msgspec.Struct):
    """How the last work of a partition's tier with the store ended."""

    success_ms: int = 0
    """When something was moved or deleted there last; 0: never since the start."""
    error: str = ""
    """Why the last try failed; empty: it did not."""


class _Waiting(msgspec.Struct):
    """Since when the oldest bytes of a partition wait."""

    base: int
    since: float


def has_tier(stream: Stream, partition: Partition) -> bool:
    """Whether a partition has a tier, or something in the store from the time when it had."""
    tier = partition.log.tier
    if tier is None:
        return False
    if stream.config.tier.is_on:
        return True
    status = tier.status()
    return bool(status.rows or status.doomed)


class Tiering:
    """Moves the history of all partitions."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        hooks: LeavingHooks,
        failed: Callable[[Partition, str, Exception], None],
    ) -> None:
        self.before_cold: list[Leaving] = []
        """Asked before records leave the disk; if one fails, they stay until the next round."""
        self.buriers: list[Bury] = []
        """Delete objects of partitions that were deleted; who keeps notes of them adds itself."""
        self.counters = TierCounters()
        self.adoptions = 0
        """Streams whose rewritten rows are being taken over now."""
        self.limits = TierLimits()
        self._catalog = catalog
        self._clock = clock
        self._troubles = catalog.troubles
        self._hooks = hooks
        self._failed = failed
        self._pool: Pool | None = None
        self._work: dict[Partition, TierWork] = {}
        self._waiting: dict[Partition, _Waiting] = {}
        self._outcomes: dict[Partition, TierOutcome] = {}
        self._halted: set[str] = set()
        self._lagging: set[str] = set()
        self._stopped = asyncio.Event()
        self._pass: asyncio.Task[None] | None = None
        self._free_at = 0.0
        """From when on the pace allows the next upload."""
        self._tries = 0
        self._try_at = 0.0
        """From when on the store is asked again."""
        self._away_since: float | None = None

    # -- passes

    async def once(self) -> None:
        """Move everything that is due."""
        if self._stopped.is_set() or self._pass is not None:
            return
        self._pass = asyncio.create_task(self._rounds(), name="onelog-tiering")
        try:
            await asyncio.wait([self._pass])
            if not self._pass.cancelled():
                self._pass.result()
        finally:
            self._pass = None

    def outcome_of(self, partition: Partition) -> TierOutcome:
        """How the last work of a partition's tier ended."""
        return self._outcomes.setdefault(partition, TierOutcome())

    async def once_more(self) -> None:
        """As `once`, after a pass that is under way; a store that was away is asked at once."""
        self._try_at = 0.0
        while self._pass is not None:
            await asyncio.wait([self._pass])
            await asyncio.sleep(0)
        await self.once()

    def pause_s(self, interval_s: float) -> float:
        """When to make the next pass."""
        if self._away_since is None:
            return interval_s
        return min(interval_s, max(self._try_at - self._clock.monotonic(), BACK_OFF_S[0]))

    async def _rounds(self) -> None:
        await self._bury()
        while not self._stopped.is_set():
            rows = self._partitions()
            self._forget(rows)
            if not rows or not await self._round(rows):
                return

    async def _round(self, rows: list[tuple[Stream, Partition]]) -> bool:
        """One piece of each partition; whether any was copied."""
        left, copied = deque(rows), False

        async def worker() -> None:
            nonlocal copied
            while left and not self._stopped.is_set():
                stream, partition = left.popleft()
                if partition.stopped is None and await self._visit(stream, partition):
                    copied = True

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.limits.uploads, len(rows))):
                group.create_task(worker())
        return copied

    def _partitions(self) -> list[tuple[Stream, Partition]]:
        return [
            (stream, partition)
            for stream in self._catalog.streams()
            for partition in stream.local
            if has_tier(stream, partition)
        ]

    def _forget(self, rows: list[tuple[Stream, Partition]]) -> None:
        """Partitions that are gone."""
        there = {partition for _stream, partition in rows}
        self._work = {one: work for one, work in self._work.items() if one in there}
        self._waiting = {one: row for one, row in self._waiting.items() if one in there}
        self._outcomes = {one: row for one, row in self._outcomes.items() if one in there}

    def work_of(self, partition: Partition) -> TierWork | None:
        """The work of a partition's tier; None: it has no tier."""
        tier = partition.log.tier
        if tier is None:
            return None
        work = self._work.get(partition)
        if work is None:
            work = self._work[partition] = TierWork(partition, tier, self._threads())
        return work

    def _threads(self) -> Pool:
        if self._pool is None:
            self._pool = Pool("tier", self.limits.uploads, self._troubles)
        return self._pool

    async def _visit(self, stream: Stream, partition: Partition) -> bool:
        work = self.work_of(partition)
        if work is None:
            return False
        copied = False
        try:
            if self._may_ask and not self._is_halted(work):
                copied = await self._in_store(stream, work)
            if stream.config.tier.is_on and not self._is_halted(work):
                await self._trim_local(work, stream.config)
        except Conflict:
            pass  # the log is being cut: the next round sees what is left
        except Exception as error:  # noqa: BLE001 - the other partitions go on
            self.counters.errors += 1
            self.outcome_of(partition).error = str(error)
            self._failed(partition, "tiering", error)
        self._watch_lag(partition)
        return copied

    # -- the store

    async def _in_store(self, stream: Stream, work: TierWork) -> bool:
        """What needs the store: whether a piece was copied."""
        config, outcome = stream.config, self.outcome_of(work.partition)
        try:
            status = work.tier.status()
            if not config.tier.is_on and config.tier.delete_when_off and status.rows:
                await work.delete_cold()
            row = None
            if config.tier.copies and work.tier.waiting(work.partition.last_stable_offset):
                await self._keep_pace()
                row = await work.upload(stream.record)
            if row is not None:
                self._copied(row.log_bytes)
            if work.tier.status().doomed or row is not None:
                now_ms = self._clock.now_ms()
                self.counters.objects_deleted += await work.settle(now_ms, self.limits.grace_ms)
                self._answered()
                outcome.success_ms, outcome.error = now_ms, ""
        except ColdUnavailable as error:
            outcome.error = str(error)
            self._away(error)
            return False
        except (TierFenced, StorageError) as error:
            outcome.error = str(error)
            self.counters.errors += 1
            if not self._is_halted(work):
                self._troubles.note(FAILED, work.partition.place, error)
            return False
        return row is not None

    async def _keep_pace(self) -> None:
        wait_s = self._free_at - self._clock.monotonic()
        if wait_s > 0:
            await self._sleep(wait_s)

    async def _sleep(self, wait_s: float) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), wait_s)
        except TimeoutError:
            return

    def _copied(self, size_bytes: int) -> None:
        self.counters.pieces += 1
        self.counters.bytes += size_bytes
        self._answered()
        if self.limits.upload_bytes_per_s:
            begin = max(self._free_at, self._clock.monotonic())
            self._free_at = begin + size_bytes / self.limits.upload_bytes_per_s

    def _answered(self) -> None:
        self.counters.last_success_ms = self._clock.now_ms()
        self._tries, self._try_at, self._away_since = 0, 0.0, None
        self._troubles.clear(STORE, _PLACE)

    @property
    def _may_ask(self) -> bool:
        return self._clock.monotonic() >= self._try_at

    def _away(self, error: ColdUnavailable) -> None:
        """The store did not do it: ask again later."""
        now = self._clock.monotonic()
        self.counters.errors += 1
        if self._away_since is None:
            self._away_since = now
        needs_somebody = error.reason not in ("away", "throttled")
        if needs_somebody or now - self._away_since >= AWAY_ALARM_S:
            self._troubles.stand(STORE, _PLACE, error, blocks=False)
        if not self._may_ask:
            return  # another partition found out, too
        low, high = BACK_OFF_S
        wait_s = REFUSED_S if needs_somebody else min(high, low * 2**self._tries)
        self._tries = min(self._tries + 1, 16)
        self._try_at = now + wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def _is_halted(self, work: TierWork) -> bool:
        place, why = work.partition.place, work.tier.status().halted
        if why:
            self._halted.add(place)
            self._troubles.stand(HALTED, place, why, blocks=False)
        elif place in self._halted:
            self._halted.discard(place)
            self._troubles.clear(HALTED, place)
        return bool(why)

    async def _bury(self) -> None:
        """Delete the objects of partitions that were deleted."""
        if not self._may_ask:
            return
        now_ms, grace_ms = self._clock.now_ms(), self.limits.grace_ms
        for bury in self.buriers:
            try:
                count = await self._threads().run(partial(bury, now_ms, grace_ms))
            except ColdUnavailable as error:
                self._away(error)
            except Exception as error:  # noqa: BLE001 - the next pass tries again
                self.counters.errors += 1
                self._troubles.note(FAILED, "deleted streams", error)
            else:
                self.counters.objects_deleted += count

    # -- the disk here

    async def _trim_local(self, work: TierWork, config: StreamConfig) -> None:
        partition = work.partition
        segments, now_ms = partition.log.segments(), self._clock.now_ms()
        upto = new_local_start(segments, config.local_window(), now_ms)
        if upto is None or upto <= partition.log.local_start_offset:
            return
        if await self._hooks.may_leave(self.before_cold, partition, upto):
            before = partition.log.local_start_offset
            await work.trim_local(upto)
            self.counters.pieces_dropped += partition.log.local_start_offset > before

    def _watch_lag(self, partition: Partition) -> None:
        tier, place = partition.log.tier, partition.place
        rows = () if tier is None else tier.waiting(partition.last_stable_offset)
        known, now = self._waiting.get(partition), self._clock.monotonic()
        if rows and (known is None or known.base != rows[0].base_offset):
            known = self._waiting[partition] = _Waiting(int(rows[0].base_offset), now)
        if rows and known is not None and now - known.since >= LAG_ALARM_S:
            size_bytes = sum(row.size_bytes for row in rows)
            self._lagging.add(place)
            self._troubles.stand(
                LAG,
                place,
                f"{size_bytes} sealed bytes from offset {rows[0].base_offset} on wait for the"
                " object store: `onelog store status` says what it answers",
                blocks=False,
            )
        elif place in self._lagging and (known is None or now - known.since < LAG_ALARM_S):
            self._lagging.discard(place)
            self._troubles.clear(LAG, place)
        if not rows:
            self._waiting.pop(partition, None)
            if place in self._lagging:
                self._lagging.discard(place)
                self._troubles.clear(LAG, place)

    # -- the end

    async def stop(self) -> None:
        """Begin nothing more, and wait a little for copies under way. Idempotent."""
        self._stopped.set()
        if self._pass is not None:
            done, _ = await asyncio.wait([self._pass], timeout=_STOP_S)
            if not done:
                self._pass.cancel()
                return  # its threads end with the process
        if self.adoptions:
            return  # they may take long; the table and the manifests know how far they came
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()
