"""The room of one answer: what many small rows of a request may make of it.

Rules: a request of some bytes can ask for the settings, members or partitions of the same thing a
hundred thousand times. What an answer tells of is counted, and what comes when `ANSWER_BYTES_MAX`
are used up is refused beside its name (I8): the client asks for fewer at once. What an answer tells
first is told however large it is, so that nothing is too large to be seen.
"""

from __future__ import annotations

from onelog.base.limits import ANSWER_BYTES_MAX
from onelog.protocols.kafka.errors import ErrorCode, KafkaError

FULL = ErrorCode.policy_violation
"""What is told of a row that has no room."""


class AnswerRoom:
    """What is left of an answer."""

    __slots__ = ("_left_bytes",)

    def __init__(self) -> None:
        self._left_bytes = ANSWER_BYTES_MAX

    @property
    def is_left(self) -> bool:
        """Whether anything more may be told."""
        return self._left_bytes > 0

    def take(self, size_bytes: int) -> None:
        """Tell of something of this size. Raises KafkaError when there is no room any more."""
        if self._left_bytes <= 0:
            raise KafkaError(
                FULL,
                f"the answer has more than {ANSWER_BYTES_MAX} bytes already: ask for fewer at once",
            )
        self._left_bytes -= size_bytes
