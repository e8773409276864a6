"""The error of a fenced producer: older versions of a request do not have it."""

from __future__ import annotations

from onelog.base.errors import OnelogError
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.request import Request


def code_as_known_to(request: Request, error: OnelogError, fenced_from: int) -> ErrorCode:
    """The code of an error as clients of the request's version know it."""
    code = code_of(error)
    if code is ErrorCode.producer_fenced and request.version < fenced_from:
        return ErrorCode.invalid_producer_epoch
    return code
