"""The page that a person sees whose login at the identity provider failed.

Rules: it says what happened and what to do, and leads to both ways to log in. Programs get JSON, as
from every other path. The page runs no script, and loads nothing. Words of others are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.api.errors import on_own_error
from onelog.admin.console import HOME
from onelog.base.errors import OnelogError

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 12vh auto 0; max-width: 34rem;
  padding: 0 1.25rem; }
h1 { font-size: 1.4rem; }
.why { border-left: 3px solid #c2410c; overflow-wrap: anywhere; padding-left: .75rem; }
"""
_DIGEST: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_KEPT: Final = ("retry-after",)
"""Headers of the answer for programs that the page has, too."""
_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>OneLog: the login failed</title>
<style>{style}</style>
<h1>The login did not work</h1>
<p class="why">{why}</p>
<p><a href="{again}">Log in at the identity provider again</a>, or
<a href="{home}">go to the console</a> to log in with a user and a password.</p>
<p>If it goes on like this, ask an administrator of this broker: each attempt is in its audit trail,
and <code>/health</code> says whether the broker reaches the identity provider.</p>
</html>
"""


async def login_failure(request: Request, error: OnelogError, again: str) -> Response:
    """The answer to a login that failed; `again` is where the next one begins."""
    plain = await on_own_error(request, error)
    if "text/html" not in request.headers.get("accept", ""):
        return plain
    said = str(error)
    words = {
        "style": _STYLE,
        "why": html.escape(said[:1].upper() + said[1:] + "."),
        "again": html.escape(again),
        "home": HOME,
    }
    headers = {**_HEADERS, **{name: plain.headers[name] for name in _KEPT if name in plain.headers}}
    return Response(
        _PAGE.format(**words), plain.status_code, media_type="text/html", headers=headers
    )
