"""The ASGI application of the management API: paths, the guard, errors as RabbitMQ writes them.

Rules: paths are split before they are decoded, since names hold slashes (`%2F` is the virtual host
`/`). An error is `{"error", "reason"}`. There is no page here, so what a page of another
site asks is refused.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onelog.admin.api.errors import BUG
from onelog.admin.api.share import LoopShare
from onelog.admin.dispatching import Dispatcher
from onelog.admin.guard import names_loopback
from onelog.admin.rabbitmq.broker_paths import BrokerPaths
from onelog.admin.rabbitmq.connection_paths import ConnectionPaths
from onelog.admin.rabbitmq.definition_paths import DefinitionPaths
from onelog.admin.rabbitmq.desk import Desk
from onelog.admin.rabbitmq.listing import PageError, answer
from onelog.admin.rabbitmq.requests import BadRequest
from onelog.admin.rabbitmq.topology_paths import TopologyPaths
from onelog.admin.rabbitmq.user_paths import UserPaths
from onelog.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    OnelogError,
    ProtocolViolation,
    QuotaExceeded,
    Unavailable,
)
from onelog.security.quotas.seat import RateExceeded

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_REALM: Final = {"www-authenticate": 'Basic realm="OneLog Management"'}

_STATUS: Final[dict[type[OnelogError], tuple[int, str]]] = {
    InvalidRequest: (400, "bad_request"),
    ProtocolViolation: (400, "bad_request"),
    Conflict: (400, "bad_request"),
    AlreadyExists: (400, "bad_request"),
    LimitExceeded: (400, "bad_request"),
    QuotaExceeded: (400, "bad_request"),
    RateExceeded: (429, "too_many_requests"),
    NotAuthorized: (401, "not_authorised"),
    NotAuthenticated: (401, "not_authorized"),
    NotFound: (404, "not_found"),
    Unavailable: (503, "service_unavailable"),
    OnelogError: (500, "internal_server_error"),
}
"""Our error → status and RabbitMQ's word; the nearest base class counts."""


def build_management(desk: Desk) -> Dispatcher:
    """The management application."""
    groups = (BrokerPaths, TopologyPaths, ConnectionPaths, UserPaths, DefinitionPaths)
    routes = [route for group in groups for route in desk.routes(group(desk).table())]
    # The more a path says by itself, the earlier it is asked: /users/bulk-delete is no user.
    routes.sort(key=lambda route: [part.startswith("{") for part in route.path.split("/")])

    async def index(_request: Request) -> Response:
        return answer({"name": "onelog", "paths": [route.path for route in routes]})

    return Dispatcher(
        [*routes, Route("/", index), Route("/api", index)],
        share=LoopShare(),
        guard=_refusal,
        errors={
            HTTPException: _on_http_error,
            OnelogError: _on_own_error,
            Exception: _on_bug,
        },
        troubles=desk.troubles,
    )


def refuse(status: int, error: str, reason: Any, headers: dict[str, str] | None = None) -> Response:
    """The shape of every failure."""
    return answer({"error": error, "reason": reason}, status, headers)


def _refusal(request: Request, raw_path: bytes) -> Response | None:
    """Refuse other names of this machine, pages of other sites, and bad paths."""
    if not names_loopback(request.headers.get("host", "")):
        return refuse(403, "wrong_host", "the Host header must be localhost or 127.0.0.1")
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return refuse(403, "wrong_origin", "pages of other sites may not ask here")
    if _BAD_ESCAPE.search(raw_path):
        return refuse(400, "bad_request", "bad_percent_encoding")
    return None


async def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return refuse(404, "Object Not Found", "Not Found")
    if error.status_code == 405:
        return Response(status_code=405, headers=error.headers)
    return refuse(error.status_code, "http_error", error.detail)


async def _on_own_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OnelogError)
    status, code = next(_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS)
    reason: Any = str(error)
    if isinstance(error, BadRequest):
        reason = error.reason
    elif isinstance(error, PageError):
        code = error.code
    elif isinstance(error, RateExceeded):
        return refuse(status, code, reason, {"retry-after": str(math.ceil(error.wait_s))})
    elif isinstance(error, NotAuthenticated):
        return refuse(401, code, "Login failed", _REALM)
    elif isinstance(error, NotFound) and request.method in ("GET", "HEAD", "DELETE"):
        return refuse(404, "Object Not Found", "Not Found")
    return refuse(status, code, reason)


async def _on_bug(request: Request, error: Exception) -> Response:
    request.app.state.troubles.note(BUG, "management", error, path=request.url.path)
    return refuse(500, "internal_server_error", "the request failed; the server's log says why")
