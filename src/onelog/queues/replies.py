"""Direct answers: who waits for one, by the name in the answer's address.

Rules: an answer in the log under such a name goes to the channel that waits, past every queue. It
is delivered at most once: nobody keeps it for a channel that is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from onelog.broker import Record

REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLY_PREFIX: Final = f"{REPLY_TO}."
"""The prefix of the names, as RabbitMQ has it."""


class AnswerTaker(Protocol):
    """A channel that waits for answers."""

    @property
    def name(self) -> str:
        """The name in the address of its answers."""

    def take_answer(self, name: str, record: Record) -> None:
        """An answer came."""


class Replies:
    """The channels of one virtual host that wait for answers."""

    def __init__(self) -> None:
        self._waiting: dict[str, AnswerTaker] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def find(self, name: str) -> AnswerTaker | None:
        """The channel that waits for an answer to this name."""
        return self._waiting.get(name)

    def add(self, taker: AnswerTaker) -> None:
        """Add a channel."""
        self._waiting[taker.name] = taker

    def remove(self, taker: AnswerTaker) -> None:
        """Remove a channel."""
        self._waiting.pop(taker.name, None)
