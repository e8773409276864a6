"""What a fenced producer is told: older versions of a request lack the error for it."""

from __future__ import annotations

from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.request import Request


def as_known_to(request: Request, error: KafkaError, fenced_from: int) -> KafkaError:
    """The error as clients of the request's version know it."""
    if error.code is ErrorCode.producer_fenced and request.version < fenced_from:
        return KafkaError(ErrorCode.invalid_producer_epoch, str(error))
    return error
