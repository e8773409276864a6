"""Paths beside the API: health for probes, metrics for Prometheus, the index.

Rules: they look at memory and answer at once, whatever the API is busy with. Probes need no login,
because what asks them has none: without one they say why a check fails only where a viewer needs no
login, either. The rest is for viewers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from onelog.admin.api.declaring import PREFIX, Caller
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.errors import answer
from onelog.admin.api.gatekeeper import Gatekeeper
from onelog.admin.api.overview import hidden_checks, loop_info, shown_checks, trouble_info
from onelog.admin.api.sight import Sight
from onelog.admin.console import HOME
from onelog.admin.samples import StreamSamples
from onelog.broker import AllowAll, Stream
from onelog.observe import HealthReport, Registry
from onelog.observe.metrics import CONTENT_TYPE
from onelog.security.roles import AdminRole

PATHS: Final = ("/", "/health", "/health/live", "/health/ready", "/metrics")


class Probes:
    """The handlers."""

    def __init__(self, desk: AdminDesk, metrics: Registry, gatekeeper: Gatekeeper) -> None:
        self._desk = desk
        self._metrics = metrics
        self._gatekeeper = gatekeeper
        self._samples = StreamSamples(self._streams, desk.share.pass_on)

    def routes(self) -> list[Route]:
        """Path → handler."""
        handlers = (self.index, self.health, self.live, self.ready, self.metrics)
        table: dict[str, Callable[[Request], Awaitable[Response]]] = dict(
            zip(PATHS, handlers, strict=True)
        )
        return [Route(path, handler, methods=["GET"]) for path, handler in table.items()]

    async def index(self, request: Request) -> Response:
        """Where to go on: a browser to the console, a program to the API."""
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(HOME, 303, headers={"cache-control": "no-store"})
        return answer({"name": "onelog", "api": f"{PREFIX}/openapi.json", "paths": list(PATHS)})

    async def health(self, request: Request) -> Response:
        """Every check, and what went wrong inside and was survived; 503 as for readiness."""
        sight = self._sight(await self._viewer(request))
        report = self._desk.health.ready()
        troubles = self._desk.troubles.rows()
        status = "failing" if not report.ok else "degraded" if troubles else "ok"
        body = {
            "status": status,
            "checks": shown_checks(report, sight),
            "troubles": [trouble_info(row, sight) for row in troubles],
            "loop": loop_info(self._desk),
        }
        return answer(body, 200 if report.ok else 503)

    async def live(self, _request: Request) -> Response:
        """200 as long as the loop answers."""
        return _health_answer(self._desk.health.live(), {})

    async def ready(self, request: Request) -> Response:
        """200 when every check passes, else 503; a caller who may see the reasons gets them."""
        report = self._desk.health.ready()
        caller = self._gatekeeper.without_login(request)
        if caller is None:
            return _health_answer(report, hidden_checks(report))
        return _health_answer(report, shown_checks(report, self._sight(caller)))

    async def metrics(self, request: Request) -> Response:
        """Prometheus text; streams that the caller may not see have no lines of their own."""
        sight = self._sight(await self._viewer(request))
        sees = None if sight.server else partial(self._desk.sees, sight)
        streams = {"streams": partial(self._samples, sees)}
        # Whole, not as a stream: each write of a few lines costs the loop more than making them.
        text = [part async for part in self._metrics.render(self._desk.share.pass_on, streams)]
        return Response(b"".join(text), headers={"content-type": CONTENT_TYPE})

    def _streams(self) -> list[Stream]:
        return self._desk.broker.streams.streams() if self._desk.is_open else []

    async def _viewer(self, request: Request) -> Caller:
        caller, _cookie = await self._gatekeeper.admit(request, AdminRole.VIEWER)
        caller.need(AdminRole.VIEWER, f"GET {request.scope['path']}")
        return caller

    def _sight(self, caller: Caller) -> Sight:
        """What a caller may see; before the broker is open, its rules are not known."""
        return self._desk.sight(caller) if self._desk.is_open else Sight(AllowAll(), caller)


def _health_answer(report: HealthReport, checks: dict[str, str]) -> Response:
    status = "ok" if report.ok else "failing"
    return answer({"status": status, "checks": checks}, 200 if report.ok else 503)
