"""The tick, interpreted: what was staged in a pass is written at its end.

Rules:
- A tick first takes all staged records together with the calls that wait for them, then it writes,
  in the order in which it took them. So a tick may come at any time, also within another one.
- `writing` writes every batch and answers every call. The compiled kernel does so itself for a
  batch that needs no look (`ends.py`), and for acknowledgements of MQTT and confirms of AMQP.
- Nothing that raises keeps the next batch from being written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from onelog.kernel.pure.build import BatchBuilder
    from onelog.kernel.pure.stage import Stage


class Writes(Protocol):
    """The long way of a batch. None of these may raise."""

    under_way: dict[Any, None]
    """Writes that began and are not answered. Each has a list `rows` of the calls that wait."""

    def write(self, stage: Stage, builder: BatchBuilder, count: int, rows: list[Any]) -> None:
        """Give records to the outlet of their stage."""

    def answer(self, stage: Stage, base: int, rows: list[Any]) -> None:
        """Records are visible from offset `base` on: tell the calls that wait for them."""

    def failed(self, rows: list[Any], error: Exception) -> None:
        """Records could not be written: tell the calls that wait for them."""

    def call_raised(self, call: Any, error: Exception) -> None:
        """A call raised when it was told."""

    def sync_raised(self, place: str, error: Exception) -> None:
        """The sync of a partition could not be asked for."""

    def listener_raised(self, error: Exception) -> None:
        """A listener of the tick raised."""


class Ticker:
    """Writes what is staged at the end of a pass."""

    __slots__ = ("_call_soon", "_taken", "_ticking", "_writing", "dirty", "messages", "on_tick",
                 "ticks")  # fmt: skip

    def __init__(
        self, dirty: list[Stage], call_soon: Callable[[Callable[[], None]], Any], writing: Writes
    ) -> None:
        self.dirty = dirty
        self.on_tick: list[Callable[[list[Stage]], None]] = []
        """Called with the dirty stages before a tick takes the records: code that staged some
        itself registers the calls that wait for them."""
        self._call_soon = call_soon
        self._writing = writing
        self._taken: deque[tuple[Stage, BatchBuilder, int, list[Any]]] = deque()
        """Records that ticks took and have not written yet."""
        self._ticking = False
        self.messages = 0
        """Messages that took the short way."""
        self.ticks = 0

    def tick_soon(self) -> None:
        """Make sure that staged records are written at the end of this pass."""
        if self.dirty and not self._ticking:
            self._ticking = True
            self._call_soon(self.tick)

    def tick(self) -> None:
        """Write every dirty partition: one batch, one append each."""
        if not self.dirty:
            self._ticking = False
            return
        self.ticks += 1
        self._ticking = True
        for listener in self.on_tick:
            try:
                listener(self.dirty)
            except Exception as error:  # noqa: BLE001 - what is staged is written nevertheless
                self._writing.listener_raised(error)
        self._ticking = False
        for stage in self.dirty:
            outlet, count = stage.owner, stage.builder.count
            self._taken.append((stage, stage.take(), count, outlet.rows))
            outlet.rows = []
        self.dirty.clear()
        self.write_all()

    def write_all(self) -> None:
        """Write what ticks took, also an outer one: a write may wake a publisher that ticks."""
        while self._taken:
            self._writing.write(*self._taken.popleft())
