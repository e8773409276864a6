"""The login of people at an identity provider: authorization code with PKCE (RFC 6749, RFC 7636).

Rules:
- A login that begins here has a state, a nonce and a verifier, each of 256 random bits. The state
  is also in a cookie, so that a callback counts only in the browser that began the login. It counts
  once, within `PENDING_S`; `PENDING_MAX` logins may be under way, the oldest makes room.
- What comes back is an id token: its signature, issuer, audience (`client_id`), nonce and expiry
  are checked, then the same claims as of any token say who it is. The session is as long as one by
  password.
- The provider is asked in a thread. Its answers never appear in ours.
- A login that fails is a page that says what to do (`login_page.py`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from onelog.admin.api.auditing import note_failed_login, peer_host
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.logins import LIFETIME_S, LoginSessions, cookie_header
from onelog.admin.login_page import login_failure
from onelog.base.clock import Clock
from onelog.base.errors import (
    InvalidRequest,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    OnelogError,
    Unavailable,
)
from onelog.config.model import Tokens as TokenKeys
from onelog.security.fetching import FetchError, fetch
from onelog.security.identity import Identity
from onelog.security.roles import AdminRole, greater

LOGIN_PATH: Final = "/oidc/login"
CALLBACK_PATH: Final = "/oidc/callback"
COOKIE: Final = "onelog_oidc"
PENDING_MAX: Final = 1_000
PENDING_S: Final = 600
EXCHANGES_MAX: Final = 16
"""Codes that are traded at the provider at once: those that wait included."""
_ANSWER_BYTES_MAX: Final = 128 * 1024
_PARAMETER_CHARS_MAX: Final = 4_096


def provider_login(settings: TokenKeys) -> str | None:
    """Where a browser begins a login at the identity provider; None: there is no provider.

    It is below `console_url`, where the browser also comes back: the cookie belongs to that host.
    """
    return settings.console_url.rstrip("/") + LOGIN_PATH if settings.client_id else None


@dataclass(frozen=True, slots=True)
class _Pending:
    nonce: str
    verifier: str
    ends_at: float


class _TokenAnswer(msgspec.Struct, frozen=True):
    id_token: str


class OidcLogin:
    """The two pages of the login."""

    def __init__(self, desk: AdminDesk, logins: LoginSessions, clock: Clock) -> None:
        self._desk = desk
        self._logins = logins
        self._clock = clock
        self._pending: dict[str, _Pending] = {}
        self._exchanging = 0

    def routes(self) -> list[Route]:
        """Where browsers go and come back."""
        return [
            Route(LOGIN_PATH, _with_page(self.begin), methods=["GET"]),
            Route(CALLBACK_PATH, _with_page(self.finish), methods=["GET"]),
        ]

    @property
    def _settings(self) -> TokenKeys:
        settings = self._desk.opened.loaded.config.security.tokens
        if not settings.client_id:
            raise NotFound("nobody logs in at an identity provider: set security.tokens.client_id")
        return settings

    def _redirect_uri(self) -> str:
        return self._settings.console_url.rstrip("/") + CALLBACK_PATH

    async def begin(self, request: Request) -> Response:
        """Send a browser to the provider."""
        settings, document = self._settings, self._desk.opened.authenticator.issuer_document
        if document is None or not document.authorization_endpoint or not document.token_endpoint:
            raise Unavailable(
                "the identity provider is not known yet, or has no login for people: GET /health"
                " says whether it can be reached"
            )
        now = self._clock.monotonic()
        while len(self._pending) >= PENDING_MAX:
            self._pending.pop(next(iter(self._pending)))
        state, made = (
            secrets.token_urlsafe(32),
            _Pending(secrets.token_urlsafe(32), secrets.token_urlsafe(32), now + PENDING_S),
        )
        self._pending[state] = made
        challenge = hashlib.sha256(made.verifier.encode()).digest()
        asked = urlencode(
            {
                "response_type": "code",
                "client_id": settings.client_id,
                "redirect_uri": self._redirect_uri(),
                "scope": "openid profile email",
                "state": state,
                "nonce": made.nonce,
                "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
                "code_challenge_method": "S256",
            }
        )
        endpoint = document.authorization_endpoint
        joint = "&" if "?" in endpoint else "?"
        response = RedirectResponse(f"{endpoint}{joint}{asked}", status_code=302)
        response.headers["cache-control"] = "no-store"
        response.headers["set-cookie"] = _state_cookie(state, secure=self._is_secure())
        return response

    async def finish(self, request: Request) -> Response:
        """Take a browser that comes back from the provider."""
        try:
            identity = await self._identify(request)
            self._check_role(identity)
        except (NotAuthenticated, NotAuthorized) as error:
            note_failed_login(self._desk, peer_host(request), "", error)
            raise
        lasting = msgspec.structs.replace(
            identity, expires_ms=self._clock.now_ms() + LIFETIME_S * 1000
        )
        cookie, _session = self._logins.begin(lasting)
        response = RedirectResponse("/", status_code=302)
        response.headers["cache-control"] = "no-store"
        secure = self._is_secure()
        response.headers["set-cookie"] = cookie_header(cookie, secure=secure)
        response.headers.append("set-cookie", _state_cookie("", secure=secure))
        return response

    def _check_role(self, identity: Identity) -> None:
        role = greater(self._desk.opened.authenticator.role_of(identity.name), identity.role)
        if role is AdminRole.NONE:
            raise NotAuthorized(
                f"the user {identity.name!r} has no role here; an administrator gives one:"
                " `onelog user role`, or security.tokens.roles_claim"
            )

    def _is_secure(self) -> bool:
        return self._settings.console_url.startswith("https://")

    async def _identify(self, request: Request) -> Identity:
        """Who came back. Raises NotAuthenticated, InvalidRequest, Unavailable."""
        settings = self._settings
        given = {name: request.query_params.get(name, "") for name in ("state", "code", "error")}
        if any(len(text) > _PARAMETER_CHARS_MAX for text in given.values()):
            raise InvalidRequest("a parameter of the callback is too long")
        known = self._pending.pop(given["state"], None)
        cookie = request.cookies.get(COOKIE, "")
        is_same = hmac.compare_digest(cookie.encode(), given["state"].encode())
        if known is None or not is_same or known.ends_at < self._clock.monotonic():
            raise NotAuthenticated("this login did not begin here, or took too long: begin again")
        if given["error"] or not given["code"]:
            why = "".join(char for char in given["error"][:100] if char.isprintable())
            raise NotAuthenticated(f"the identity provider refused the login: {why or 'no code'}")
        authenticator = self._desk.opened.authenticator
        token = await self._exchange(given["code"], known.verifier)
        await authenticator.renew_keys_for(token)
        identity, claims = authenticator.id_token(token, settings.client_id)
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(
            nonce.encode("utf-8", "surrogatepass"), known.nonce.encode()
        ):
            raise NotAuthenticated("the id token is not of this login: its nonce is another")
        return identity

    async def _exchange(self, code: str, verifier: str) -> str:
        """Trade the code for an id token."""
        settings = self._settings
        authenticator = self._desk.opened.authenticator
        document = authenticator.issuer_document
        assert document is not None
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri(),
            "client_id": settings.client_id,
            "code_verifier": verifier,
        }
        work = partial(
            _ask, document.token_endpoint, form, settings.client_secret_file, settings.ca_file
        )
        if self._exchanging >= EXCHANGES_MAX:
            raise Unavailable("too many logins at the identity provider are under way; try again")
        self._exchanging += 1
        try:
            data = await authenticator.ask_issuer(work)
            return msgspec.json.decode(data, type=_TokenAnswer).id_token
        except (FetchError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NotAuthenticated(
                f"the identity provider gave no id token for the code: {error}"
            ) from None
        finally:
            self._exchanging -= 1


def _with_page(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Let people see a page when a login fails."""

    async def respond(request: Request) -> Response:
        try:
            return await handler(request)
        except OnelogError as error:
            return await login_failure(request, error, LOGIN_PATH)

    return respond


def _ask(url: str, form: dict[str, str], secret_file: str, ca_file: str) -> bytes:
    """In a thread: send a form to the provider."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if secret_file:
        try:
            form = {**form, "client_secret": Path(secret_file).read_text().strip()}
        except (OSError, UnicodeDecodeError):
            raise FetchError("security.tokens.client_secret_file cannot be read") from None
    body = urlencode(form).encode()
    return fetch(url, _ANSWER_BYTES_MAX, ca_file=ca_file, body=body, headers=headers)


def _state_cookie(value: str, *, secure: bool) -> str:
    """A cookie that the browser shows when the provider sends it back; empty: take it away."""
    age = PENDING_S if value else 0
    parts: list[Any] = [f"{COOKIE}={value}", "Path=/oidc", "HttpOnly", "SameSite=Lax"]
    parts.append(f"Max-Age={age}")
    if secure:
        parts.append("Secure")
    return "; ".join(parts)
