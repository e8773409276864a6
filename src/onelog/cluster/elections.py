"""Which shards this node leads, told to the services that keep rows by name.

Rules:
- A shard is led here while every partition of it is. It is lost at once when one is not.
- One task for each shard tells the services, in order, and always tells them the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

from onelog.observe.troubles import Troubles

FAILED: Final = "shard-election"
"""Incidents: the services of a shard could not be told."""


class ShardServices(Protocol):
    """Whoever hears of elections (`broker/shards.py`)."""

    is_fresh: Callable[[int], bool]
    """Whether the node may still answer for a shard that is led here."""

    @property
    def led(self) -> set[int]:
        """The shards that are led here."""
        ...

    @property
    def owned(self) -> set[int]:
        """The shards that are led here, and whose rows are known."""
        ...

    def __len__(self) -> int: ...

    async def lead(self, shard: int) -> None:
        """This node leads a shard."""
        ...

    async def lose(self, shard: int) -> None:
        """Another node leads a shard, or nobody."""
        ...


class ShardElections:
    """The shards of this node."""

    def __init__(
        self, services: ShardServices, led: Callable[[], Collection[int]], troubles: Troubles
    ) -> None:
        """`led` says which shards are led here now."""
        self._services = services
        self._led = led
        self._troubles = troubles
        self._told: dict[int, bool] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._losing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def look(self) -> None:
        """A role changed: tell the services of what is new."""
        if self._is_closed:
            return
        led = set(self._led())
        for shard in led | {shard for shard, is_led in self._told.items() if is_led}:
            if self._told.get(shard, False) != (shard in led):
                self._told[shard] = shard in led
                if shard not in led:  # at once: a service that still takes the shard must stop
                    self._start(self._losing.add, self._losing.discard, self._services.lose(shard))
                if shard not in self._tasks:
                    self._tasks[shard] = asyncio.create_task(self._tell(shard))

    def _start(
        self,
        add: Callable[[asyncio.Task[None]], object],
        discard: Callable[[asyncio.Task[None]], object],
        work: Awaitable[None],
    ) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - told; the other shards go on
                self._troubles.note(FAILED, "lose", error)

        task = asyncio.create_task(run())
        add(task)
        task.add_done_callback(discard)

    async def _tell(self, shard: int) -> None:
        told: bool | None = None
        try:
            while told is not self._told[shard]:
                told = self._told[shard]
                await (self._services.lead(shard) if told else self._services.lose(shard))
        except Exception as error:  # noqa: BLE001 - told; the other shards go on
            self._troubles.note(FAILED, str(shard), error)
        finally:
            del self._tasks[shard]

    async def close(self) -> None:
        """Every shard is lost."""
        self._is_closed = True
        tasks = [*self._tasks.values(), *self._losing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
