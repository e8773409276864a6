"""Groups on a real broker, in virtual time: timers that a test drives by hand."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

from onelog.base.clock import ManualClock
from onelog.broker import Broker
from onelog.config.kafka import KafkaGroups
from onelog.protocols.kafka.groups.answers import JoinAnswer, Joining, SyncAnswer, Syncing
from onelog.protocols.kafka.groups.coordinator import Groups
from onelog.protocols.kafka.groups.rows import group_key
from tests.support.brokers import running


class Handle:
    """A call that can be cancelled."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Calls by virtual time."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, Handle]] = []
        self._numbers = count()

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        handle = Handle(callback)
        heapq.heappush(self._heap, (when, next(self._numbers), handle))
        return handle

    @property
    def waiting(self) -> int:
        return sum(handle.callback is not None for _, _, handle in self._heap)

    def advance(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self._heap and self._heap[0][0] <= end:
            when, _number, handle = heapq.heappop(self._heap)
            self.clock.advance(max(when - self.clock.monotonic(), 0))
            if handle.callback is not None:
                handle.callback()
        self.clock.advance(end - self.clock.monotonic())


class Rig:
    """A broker, its groups, and the time."""

    def __init__(self, broker: Broker, groups: Groups, timers: Timers) -> None:
        self.broker = broker
        self.groups = groups
        self.timers = timers

    async def join(self, group: str = "g", member_id: str = "", **rest: Any) -> JoinAnswer:
        asked: dict[str, Any] = {
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", b"r"),),
            "needs_known_id": False,
            "can_skip_assignment": False,
        }
        return await self.groups.join(group, Joining(member_id=member_id, **(asked | rest)))

    async def joined(self, group: str = "g", **rest: Any) -> JoinAnswer:
        """The first member of a group, once its generation has begun."""
        waiting = asyncio.ensure_future(self.join(group, **rest))
        await asyncio.sleep(0)
        self.timers.advance(0.5)
        return await waiting

    async def sync(self, answer: JoinAnswer, group: str = "g", **given: bytes) -> SyncAnswer:
        return await self.groups.sync(
            group,
            Syncing(
                member_id=answer.member_id,
                instance_id=None,
                generation=answer.generation,
                protocol_type=None,
                protocol=None,
                assignments=given or {row.member_id: b"part" for row in answer.members},
            ),
        )

    async def settled(self) -> None:
        """Let what was begun get to the disk: rows are durable in order, so one more shows it."""
        for _ in range(3):  # the look at old offsets is a task of its own
            await asyncio.sleep(0)
        last: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.groups._journals.put("nobody", [(group_key("nobody"), None)], last.set_result)
        assert await last is None

    async def member(self, group: str = "g", **rest: Any) -> JoinAnswer:
        """A stable group of one member."""
        answer = await self.joined(group, **rest)
        await self.sync(answer, group)
        return answer


@contextlib.asynccontextmanager
async def grouping(
    path: Path, clock: ManualClock | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    """Groups for the length of a block; the same path again is a restart."""
    clock = clock or ManualClock()
    timers = Timers(clock)
    async with running(path, clock=clock) as broker:
        groups = await Groups.open(broker, KafkaGroups(**settings), clock, timers.call_at)
        try:
            yield Rig(broker, groups, timers)
        finally:
            await groups.close()
