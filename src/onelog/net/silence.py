"""Silence: whether a peer still speaks, seen without a timer per packet.

Rule: a read sets a flag. A look reads and clears the flag, a few times per interval. A peer is
silent when so many looks in a row found nothing. A peer that we do not read cannot be heard, and
does not count as silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onelog.net.deadline import Deadline


class Hearing(Protocol):
    """Where the flag is: what takes the reads of one connection."""

    heard: bool


class SilenceWatch:
    """The watch over one connection; the connection's timer holds it."""

    __slots__ = (
        "_deadline",
        "_hearing",
        "_is_reading",
        "_look_s",
        "_looks",
        "_looks_left",
        "_on_look",
        "_on_silent",
    )

    def __init__(
        self,
        deadline: Deadline,
        hearing: Hearing,
        is_reading: Callable[[], bool],
        on_silent: Callable[[], None],
        on_look: Callable[[], None] | None = None,
    ) -> None:
        self._deadline = deadline
        self._hearing = hearing
        self._is_reading = is_reading
        self._on_silent = on_silent
        self._on_look = on_look
        self._look_s = 0.0
        self._looks = self._looks_left = 0

    def start(self, look_s: float, looks: int) -> None:
        """Look every `look_s` seconds; `looks` looks in a row that hear nothing are silence."""
        self._look_s = look_s
        self._looks = self._looks_left = looks
        self._hearing.heard = False
        self._deadline.start(look_s, self._look)

    def _look(self) -> None:
        heard = self._hearing.heard or not self._is_reading()
        self._hearing.heard = False
        self._looks_left = self._looks if heard else self._looks_left - 1
        if not self._looks_left:
            self._on_silent()
            return
        self._deadline.start(self._look_s, self._look)
        if self._on_look is not None:
            self._on_look()
