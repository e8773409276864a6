"""From the table of operations to routes: decode, check the role, call, encode.

Rules: a path is split before it is decoded, since names hold slashes (`%2F`). A body is bounded
before it is read. What does not fit its declaration is refused with the place that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from onelog.admin.api.auditing import RequestNote, noted, peer_host
from onelog.admin.api.declaring import (
    NOTHING,
    PREFIX,
    AnyEvents,
    AnyOperation,
    ApiCall,
    Caller,
    EventStream,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.errors import answer
from onelog.admin.api.gatekeeper import Gatekeeper
from onelog.admin.bodies import body_bound, bounded_body, too_long
from onelog.admin.contract import ErrorAnswer, ErrorBody
from onelog.base.errors import InvalidRequest, MessageTooLarge, NotFound

BODY_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes of one request's body."""
BODY_BOUND: Final = body_bound(
    BODY_BYTES_MAX,
    "413 Content Too Large",
    ErrorAnswer(error=ErrorBody(code="too_large", message=too_long(BODY_BYTES_MAX))),
)
BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class ApiRouter:
    """Makes routes of operations."""

    def __init__(self, desk: AdminDesk, gatekeeper: Gatekeeper) -> None:
        self._desk = desk
        self._gatekeeper = gatekeeper

    def routes(
        self, operations: Iterable[AnyOperation], events: Iterable[AnyEvents]
    ) -> list[Route]:
        """One route per path: a path that exists answers 405 to methods that it does not have."""
        by_path: dict[str, dict[str, AnyOperation | AnyEvents]] = {}
        for row in operations:
            by_path.setdefault(row.path, {})[row.method] = row
        for stream in events:
            by_path.setdefault(stream.path, {})["GET"] = stream
        routes = [self._route(path, methods) for path, methods in by_path.items()]
        # The more a path says by itself, the earlier it is asked.
        routes.sort(key=lambda route: [part.startswith("{") for part in route.path.split("/")])
        return routes

    def _route(self, path: str, methods: dict[str, AnyOperation | AnyEvents]) -> Route:
        async def respond(request: Request) -> Response:
            row = methods["GET" if request.method == "HEAD" else request.method]
            caller, credentials = await self._gatekeeper.admit(request, row.role)
            await self._desk.share.breathe()
            if isinstance(row, EventStream):
                caller.need(row.role, f"{request.method} {request.scope['path']}")
                return await self._stream(request, row, caller)
            with noted(self._desk, row, request, caller) as note:
                return await self._call(request, row, caller, credentials, note)

        return Route(f"{PREFIX}{path}", respond, methods=list(methods))

    async def _call(
        self,
        request: Request,
        row: AnyOperation,
        caller: Caller,
        credentials: str,
        note: RequestNote,
    ) -> Response:
        caller.need(row.role, f"{request.method} {request.scope['path']}")
        note.names = _names(request)
        note.query = _query(request, row.query)
        note.body = await _body(request, row.body)
        call: ApiCall[Any, Any] = ApiCall(
            note.names,
            note.query,
            note.body,
            caller,
            peer_host(request),
            request.scope["scheme"] == "https",
            credentials=credentials,
        )
        result = note.made = await row.handler(call)
        await self._desk.share.breathe()
        response = answer(result, row.status) if row.status != 204 else Response(status_code=204)
        response.headers.update(call.headers)
        return response

    async def _stream(self, request: Request, row: AnyEvents, caller: Caller) -> Response:
        call: ApiCall[Any, None] = ApiCall(
            _names(request),
            _query(request, row.query),
            None,
            caller,
            peer_host(request),
            request.scope["scheme"] == "https",
            recheck=lambda: self._gatekeeper.identify(request, row.role)[0],
        )
        source: AsyncIterator[bytes] = await row.handler(call)
        return StreamingResponse(
            source,
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )


def _names(request: Request) -> dict[str, str]:
    try:
        return {name: unquote(text, errors="strict") for name, text in request.path_params.items()}
    except UnicodeDecodeError:
        raise NotFound("no name is like that: names are UTF-8") from None


def _query(request: Request, kind: type[Any]) -> Any:
    given = request.query_params
    for name in given:
        if len(given.getlist(name)) > 1:
            raise InvalidRequest(f"the query parameter {name[:40]!r} was given more than once")
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__) or "none"
        raise InvalidRequest(
            f"the query does not fit: {error}; {request.scope['path']} takes: {known}"
        ) from None


async def _body(request: Request, kind: type[Any]) -> Any:
    if kind is NOTHING:
        return None
    data = await bounded_body(
        request, BODY_BYTES_MAX, too_large=MessageTooLarge, cut=InvalidRequest
    )
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"the body does not fit: {error}; GET {PREFIX}/openapi.json says what it has to be"
        ) from None
