"""AMQP's publishes that wait to be confirmed, interpreted: from their stage to basic.ack.

Rules:
- Confirms count the publishes of the channel from 1 and go out in their order, as many as possible
  in one. Publishes that were written together are one run.
- All runs that became visible in a pass of the loop are confirmed together, when their queues have
  them.
- The compiled kernel lets runs that it staged wait together, one call for each stage and tick. Here
  each of them waits alone (`Publishing.staged`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from onelog.base.errors import OnelogError
    from onelog.kernel.pure.stage import Stage

UNKNOWN, ACK, NACK = 0, 1, 2
"""The outcome of a publish."""

_METHOD: Final = 1
_FRAME: Final = struct.Struct(">BHIIQBB")
_PAYLOAD_BYTES: Final = 13
_INDEX: Final = {ACK: 0x003C0050, NACK: 0x003C0078}
_END: Final = 0xCE


class ByteCount:
    """Bytes of a peer that wait, and the bound past which it is not read."""

    __slots__ = ("_bytes_max", "_pauses", "_why", "size_bytes")

    def __init__(self, pauses: Any, bytes_max: int, why: str) -> None:
        self._pauses = pauses
        self._bytes_max = bytes_max
        self._why = why
        self.size_bytes = 0

    def add(self, size_bytes: int) -> None:
        """So many more bytes wait; a negative number is taken away."""
        self.size_bytes += size_bytes
        if self.size_bytes > self._bytes_max:
            self._pauses.pause(self._why)
        elif self.size_bytes <= self._bytes_max // 2 and self._pauses.reasons:
            self._pauses.resume(self._why)


class PublishRun:
    """Publishes of a channel that are written together, and their outcome."""

    __slots__ = (
        "came_as", "count", "index", "outcome", "publishing", "results", "size_bytes",
        "stage_runs",
    )  # fmt: skip

    def __init__(
        self, publishing: Any, count: int, came_as: Any, size_bytes: int, results: Any = None
    ) -> None:
        self.publishing = publishing
        self.count = count
        self.outcome = UNKNOWN
        self.came_as = came_as
        """The messages, to try again when there is no room."""
        self.size_bytes = size_bytes
        """Bytes of memory while it is being written."""
        self.results = results
        """Where the last message was written; None: `stage_runs` knows."""
        self.index = 0
        """The index of the last message among the staged, where it waits with others."""
        self.stage_runs: StageRuns | None = None

    def finish(self, count: int, error: OnelogError | None) -> None:
        """The messages are visible, or failed with this error."""
        del count
        if error is None:
            self.publishing.turn.took(self)
        else:
            self.publishing.failed(self, error)


class Confirms:
    """Publishes that are not confirmed yet."""

    __slots__ = ("_runs", "first_tag", "unconfirmed")

    def __init__(self) -> None:
        self._runs: list[PublishRun] = []
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
        self._runs[at : at + 1] = others

    def clear(self) -> None:
        """Forget everything: no confirm is sent any more."""
        self._runs.clear()
        self.unconfirmed = 0

    def take(self, channel: int) -> bytes:
        """The confirms for known outcomes, from the oldest publish on."""
        runs, frames, at = self._runs, b"", 0
        while at < len(runs) and runs[at].outcome:
            outcome, count = runs[at].outcome, 0
            while at < len(runs) and runs[at].outcome == outcome:
                count += runs[at].count
                at += 1
            self.first_tag += count
            self.unconfirmed -= count
            tag = self.first_tag - 1
            frames += _FRAME.pack(
                _METHOD, channel, _PAYLOAD_BYTES, _INDEX[outcome], tag, count > 1, _END
            )
        del runs[:at]
        return frames


class StageRuns:
    """The call of all runs that wait for what is staged in one partition; only the compiled kernel
    makes one."""

    results: list[Any]
    """Where the message of `index` was written, if Python answered."""
    index: int
    stage: Stage | None
    """Where the tick of the kernel wrote the staged messages, the first one at `base`."""
    base: int


class PublishPass:
    """The publishes of all channels that wait together."""

    def __init__(
        self,
        call_soon: Callable[..., Any],
        tick_soon: Callable[[], None],
        refused: Mapping[Any, None],
        tell_slowly: Callable[[list[PublishRun]], None],
    ) -> None:
        del tick_soon, refused
        self._call_soon = call_soon
        self._tell_slowly = tell_slowly
        self._taken: list[PublishRun] = []
        self.is_metered = False
        """Whether staged publishes have to be counted in quotas."""

    def took(self, run: PublishRun) -> None:
        """Publishes are visible. When their queues have them, they are confirmed."""
        if not self._taken:
            self._call_soon(self.tell)
        self._taken.append(run)

    def tell(self) -> None:
        """Confirm what became visible in this pass."""
        taken, self._taken = self._taken, []
        self._tell_slowly(taken)


class PublishingEnd:
    """The publishes of one channel."""

    connection: Any
    unwritten: ByteCount
    turn: PublishPass
    number: int
    """The channel's."""
    confirms: bool
    _closed: bool
    _confirms: Confirms
    published: int
    _unwritten: int
    """Runs that are being written."""
    _waiters: list[Any]
