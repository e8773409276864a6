"""The endpoint table and its handlers: read-only, JSON in and out.

Rules: a handler looks at memory and answers; nothing here waits. Every failure has the same body,
`{"error": {"code", "message"}}`. A page has a bounded size, whatever the client asks for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from onelog.admin.contract import (
    PAGE_DEFAULT,
    PAGE_MAX,
    BrokerView,
    ErrorAnswer,
    ErrorBody,
    Page,
    ServerInfo,
    TroubleInfo,
)
from onelog.admin.samples import stream_samples
from onelog.base.errors import InvalidRequest, Unavailable
from onelog.observe import Health, HealthReport, Registry, Trouble, Troubles
from onelog.observe.metrics import CONTENT_TYPE

_CURSOR_CHARS_MAX: Final = 4096


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


class Endpoints:
    """The handlers, over what the process offers."""

    def __init__(
        self,
        health: Health,
        metrics: Registry,
        info: Callable[[], ServerInfo],
        troubles: Troubles,
    ) -> None:
        self.troubles = troubles
        self._health = health
        self._metrics = metrics
        self._info = info
        self.broker: BrokerView | None = None
        """Set once the broker has recovered; until then the API answers 503."""
        metrics.register("streams", lambda: stream_samples(self.broker))

    def routes(self) -> list[Route]:
        """Path → handler."""
        table: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/": self.index,
            "/health": self.health,
            "/health/live": self.live,
            "/health/ready": self.ready,
            "/metrics": self.metrics,
            "/api/v1/info": self.info,
            "/api/v1/streams": self.streams,
            "/api/v1/streams/{name}": self.stream,
            "/api/v1/streams/{name}/partitions": self.partitions,
            "/api/v1/cursors": self.cursors,
            "/api/v1/cursors/{name:path}": self.cursor,
        }
        return [Route(path, handler, methods=["GET"]) for path, handler in table.items()]

    async def index(self, _request: Request) -> Response:
        """What can be asked."""
        return answer({"name": "onelog", "paths": [route.path for route in self.routes()]})

    async def health(self, _request: Request) -> Response:
        """Every check, and what went wrong inside and was survived; 503 as for readiness."""
        report = self._health.ready()
        troubles = self.troubles.rows()
        status = "failing" if not report.ok else "degraded" if troubles else "ok"
        body = {
            "status": status,
            "checks": report.checks,
            "troubles": [_trouble_info(row) for row in troubles],
        }
        return answer(body, 200 if report.ok else 503)

    async def live(self, _request: Request) -> Response:
        """200 as long as the loop answers."""
        return _health_answer(self._health.live())

    async def ready(self, _request: Request) -> Response:
        """200 when every check passes, 503 with the reasons otherwise."""
        return _health_answer(self._health.ready())

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text."""
        return StreamingResponse(self._metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def info(self, _request: Request) -> Response:
        """Version, uptime, kernel, listeners."""
        return answer(self._info())

    async def streams(self, request: Request) -> Response:
        """A page of streams."""
        after, limit = _page_of(request)
        items = self._ready_broker().streams(after, limit + 1)
        return answer(
            Page(items=items[:limit], next_cursor=items[limit - 1].name if items[limit:] else None)
        )

    async def stream(self, request: Request) -> Response:
        """One stream."""
        return answer(self._ready_broker().stream(request.path_params["name"]))

    async def partitions(self, request: Request) -> Response:
        """A page of a stream's partitions."""
        after, limit = _page_of(request)
        if after and not (after.isascii() and after.isdigit()):
            raise InvalidRequest("cursor must be the next_cursor of a former page")
        items = self._ready_broker().partitions(
            request.path_params["name"], int(after[:9]) if after else -1, limit + 1
        )
        more = str(items[limit - 1].partition) if items[limit:] else None
        return answer(Page(items=items[:limit], next_cursor=more))

    async def cursors(self, request: Request) -> Response:
        """A page of cursors."""
        after, limit = _page_of(request)
        items = self._ready_broker().cursors(after, limit + 1)
        return answer(
            Page(items=items[:limit], next_cursor=items[limit - 1].name if items[limit:] else None)
        )

    async def cursor(self, request: Request) -> Response:
        """One cursor."""
        return answer(self._ready_broker().cursor(request.path_params["name"]))

    def _ready_broker(self) -> BrokerView:
        if self.broker is None:
            raise Unavailable("the broker is still starting or already stopping; ask again soon")
        return self.broker


def _health_answer(report: HealthReport) -> Response:
    status = "ok" if report.ok else "failing"
    return answer({"status": status, "checks": report.checks}, 200 if report.ok else 503)


def _trouble_info(row: Trouble) -> TroubleInfo:
    return TroubleInfo(
        kind=row.kind,
        place=row.place,
        error=row.error,
        count=row.count,
        first_ms=row.first_ms,
        last_ms=row.last_ms,
        standing=row.standing,
        facts=row.facts,
    )


def _page_of(request: Request) -> tuple[str, int]:
    """`?cursor=…&limit=…` → the name to go on after, and how many."""
    unknown = set(request.query_params) - {"cursor", "limit"}
    if unknown:
        raise InvalidRequest(f"unknown query parameter {min(unknown)!r}: use limit and cursor")
    after = request.query_params.get("cursor", "")
    text = request.query_params.get("limit", str(PAGE_DEFAULT))
    if len(after) > _CURSOR_CHARS_MAX:
        raise InvalidRequest("cursor must be the next_cursor of a former page")
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= PAGE_MAX):
        raise InvalidRequest(f"limit must be a number from 1 to {PAGE_MAX}, not {text[:20]!r}")
    return after, int(text)
