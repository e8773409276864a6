"""The admin application: routes, the guard in front of them, and errors as JSON.

`dispatching.py` leads from a request to its route, and says what waits for its turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import onelog
from onelog.admin.api.declaring import PREFIX
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.errors import answer, on_bug, on_http_error, on_own_error, refuse
from onelog.admin.api.gatekeeper import Gatekeeper
from onelog.admin.api.logins import LoginSessions
from onelog.admin.api.openapi import openapi_document
from onelog.admin.api.routing import BAD_ESCAPE, BODY_BOUND, ApiRouter
from onelog.admin.api.table import event_streams, operations
from onelog.admin.console import ConsoleFiles
from onelog.admin.dispatching import Dispatcher, Guarding
from onelog.admin.guard import names_loopback
from onelog.admin.oidc import OidcLogin
from onelog.admin.probes import Probes
from onelog.base.clock import Clock
from onelog.base.errors import OnelogError
from onelog.observe import Registry

OPENAPI_PATH: Final = f"{PREFIX}/openapi.json"
BODY: Final = BODY_BOUND
"""How much of a body the listener of this application takes."""


def build_application(
    desk: AdminDesk, metrics: Registry, clock: Clock, *, listener_is_loopback: bool = True
) -> Dispatcher:
    """The admin application."""
    logins = LoginSessions(clock)
    gatekeeper = Gatekeeper(desk, logins, listener_is_loopback=listener_is_loopback)
    table, events = operations(desk, logins, clock), event_streams(desk, clock)
    metrics.register("api", desk.share.samples)
    return Dispatcher(
        [
            *Probes(desk, metrics, gatekeeper).routes(),
            *OidcLogin(desk, logins, clock).routes(),
            Route(OPENAPI_PATH, _document(openapi_document(onelog.__version__, table, events))),
            *ApiRouter(desk, gatekeeper).routes(table, events),
            *ConsoleFiles().routes(),
        ],
        share=desk.share,
        guard=_guarding(loopback_only=listener_is_loopback),
        errors={
            HTTPException: on_http_error,
            OnelogError: on_own_error,
            Exception: on_bug,
        },
        troubles=desk.troubles,
    )


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


def _guarding(*, loopback_only: bool) -> Guarding:
    """Refuses other names of this machine where only this machine may ask, and bad paths."""

    def refusal(request: Request, raw_path: bytes) -> Response | None:
        if loopback_only and not names_loopback(request.headers.get("host", "")):
            return refuse(403, "wrong_host", "the Host header must be localhost or 127.0.0.1")
        if BAD_ESCAPE.search(raw_path):
            return refuse(400, "invalid_request", "the path has a % that escapes nothing")
        return None

    return refusal
