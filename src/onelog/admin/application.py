"""The ASGI application: routes, the guard in front of them, and errors as JSON.

Rules: a path is split before it is decoded. Probes answer at once; everything else waits for its
share of the loop (`api/share.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import onelog
from onelog.admin.api.declaring import PREFIX
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.errors import answer, on_bug, on_http_error, on_own_error, refuse
from onelog.admin.api.gatekeeper import Gatekeeper
from onelog.admin.api.logins import LoginSessions
from onelog.admin.api.openapi import openapi_document
from onelog.admin.api.routing import BAD_ESCAPE, ApiRouter
from onelog.admin.api.share import Paced
from onelog.admin.api.table import event_streams, operations
from onelog.admin.console import ConsoleFiles
from onelog.admin.guard import names_loopback
from onelog.admin.oidc import OidcLogin
from onelog.admin.probes import Probes
from onelog.base.clock import Clock
from onelog.base.errors import OnelogError
from onelog.observe import Registry

OPENAPI_PATH: Final = f"{PREFIX}/openapi.json"


def build_application(
    desk: AdminDesk, metrics: Registry, clock: Clock, *, listener_is_loopback: bool = True
) -> Starlette:
    """The admin application."""
    logins = LoginSessions(clock)
    gatekeeper = Gatekeeper(desk, logins, listener_is_loopback=listener_is_loopback)
    table, events = operations(desk, logins, clock), event_streams(desk, clock)
    metrics.register("api", desk.share.samples)
    application = Starlette(
        routes=[
            *Probes(desk, metrics, gatekeeper).routes(),
            *OidcLogin(desk, logins, clock).routes(),
            Route(OPENAPI_PATH, _document(openapi_document(onelog.__version__, table, events))),
            *ApiRouter(desk, gatekeeper).routes(table, events),
            *ConsoleFiles().routes(),
        ],
        middleware=[
            Middleware(Paced, share=desk.share),
            Middleware(AdminGuard, loopback_only=listener_is_loopback),
        ],
        exception_handlers={
            HTTPException: on_http_error,
            OnelogError: on_own_error,
            Exception: on_bug,
        },
    )
    application.state.troubles = desk.troubles
    return application


def document_of(desk: AdminDesk, clock: Clock) -> dict[str, Any]:
    """The OpenAPI document by itself, for programs that are built against the API."""
    table, events = operations(desk, LoginSessions(clock), clock), event_streams(desk, clock)
    return openapi_document(onelog.__version__, table, events)


def _document(body: object) -> Callable[[Request], Awaitable[Response]]:
    @cache
    def made() -> Response:
        return answer(body)  # it is large: encoded once

    async def respond(_request: Request) -> Response:
        return made()

    return respond


class AdminGuard:
    """Refuses other names of this machine where only this machine may ask, then splits the path."""

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        self._app = app
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] == "http":
            refusal = self._refusal(Request(scope), scope["raw_path"])
            if refusal is not None:
                await refusal(scope, receive, send)
                return
            path = scope["raw_path"].decode("latin-1")
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)

    def _refusal(self, request: Request, raw_path: bytes) -> Response | None:
        if self._loopback_only and not names_loopback(request.headers.get("host", "")):
            return refuse(403, "wrong_host", "the Host header must be localhost or 127.0.0.1")
        if BAD_ESCAPE.search(raw_path):
            return refuse(400, "invalid_request", "the path has a % that escapes nothing")
        return None
