"""The pass of a loop, interpreted: what one wake-up leads to is done before it ends.

Rules:
- `run` calls a function, then what the function asked for by `call_soon`, above all the tick, then
  what anybody asked for by `call_last`: the flush of written bytes. All of it is one callback of
  the loop.
- What is asked for outside of a pass, or too late in one, is the loop's: `call_soon` after the
  function has returned, `call_last` while the last calls are made. So a pass ends.
- A call that raises is reported to the loop, as a callback of its own would be. It keeps no other
  call from being made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

_passes: Final[WeakValueDictionary[int, LoopPass]] = WeakValueDictionary()
"""By the id of the loop, which a pass keeps alive."""


class LoopPass:
    """What is to be done before a wake-up of the loop ends; one for each loop (`pass_of`)."""

    __slots__ = ("__weakref__", "_calls", "_is_ending", "_is_open", "_lasts", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_open = False
        self._is_ending = False
        """Whether the function of `run` has returned."""
        self._calls: list[Callable[[], object]] = []
        self._lasts: list[Callable[[], object]] = []

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call it before the wake-up ends; if there is none, in the next pass of the loop."""
        if self._is_open and not self._is_ending:
            self._calls.append(call)
        else:
            self._loop.call_soon(call)

    def call_last(self, call: Callable[[], object]) -> None:
        """Call it behind those of `call_soon`."""
        if self._is_open:
            self._lasts.append(call)
        else:
            self._loop.call_soon(call)

    def run(self, wake_up: Callable[[], object]) -> None:
        """Call a function, and then what it asked for. Within a pass it is a plain call."""
        if self._is_open:
            wake_up()
            return
        self._is_open, self._is_ending = True, False
        try:
            wake_up()
        finally:
            self._is_ending = True
            calls, self._calls = self._calls, []
            self._make(calls)
            self._is_open = False
            calls, self._lasts = self._lasts, []
            self._make(calls)

    def _make(self, calls: list[Callable[[], object]]) -> None:
        for call in calls:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the loop reports it, as of its own calls
                self._loop.call_soon(raise_again, error)


def raise_again(error: Exception) -> None:
    """Raise what a call raised where the loop reports it."""
    raise error


def pass_of(loop: asyncio.AbstractEventLoop) -> LoopPass:
    """The pass of a loop."""
    found = _passes.get(id(loop))
    if found is None:
        found = _passes[id(loop)] = LoopPass(loop)
    return found
