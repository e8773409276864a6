"""The ASGI application: routes, the guard in front of them, and errors as JSON."""

from __future__ import annotations

from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onelog.admin.endpoints import Endpoints, refuse
from onelog.admin.guard import names_loopback
from onelog.base.errors import InvalidRequest, NotFound, OnelogError, Unavailable

BUG: Final = "http-request"
"""Incidents: a request of the admin or the management API met a fault of ours."""
_STATUS: dict[type[OnelogError], tuple[int, str]] = {
    NotFound: (404, "not_found"),
    InvalidRequest: (400, "invalid_request"),
    Unavailable: (503, "unavailable"),
}
"""Our error → status and code; the nearest base class counts, and the rest are 500."""


def build_application(endpoints: Endpoints) -> Starlette:
    """The admin application."""
    application = Starlette(
        routes=endpoints.routes(),
        middleware=[Middleware(LoopbackHostOnly)],
        exception_handlers={
            HTTPException: _on_http_error,
            OnelogError: _on_own_error,
            Exception: _on_bug,
        },
    )
    application.state.troubles = endpoints.troubles
    return application


class LoopbackHostOnly:
    """Refuses requests whose Host is not this machine's own name for itself.

    The API has no credentials and lives on loopback.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] == "http" and not names_loopback(Request(scope).headers.get("host", "")):
            response = refuse(403, "wrong_host", "the Host header must be localhost or 127.0.0.1")
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    message = {
        404: f"nothing is at {request.url.path}; GET / lists what is",
        405: f"{request.method} is not possible here: this API is read-only",
    }.get(error.status_code, error.detail)
    response = refuse(error.status_code, codes.get(error.status_code, "http_error"), message)
    response.headers.update(error.headers or {})
    return response


async def _on_own_error(_request: Request, error: Exception) -> Response:
    for cls in type(error).__mro__:
        if cls in _STATUS:
            status, code = _STATUS[cls]
            return refuse(status, code, str(error))
    return refuse(500, "internal", str(error))


async def _on_bug(request: Request, error: Exception) -> Response:
    request.app.state.troubles.note(BUG, "admin", error, path=request.url.path)
    return refuse(500, "internal", "the request failed; the server's log says why")
