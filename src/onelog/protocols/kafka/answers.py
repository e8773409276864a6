"""The slot of an answer: answers leave a connection in the order of their requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer
    from onelog.protocols.kafka.connection import Connection

    Pieces = Sequence[Buffer]

_INT32_MAX: Final = 2**31 - 1


class AnswerSlot:
    """The slot of one answer in the order of answers."""

    __slots__ = ("cancel", "connection", "is_produce", "pieces", "throttle_ms")

    def __init__(self, connection: Connection, *, is_produce: bool = False) -> None:
        self.connection = connection
        self.is_produce = is_produce
        """Whether the next produce may begin before this one is answered."""
        self.pieces: Pieces | None = None
        """The pieces to write, one after the other; None: not known yet, empty: no answer is
        sent."""
        self.throttle_ms = 0
        """For how long the client is held back after this request."""
        self.cancel: Callable[[], object] | None = None
        """Called when the connection ends before the answer is ready."""

    def delay(self, wait_s: float) -> None:
        """Tell the client that nothing of it is read for so long (KIP-219)."""
        self.throttle_ms = max(self.throttle_ms, min(_INT32_MAX, math.ceil(wait_s * 1000)))

    def finish(self, pieces: Pieces) -> None:
        """The answer is ready; no pieces: none is sent."""
        if self.pieces is None:
            self.pieces = pieces
            self.cancel = None
            self.connection.answers_ready()
