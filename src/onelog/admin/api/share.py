"""The share of the event loop that the API may take: messages come first.

Rules: the API does a piece of work, then waits until the loop had `1 / SHARE` times as long for
others. That holds for all requests together: they queue for their turn, first come first served.
Work that may be long calls `breathe` after each row, so that no piece lasts much longer than
`PIECE_S`. What a request costs is measured, not guessed: `metered` counts the time between two
waits.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from time import perf_counter
from typing import Any, Final, TypeVar

SHARE: Final = 0.15
"""Of the loop's time, at most, while requests wait."""
PIECE_S: Final = 0.0005
"""How long a piece of a long answer lasts before others have their turn."""

T = TypeVar("T")


class LoopShare:
    """The account of one process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free_at = 0.0
        """When the next piece may begin."""
        self._began = 0.0
        """When the piece that runs began; only one runs at a time."""
        self.spent_s = 0.0
        """What all pieces took, for the metrics."""
        self.pieces = 0

    async def turn(self) -> None:
        """Wait until a piece may begin."""
        async with self._lock:
            wait_s = self._free_at - perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
        self._began = perf_counter()

    async def breathe(self) -> None:
        """Let others have their turn, if this piece was long enough."""
        if perf_counter() - self._began >= PIECE_S:
            await self.turn()

    @types.coroutine
    def metered(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run work, and count what it takes of the loop."""
        step, said = work.send, None
        while True:
            self._began = began = perf_counter()
            try:
                waits_for = step(said)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self._pay(perf_counter() - began)
            step = work.send
            try:
                said = yield waits_for
            except BaseException as error:  # noqa: BLE001  the work itself answers to it
                step, said = work.throw, error

    def _pay(self, cost_s: float) -> None:
        self.spent_s += cost_s
        self.pieces += 1
        now = perf_counter()
        self._free_at = max(self._free_at, now) + cost_s * (1 / SHARE - 1)
