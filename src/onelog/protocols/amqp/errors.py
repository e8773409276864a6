"""AMQP's own error, and the total table from the house's errors to AMQP reply codes.

Rules: every class of the error tree and of the queues' errors has a row; a class without one fails
a test. A *hard* error ends the connection, a soft one only the channel (AMQP 0-9-1 1.1, RabbitMQ
where it differs).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from onelog.base import errors
from onelog.queues import errors as of_queues


class Reply(IntEnum):
    """Reply codes."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


BUG: Final = "amqp-connection"
"""Incidents: an error of the broker itself ended a connection."""
HARD: Final = frozenset(
    {
        Reply.CONNECTION_FORCED,
        Reply.INVALID_PATH,
        Reply.FRAME_ERROR,
        Reply.SYNTAX_ERROR,
        Reply.COMMAND_INVALID,
        Reply.CHANNEL_ERROR,
        Reply.UNEXPECTED_FRAME,
        Reply.RESOURCE_ERROR,
        Reply.NOT_ALLOWED,
        Reply.NOT_IMPLEMENTED,
        Reply.INTERNAL_ERROR,
    }
)
"""Codes that end the connection wherever they occur."""


class AmqpError(errors.ProtocolViolation):
    """A peer's request cannot be served; `code` goes to the peer."""

    def __init__(self, code: Reply, text: str, *, hard: bool | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.hard = code in HARD if hard is None else hard
        """Whether the connection ends, and not only the channel."""

    @property
    def reply_text(self) -> str:
        """The text as RabbitMQ writes it, cut to the length of a short string.

        It may contain bytes of the peer that are not UTF-8: the peer gets a question mark for them.
        """
        text = f"{self.code.name} - {self}"
        return text.encode(errors="replace")[:255].decode(errors="ignore")


_R = Reply

CODES: Final[dict[type[errors.OnelogError], Reply]] = {
    errors.OnelogError: _R.INTERNAL_ERROR,
    errors.InvalidRequest: _R.PRECONDITION_FAILED,
    errors.InvalidName: _R.PRECONDITION_FAILED,
    errors.ConfigError: _R.PRECONDITION_FAILED,
    errors.NotFound: _R.NOT_FOUND,
    errors.StreamNotFound: _R.NOT_FOUND,
    errors.TopicNotFound: _R.NOT_FOUND,
    errors.CursorNotFound: _R.NOT_FOUND,
    errors.AlreadyExists: _R.PRECONDITION_FAILED,
    errors.Conflict: _R.PRECONDITION_FAILED,
    errors.NotAuthenticated: _R.ACCESS_REFUSED,
    errors.NotAuthorized: _R.ACCESS_REFUSED,
    errors.QuotaExceeded: _R.RESOURCE_ERROR,
    errors.LimitExceeded: _R.PRECONDITION_FAILED,
    errors.MessageTooLarge: _R.PRECONDITION_FAILED,
    errors.CorruptBatch: _R.INTERNAL_ERROR,
    errors.UnsupportedMagic: _R.INTERNAL_ERROR,
    errors.InvalidRecords: _R.INTERNAL_ERROR,
    errors.UnsupportedCodec: _R.INTERNAL_ERROR,
    errors.OffsetOutOfRange: _R.PRECONDITION_FAILED,
    errors.OutOfOrderSequence: _R.INTERNAL_ERROR,
    errors.DuplicateSequence: _R.INTERNAL_ERROR,
    errors.ProducerFenced: _R.INTERNAL_ERROR,
    errors.UnknownProducer: _R.INTERNAL_ERROR,
    errors.InvalidTxnState: _R.PRECONDITION_FAILED,
    errors.StorageError: _R.INTERNAL_ERROR,
    errors.StorageFull: _R.RESOURCE_ERROR,
    errors.PartitionStopped: _R.INTERNAL_ERROR,
    errors.PartitionCorrupt: _R.INTERNAL_ERROR,
    errors.ColdUnavailable: _R.RESOURCE_ERROR,
    errors.ColdDamaged: _R.INTERNAL_ERROR,
    errors.NotLeader: _R.CONNECTION_FORCED,
    errors.NotOwner: _R.CONNECTION_FORCED,
    errors.Fenced: _R.INTERNAL_ERROR,
    errors.StoreFenced: _R.INTERNAL_ERROR,
    errors.Unavailable: _R.RESOURCE_ERROR,
    errors.StateUnknown: _R.RESOURCE_ERROR,
    errors.StateLoading: _R.RESOURCE_ERROR,
    errors.Closed: _R.CONNECTION_FORCED,
    errors.Timeout: _R.RESOURCE_ERROR,
    errors.OutcomeUnknown: _R.RESOURCE_ERROR,
    errors.ProtocolViolation: _R.SYNTAX_ERROR,
    errors.DataDirLocked: _R.INTERNAL_ERROR,
    of_queues.NotDeclared: _R.NOT_FOUND,
    of_queues.QueueLocked: _R.RESOURCE_LOCKED,
    of_queues.NotSupported: _R.NOT_IMPLEMENTED,
    of_queues.UnknownExchangeType: _R.COMMAND_INVALID,
}


def amqp_error(error: errors.OnelogError) -> AmqpError:
    """The AMQP error for an error of the broker."""
    if isinstance(error, AmqpError):
        return error
    kind = next(kind for kind in type(error).__mro__ if kind in CODES)
    return AmqpError(CODES[kind], str(error))
