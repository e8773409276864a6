"""The work of one partition's tier: what blocks runs in threads of the tier, one job at a time.

Rules: an upload knows what was true on the loop when it began. Before local bytes go, the derived
state is kept, because a start does not read the store. A fence in the store stops the tier, never
the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from onelog.base.errors import Fenced, StorageError
from onelog.base.ids import Offset, TimestampMs
from onelog.log.partition import Partition
from onelog.log.piece_facts import PieceFacts, StateAt
from onelog.log.pool import Pool
from onelog.log.replay import encode_state, try_save
from onelog.log.stream import StreamRecord
from onelog.objects.rows import Row
from onelog.storage.tier import Tier

T = TypeVar("T")


class TierFenced(StorageError):
    """Another broker moves this partition's history; this one copies and deletes nothing more."""


class TierWork:
    """Runs the tier of one partition."""

    __slots__ = ("_pool", "_state", "_turn", "partition", "tier")

    def __init__(self, partition: Partition, tier: Tier, pool: Pool) -> None:
        self.partition = partition
        self.tier = tier
        self._pool = pool
        self._turn = asyncio.Lock()
        self._state = StateAt(partition.log)

    async def upload(self, record: StreamRecord) -> Row | None:
        """Copy the next piece; None: nothing is due."""
        async with self._turn:
            stable = self.partition.last_stable_offset
            facts = PieceFacts(self.partition, record, self._state)
            return await self._run(lambda: self.tier.upload(stable, facts))

    async def settle(self, now_ms: int, grace_ms: int) -> int:
        """Tell the store what left the log; how many objects were deleted."""
        async with self._turn:
            return await self._run(lambda: self.tier.settle(TimestampMs(now_ms), grace_ms))

    async def trim_local(self, upto: Offset) -> None:
        """Drop local segments of pieces that end at or before `upto`."""
        partition, tier = self.partition, self.tier
        log, hold = partition.log, partition.shared.hold
        async with self._turn:
            offset, state = (
                partition.end_offset,
                encode_state(partition.producers, partition.epochs),
            )

            def work() -> None:
                log.sync()  # a state beyond the durable end would be lost in a crash
                try_save(log, offset, state)
                with hold.leaving():
                    tier.trim_local(upto)

            await self._run(work)
        partition.producers.forget_aborted_before(log.local_start_offset)

    @property
    def turn(self) -> asyncio.Lock:
        """Held while this tier does something; for work that needs several tiers at once."""
        return self._turn

    async def run_held(self, work: Callable[[], T]) -> T:
        """Run work in a thread of the tier. The caller holds `turn`."""
        assert self._turn.locked()
        return await self._run(work)

    async def bring_back(self) -> bool:
        """Fetch the newest piece that is only in the store; False: there is none."""
        async with self._turn:
            return await self._run(self.tier.bring_back)

    async def delete_cold(self) -> None:
        """What is only in the store leaves the log, and no object is named any more."""
        partition, tier, hold = self.partition, self.tier, self.partition.shared.hold

        def work() -> None:
            with hold.leaving():
                tier.delete_cold()

        async with self._turn:
            await self._run(work)
        partition.producers.forget_before(partition.log.start_offset)

    async def _run(self, work: Callable[[], T]) -> T:
        jobs = self.partition.jobs
        jobs.refuse_if_held()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def unfenced() -> T:
            try:
                return work()
            except Fenced as error:  # a partition stops for some of these, and must not
                raise TierFenced(str(error)) from error

        def done(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        jobs.start(self._pool, unfenced, done)
        return await future
