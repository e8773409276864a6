"""Errors of the API: one shape, one table from our errors to statuses."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.contract import ErrorAnswer, ErrorBody
from onelog.base.errors import (
    AlreadyExists,
    Closed,
    ColdUnavailable,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    NotLeader,
    OffsetOutOfRange,
    OnelogError,
    PartitionStopped,
    QuotaExceeded,
    StorageFull,
    Timeout,
    Unavailable,
)
from onelog.security.quotas.seat import RateExceeded

BUG: Final = "http-request"
"""Incidents: a request of the admin or the management API met a fault of ours."""

STATUS: Final[dict[type[OnelogError], tuple[int, str]]] = {
    InvalidRequest: (400, "invalid_request"),
    OffsetOutOfRange: (400, "offset_out_of_range"),
    NotAuthenticated: (401, "not_authenticated"),
    NotAuthorized: (403, "not_authorized"),
    NotFound: (404, "not_found"),
    AlreadyExists: (409, "already_exists"),
    Conflict: (409, "conflict"),
    LimitExceeded: (413, "too_large"),
    NotLeader: (421, "not_here"),
    QuotaExceeded: (429, "quota_exceeded"),
    Unavailable: (503, "unavailable"),
    Closed: (503, "unavailable"),
    ColdUnavailable: (503, "unavailable"),
    PartitionStopped: (503, "partition_stopped"),
    StorageFull: (507, "storage_full"),
    Timeout: (504, "outcome_unknown"),
}
"""Our error → status and code; the nearest base class counts, and the rest are 500."""

_LATER: Final = {429: 5, 503: 1}
"""Statuses after which the same request may succeed, and the seconds to wait (`Retry-After`)."""
_HTTP_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


def answer(body: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(
        msgspec.json.encode(body),
        status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def refuse(status: int, code: str, message: str) -> Response:
    """The one shape of every failure."""
    return answer(ErrorAnswer(error=ErrorBody(code=code, message=message)), status)


async def on_http_error(request: Request, error: Exception) -> Response:
    """A path or method that does not exist."""
    assert isinstance(error, HTTPException)
    message = {
        404: f"nothing is at {request.url.path}; GET /api/v1/openapi.json lists what is",
        405: f"{request.method} is not possible at {request.url.path}; `Allow` says what is",
    }.get(error.status_code, error.detail)
    code = _HTTP_CODES.get(error.status_code, "http_error")
    response = refuse(error.status_code, code, message)
    response.headers.update(error.headers or {})
    return response


async def on_own_error(_request: Request, error: Exception) -> Response:
    """An error that OneLog raises on purpose."""
    for cls in type(error).__mro__:
        if cls in STATUS:
            status, code = STATUS[cls]
            response = refuse(status, code, str(error))
            if isinstance(error, RateExceeded):
                response.headers["retry-after"] = str(math.ceil(error.wait_s))
            elif status in _LATER:
                response.headers["retry-after"] = str(_LATER[status])
            if status == 401:
                response.headers["www-authenticate"] = 'Bearer realm="OneLog"'
            return response
    return refuse(500, "internal", str(error))


async def on_bug(request: Request, error: Exception) -> Response:
    """A fault of ours."""
    request.app.state.troubles.note(BUG, "admin", error, path=request.url.path)
    return refuse(500, "internal", "the request failed; the server's log says why")
