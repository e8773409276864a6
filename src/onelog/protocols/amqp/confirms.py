"""Publisher confirms of one channel.

Rules: confirms count the publishes of the channel from 1 and go out in their order, as many as
possible in one. Publishes that were written together are one run.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final

from pamqp import commands

from onelog.protocols.amqp.frames import METHOD

if TYPE_CHECKING:
    from onelog.protocols.amqp.publishing import PublishRun

UNKNOWN, ACK, NACK = 0, 1, 2
"""The outcome of a publish."""

_FRAME: Final = struct.Struct(">BHIIQBB")
_PAYLOAD_BYTES: Final = 13
_INDEX: Final = {ACK: commands.Basic.Ack.index, NACK: commands.Basic.Nack.index}
_END: Final = 0xCE


class Confirms:
    """Publishes that are not confirmed yet."""

    __slots__ = ("_runs", "first_tag", "unconfirmed")

    def __init__(self) -> None:
        self._runs: deque[PublishRun] = deque()
        self.first_tag = 1
        """The tag of the oldest publish that is not confirmed."""
        self.unconfirmed = 0

    def add(self, run: PublishRun) -> None:
        """Add publishes that are being written."""
        self._runs.append(run)
        self.unconfirmed += run.count

    def replace(self, run: PublishRun, others: list[PublishRun]) -> None:
        """A run is written in parts; the parts have as many messages as the run."""
        at = self._runs.index(run)
        self._runs.remove(run)
        for part in reversed(others):
            self._runs.insert(at, part)

    def clear(self) -> None:
        """Forget everything: no confirm is sent any more."""
        self._runs.clear()
        self.unconfirmed = 0

    def take(self, channel: int) -> bytes:
        """The confirms for known outcomes, from the oldest publish on."""
        runs, frames = self._runs, b""
        while runs and runs[0].outcome:
            outcome, count = runs[0].outcome, 0
            while runs and runs[0].outcome == outcome:
                count += runs.popleft().count
            self.first_tag += count
            self.unconfirmed -= count
            tag = self.first_tag - 1
            frames += _FRAME.pack(
                METHOD, channel, _PAYLOAD_BYTES, _INDEX[outcome], tag, count > 1, _END
            )
        return frames
