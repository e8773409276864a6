"""Spreading: noting runs of records in the queues that they are for.

Rules:
- Queues with consumers, and queues that have to look at each message, note a run at once. Queues
  that only collect (no consumer would get it now) note it a moment later, or as soon as anybody
  asks: publishing to a hundred of them costs no more than to one.
- Runs that are noted later are noted in the order in which they came, and before anything else is
  noted or kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onelog.queues.queue import Queue

LATE_S: Final = 0.05
"""How long a queue that only collects may lag behind."""
LATE_MAX: Final = 1024
"""Runs that wait to be noted."""

Queues = tuple["Queue", ...]
Stumbled = Callable[["Queue", int, int, Exception], None]
"""Called when a queue raised over a run of messages: its place, the count, and the error."""


class Spread:
    """The queues of a message, by how a run is noted in them."""

    __slots__ = ("lone", "looking", "queues", "quiet", "ready")

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.quiet = tuple(queue for queue in queues if queue.is_quiet)
        """They note it later."""
        loud = [queue for queue in queues if not queue.is_quiet]
        self.ready = tuple(queue for queue in loud if queue.takes_runs)
        """They note whole runs."""
        self.looking = tuple(queue for queue in loud if not queue.takes_runs)
        """They note each message."""
        self.lone = self.ready[0] if len(self.ready) == len(queues) == 1 else None
        """The only queue, if it notes whole runs."""


class _Late:
    __slots__ = ("count", "place", "spread")

    def __init__(self, spread: Spread, place: int, count: int) -> None:
        self.spread = spread
        self.place = place
        self.count = count


class Spreader:
    """Notes runs in queues, and keeps those that are still to be noted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stumbled: Stumbled) -> None:
        self._loop = loop
        self._stumbled = stumbled
        self._known: dict[Queues, Spread] = {}
        self._late: list[_Late] = []
        self._timer: asyncio.TimerHandle | None = None

    def spread(self, queues: Queues) -> Spread:
        """The `Spread` of these queues."""
        found = self._known.get(queues)
        if found is None:
            found = self._known[queues] = Spread(queues)
        return found

    def forget(self) -> None:
        """Queues came, went or changed: waiting runs are noted first."""
        self.settle_up()
        self._known.clear()

    def later(self, spread: Spread, place: int, count: int) -> None:
        """Note a run of messages in the quiet queues, in a moment."""
        if self._late:
            last = self._late[-1]
            if last.spread is spread and last.place + last.count == place:
                last.count += count
                return
        self._late.append(_Late(spread, place, count))
        if len(self._late) >= LATE_MAX:
            self.settle_up()
        elif self._timer is None:
            self._timer = self._loop.call_later(LATE_S, self.settle_up)

    def settle_up(self) -> None:
        """Note all waiting runs now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._late:
            late, self._late = self._late, []
            for row in late:
                for queue in row.spread.quiet:
                    if not queue.is_deleted:
                        try:
                            queue.take_in_run(row.place, row.count)
                        except Exception as error:  # noqa: BLE001  the other queues get theirs
                            self._stumbled(queue, row.place, row.count, error)
