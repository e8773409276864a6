"""Keep-alive: whether the peer still speaks, seen without a timer per packet.

Rule: the kernel sets a flag when anything comes; a few looks per keep-alive read and clear it. A
peer is silent when all the looks of one and a half times its keep-alive found nothing
(MQTT5 3.1.2-22). Whom we do not read cannot be heard, and is not silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from onelog.kernel import MqttInput

LOOKS: Final = 4
"""How often one looks whether a peer is silent before its keep-alive is over."""


class KeepAlive:
    """The watch over one connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        came_in: MqttInput,
        is_reading: Callable[[], bool],
        on_silent: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._input = came_in
        self._is_reading = is_reading
        self._on_silent = on_silent
        self._look_s = 0.0
        self._looks_left = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Expect a packet at least this often; 0: whenever."""
        self.stop()
        if seconds:
            self._look_s = seconds * 1.5 / LOOKS
            self._looks_left = LOOKS
            self._input.heard = False
            self._timer = self._loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        heard = self._input.heard or not self._is_reading()
        self._looks_left = LOOKS if heard else self._looks_left - 1
        self._input.heard = False
        if self._looks_left:
            self._timer = self._loop.call_later(self._look_s, self._look)
        else:
            self._on_silent()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def let_go(self) -> None:
        """The connection is gone: hold nothing of it."""
        self.stop()
        self._is_reading, self._on_silent = bool, _nothing


def _nothing() -> None:
    pass
