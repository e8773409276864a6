"""The share of the event loop that the API may take: messages come first.

Rules: the API does a piece of work, then waits until the loop had `1 / SHARE` times as long for
others. That holds for all requests together: they queue for their turn, first come first served.
Work that may be long calls `breathe` after each row and after each step, so that no piece lasts
much longer than `PIECE_S`: a message that comes meanwhile waits for the end of the piece, and for
no other one. So the length of pieces, not the share, is what messages see. What a request costs is
measured, not guessed: `metered` counts the time between two waits. A probe of health does not wait
for its turn, and a scrape of metrics waits only before it begins; both are paid for by the requests
after them.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator, Iterator
from time import perf_counter
from typing import Any, Final, TypeVar

from onelog.observe import Sample

SHARE: Final = 0.05
"""Of the loop's time, at most, while requests wait."""
PIECE_S: Final = 0.00006
"""How long a piece of work lasts before it looks for its end."""
TIMER_S: Final = 0.001
"""What the loop's timers can count. Less is owed until it is as much as this."""

T = TypeVar("T")


async def _step_back() -> None:
    """Let everything that came meanwhile run first.

    After one pass of the loop the messages that came are read, and what is to be done with them
    waits behind us. So there is a second pass.
    """
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class LoopShare:
    """The account of one process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free_at = 0.0
        """When the next piece may begin."""
        self._began: float | None = None
        """When the piece that runs began; only one runs at a time. None: none runs."""
        self.spent_s = 0.0
        """What all pieces took."""
        self.pieces = 0
        self.longest_s = 0.0
        """The longest piece since the start."""

    async def turn(self) -> None:
        """Wait until a piece may begin; if one runs, it ends here."""
        self._end_piece()
        async with self._lock:
            owed_s = self._free_at - perf_counter()
            if owed_s >= TIMER_S:
                await asyncio.sleep(owed_s)
            else:
                await _step_back()

    async def breathe(self) -> None:
        """Let others have their turn, if this piece was long enough."""
        if self._is_long():
            await self.turn()

    async def pass_on(self) -> None:
        """Let others have their turn, if this piece was long enough; what it took is owed."""
        if self._is_long():
            await _step_back()

    def _is_long(self) -> bool:
        return self._began is None or perf_counter() - self._began >= PIECE_S

    @types.coroutine
    def metered(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run work, and count what it takes of the loop."""
        step, said = work.send, None
        while True:
            self._end_piece()  # of metered work that this work is a part of
            self._began = perf_counter()
            try:
                waits_for = step(said)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self._end_piece()
            step = work.send
            try:
                said = yield waits_for
            except BaseException as error:  # noqa: BLE001  the work itself answers to it
                step, said = work.throw, error

    def _end_piece(self) -> None:
        """Pay for the piece that runs, if one does."""
        if self._began is None:
            return
        now = perf_counter()
        cost_s, self._began = now - self._began, None
        self.spent_s += cost_s
        self.pieces += 1
        self.longest_s = max(self.longest_s, cost_s)
        self._free_at = max(self._free_at, now) + cost_s * (1 / SHARE - 1)

    def samples(self) -> Iterator[Sample]:
        """How much of the loop the API took."""
        about = "Seconds that the admin API took of the event loop."
        yield Sample("onelog_api_loop_seconds_total", about, "counter", self.spent_s)
        about = "Pieces of work of the admin API on the event loop."
        yield Sample("onelog_api_pieces_total", about, "counter", self.pieces)
        about = "The longest piece of work of the admin API on the event loop since the start."
        yield Sample("onelog_api_piece_max_seconds", about, "gauge", self.longest_s)
