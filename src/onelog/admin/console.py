"""The web console: files that `make console` built, served from memory.

Rules: a file is found by its exact name in a table, so no path leads outside. The page runs scripts
and styles of this server only (CSP): nothing that a topic or payload holds can become code. Built
files carry their digest in their name and may be kept for ever; the page itself is asked for each
time. Nothing here is secret, so no login is needed: the API behind it asks who comes. Where nothing
was built, a page says how to build it.
"""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from onelog.admin.api.errors import refuse

FOLDER: Final = Path(__file__).with_name("static")
"""Where the build puts its files; it is part of the wheel and not of the repository."""
HOME: Final = "/console/"
INDEX: Final = "index.html"
_ASSETS: Final = "assets"
_PACKED: Final = ".gz"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "vary": "accept-encoding",
}
_KEPT: Final = "public, max-age=31536000, immutable"
_ASKED_EACH_TIME: Final = "no-cache"
_NOT_BUILT: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>OneLog</title>
<h1>The console is not built</h1>
<p>This OneLog runs from its sources, and the web console was not built yet.
Run <code>make console</code> in its folder, then start the broker again.</p>
<p>The broker itself works. Its API is at <a href="/api/v1/openapi.json">/api/v1</a>.</p>
</html>
"""


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """One file of the console."""

    data: bytes
    packed: bytes | None
    """The same by gzip."""
    media_type: str


def built_files(folder: Path = FOLDER) -> dict[str, BuiltFile]:
    """The files by their name below the folder; none: nothing was built."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == _PACKED or not path.is_file():
            continue
        packed = path.with_name(path.name + _PACKED)
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        found[path.relative_to(folder).as_posix()] = BuiltFile(
            path.read_bytes(), packed.read_bytes() if packed.is_file() else None, kind
        )
    return found


class ConsoleFiles:
    """The handlers."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = built_files(folder)

    @property
    def is_built(self) -> bool:
        """Whether there is a page to show."""
        return INDEX in self._files

    def routes(self) -> list[Route]:
        """The page, and the files that it loads."""
        below = HOME.rstrip("/")
        return [
            Route(below, self.page, methods=["GET"]),
            Route(f"{below}/{{name}}", self.file, methods=["GET"]),
            Route(f"{below}/{_ASSETS}/{{name}}", self.asset, methods=["GET"]),
        ]

    async def page(self, request: Request) -> Response:
        """The one page; it finds its way by the part of the address after #."""
        if not request.scope["raw_path"].endswith(b"/"):
            return RedirectResponse(HOME, 308, headers={"cache-control": _ASKED_EACH_TIME})
        if not self.is_built:
            headers = {**_HEADERS, "cache-control": "no-store"}
            return Response(_NOT_BUILT, 503, media_type="text/html", headers=headers)
        return self._answer(request, INDEX, _ASKED_EACH_TIME)

    async def file(self, request: Request) -> Response:
        """A file beside the page, such as its icon."""
        return self._answer(request, request.path_params["name"], _ASKED_EACH_TIME)

    async def asset(self, request: Request) -> Response:
        """A file with its digest in its name."""
        return self._answer(request, f"{_ASSETS}/{request.path_params['name']}", _KEPT)

    def _answer(self, request: Request, name: str, cache: str) -> Response:
        found = self._files.get(name)
        if found is None:
            return refuse(404, "not_found", f"the console has no such file; it begins at {HOME}")
        headers = {**_HEADERS, "cache-control": cache}
        data = found.data
        if found.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            data = found.packed
        return Response(data, media_type=found.media_type, headers=headers)
