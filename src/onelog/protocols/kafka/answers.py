"""The slot of an answer: answers leave a connection in the order of their requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer
    from onelog.protocols.kafka.connection import Connection

    Pieces = Sequence[Buffer]


class AnswerSlot:
    """The slot of one answer in the order of answers."""

    __slots__ = ("cancel", "connection", "is_produce", "pieces")

    def __init__(self, connection: Connection, *, is_produce: bool = False) -> None:
        self.connection = connection
        self.is_produce = is_produce
        """Whether the next produce may begin before this one is answered."""
        self.pieces: Pieces | None = None
        """The pieces to write, one after the other; None: not known yet, empty: no answer is
        sent."""
        self.cancel: Callable[[], object] | None = None
        """Called when the connection ends before the answer is ready."""

    def finish(self, pieces: Pieces) -> None:
        """The answer is ready; no pieces: none is sent."""
        if self.pieces is None:
            self.pieces = pieces
            self.cancel = None
            self.connection.answers_ready()
