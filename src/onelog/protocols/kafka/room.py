"""The room of one answer: a bound on what a small request can ask for.

Rules: a small request can ask for the settings, members or partitions of the same thing a hundred
thousand times. The bytes of an answer are counted, and rows after `ANSWER_BYTES_MAX` are refused by
name (I8): the client asks for fewer at once. The first row always has room, however large it is, so
that nothing is too large to be seen.
"""

from __future__ import annotations

from onelog.base.limits import ANSWER_BYTES_MAX
from onelog.protocols.kafka.errors import ErrorCode, KafkaError

FULL = ErrorCode.policy_violation
"""The error of a row that has no room."""


class AnswerRoom:
    """The bytes that are left of an answer."""

    __slots__ = ("_left_bytes",)

    def __init__(self) -> None:
        self._left_bytes = ANSWER_BYTES_MAX

    @property
    def is_left(self) -> bool:
        """Whether there is room for more."""
        return self._left_bytes > 0

    def take(self, size_bytes: int) -> None:
        """Use room for a row of this size. Raises KafkaError when there is none left."""
        if self._left_bytes <= 0:
            raise KafkaError(
                FULL,
                f"the answer has more than {ANSWER_BYTES_MAX} bytes already: ask for fewer at once",
            )
        self._left_bytes -= size_bytes
