"""Direct answers: those who wait for one, by the name that the answer comes by.

Rules: an answer that lies in the log under such a name goes to the one that waits, past every
queue. It is at most once: nobody keeps it for one that is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from onelog.broker import Record

REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLY_PREFIX: Final = f"{REPLY_TO}."
"""How the names begin, as RabbitMQ has them."""


class AnswerTaker(Protocol):
    """One that waits for answers."""

    @property
    def name(self) -> str:
        """The name that its answers come by."""

    def take_answer(self, name: str, record: Record) -> None:
        """An answer came."""


class Replies:
    """Those of one virtual host that wait for answers."""

    def __init__(self) -> None:
        self._waiting: dict[str, AnswerTaker] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def find(self, name: str) -> AnswerTaker | None:
        """The one that an answer is for."""
        return self._waiting.get(name)

    def add(self, taker: AnswerTaker) -> None:
        """One more waits."""
        self._waiting[taker.name] = taker

    def remove(self, taker: AnswerTaker) -> None:
        """It waits no more."""
        self._waiting.pop(taker.name, None)
