"""Keep-alive: whether the peer still speaks, seen without a timer per packet.

Rule: the kernel sets a flag when anything comes; a few looks per keep-alive read and clear it. A
peer is silent when all the looks of one and a half times its keep-alive found nothing
(MQTT5 3.1.2-22). Whom we do not read cannot be heard, and is not silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onelog.kernel import MqttInput
from onelog.net.deadline import Deadline

LOOKS: Final = 4
"""How often one looks whether a peer is silent before its keep-alive is over."""


class KeepAlive:
    """The watch over one connection; the connection's timer holds it."""

    __slots__ = ("_deadline", "_input", "_is_reading", "_look_s", "_looks_left", "_on_silent")

    def __init__(
        self,
        deadline: Deadline,
        came_in: MqttInput,
        is_reading: Callable[[], bool],
        on_silent: Callable[[], None],
    ) -> None:
        self._deadline = deadline
        self._input = came_in
        self._is_reading = is_reading
        self._on_silent = on_silent
        self._look_s = 0.0
        self._looks_left = LOOKS

    def start(self, seconds: float) -> None:
        """Expect a packet at least this often."""
        self._look_s = seconds * 1.5 / LOOKS
        self._input.heard = False
        self._deadline.start(self._look_s, self._look)

    def _look(self) -> None:
        heard = self._input.heard or not self._is_reading()
        self._looks_left = LOOKS if heard else self._looks_left - 1
        self._input.heard = False
        if self._looks_left:
            self._deadline.start(self._look_s, self._look)
        else:
            self._on_silent()
