"""From a request to its handler: the ASGI application of both HTTP APIs.

Rules: messages come first, so a request does as little as it can at once. It waits for its share
of the loop (`api/share.py`) before it begins, again when it is known who asks, and before its
answer is written. A path is found in a table, not by trying patterns one after the other. An error
that nobody knows is answered by the last of the handlers of errors, and raised again if the answer
had begun. Health probes wait for no turn; a scrape of metrics waits for one only before it begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from onelog.admin.api.share import LoopShare
from onelog.observe import Troubles

_AT_ONCE: Final = "/health/"
_SCRAPE: Final = "/metrics"

OnError = Callable[[Request, Exception], Awaitable[Response]]
Guarding = Callable[[Request, bytes], Response | None]
"""Refuses a request before its path is looked at; None: it may go on."""


class HttpPaths:
    """The routes of an application by their paths."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._whole: dict[str, Route] = {}
        """Paths without names in them."""
        self._named: dict[int, list[Route]] = {}
        """The others by the number of their parts, in their order."""
        for route in routes:
            if "{" in route.path:
                self._named.setdefault(route.path.count("/"), []).append(route)
            else:
                self._whole.setdefault(route.path, route)

    def find(self, path: str, method: str) -> tuple[Route, dict[str, Any]]:
        """The route of a path, and the names in it. Raises HTTPException."""
        found = self._whole.get(path)
        if found is not None:
            return _having(found, method), {}
        for route in self._named.get(path.count("/"), ()):
            match = route.path_regex.match(path)
            if match is not None:
                return _having(route, method), match.groupdict()
        raise HTTPException(404)


def _having(route: Route, method: str) -> Route:
    if route.methods is not None and method not in route.methods:
        raise HTTPException(405, headers={"Allow": ", ".join(sorted(route.methods))})
    return route


class Dispatcher:
    """The application."""

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        share: LoopShare,
        guard: Guarding,
        errors: Mapping[type[Exception], OnError],
        troubles: Troubles,
    ) -> None:
        self._routes = HttpPaths(routes)
        self._share = share
        self._guard = guard
        self._errors = errors
        self.state = State({"troubles": troubles})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request when its turn comes."""
        if scope["type"] != "http":
            return
        if not scope["path"].startswith(_AT_ONCE):
            await self._share.turn()
        await self._share.metered(self._respond(scope, receive, send))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_path: bytes = scope["raw_path"]
        scope["app"] = self
        # A path is split before it is decoded: names hold slashes.
        scope["path"] = raw_path.decode("latin-1").rstrip("/") or "/"
        request = Request(scope, receive, send)
        try:
            response = self._guard(request, raw_path)
            if response is None:
                route, names = self._routes.find(scope["path"], scope["method"])
                scope["path_params"] = names
                response = await route.endpoint(request)
        except Exception as error:  # noqa: BLE001 - the handlers of errors know what it is worth
            response = await self._failed(request, error)
        if scope["path"] == _SCRAPE:
            await self._share.pass_on()
        elif not scope["path"].startswith(_AT_ONCE):
            await self._share.breathe()
        await response(scope, receive, send)

    async def _failed(self, request: Request, error: Exception) -> Response:
        for cls in type(error).__mro__:
            handler = self._errors.get(cls)
            if handler is not None:
                return await handler(request, error)
        raise error
