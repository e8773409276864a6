"""Who asks the API: a token, a login, or nobody, and what that is worth.

Rules: wrong credentials are refused, never taken for none. Without credentials a peer on this
machine, at a listener of this machine, may look around where `security.anonymous` lets it in. It
may do everything only while nothing says who may: no user, no token, no access rule, no identity
provider. Then the whole broker is open to this machine. From other machines nobody comes in without
a login. A change that a page of another site asks for is refused, whatever it shows.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from onelog.admin.api.auditing import note_failed_login, peer_host
from onelog.admin.api.declaring import Caller
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.logins import COOKIE, CSRF_HEADER, LoginSessions, is_same
from onelog.admin.passes import MARK as PASS_MARK
from onelog.base.errors import NotAuthenticated, NotAuthorized, QuotaExceeded
from onelog.broker import LOCAL
from onelog.security.api_tokens import MARK
from onelog.security.bans import AddressBanned
from onelog.security.identity import ANONYMOUS_NAME, Identity
from onelog.security.roles import AdminRole, greater, lesser

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OUTSIDER: Final = Caller(ANONYMOUS_NAME, AdminRole.NONE, "anonymous")
_LOG_IN: Final = (
    "log in: send `Authorization: Bearer …` with a token of `onelog token create`, or"
    " POST /api/v1/login"
)


class Gatekeeper:
    """Finds out who sent a request."""

    def __init__(
        self, desk: AdminDesk, logins: LoginSessions, *, listener_is_loopback: bool
    ) -> None:
        self._desk = desk
        self.logins = logins
        self._is_loopback = listener_is_loopback

    async def renew_keys(self, request: Request) -> None:
        """Before `identify`: the issuer of the request's token may have new keys."""
        text = _bearer(request.headers.get("authorization", ""))
        if text and not text.startswith(MARK) and self._desk.is_open:
            await self._desk.opened.authenticator.renew_keys_for(text)

    async def admit(self, request: Request, needed: AdminRole) -> tuple[Caller, str]:
        """Identify the caller. A wrong token counts against its address, and is answered late.

        Raises what `identify` raises, and QuotaExceeded for an address with too many wrong tokens.
        """
        await self.renew_keys(request)
        host = peer_host(request)
        if "authorization" not in request.headers or not self._desk.is_open or not host:
            return self.identify(request, needed)

        async def check() -> tuple[Caller, str]:
            return self.identify(request, needed)

        try:
            return await self._desk.opened.authenticator.bans.guard(host, check)
        except AddressBanned as error:
            raise QuotaExceeded(str(error)) from None

    def identify(self, request: Request, needed: AdminRole) -> tuple[Caller, str]:
        """The caller, and the cookie of its session if it showed one.

        Raises NotAuthenticated, NotAuthorized. A login that fails is noted in the audit trail, and
        so is a change whose author is not known.
        """
        try:
            return self._identify(request, needed)
        except (NotAuthenticated, NotAuthorized) as error:
            host, is_change = peer_host(request), request.method not in _SAFE
            if "authorization" in request.headers or (is_change and not self._is_banned(host)):
                note_failed_login(self._desk, host, "", error)
            raise

    def _is_banned(self, host: str) -> bool:
        if not host or not self._desk.is_open:
            return False
        return not self._desk.opened.authenticator.bans.admits(host)

    def _identify(self, request: Request, needed: AdminRole) -> tuple[Caller, str]:
        if request.method not in _SAFE:
            _refuse_other_sites(request)
        header = request.headers.get("authorization")
        if header is not None:
            return self._by_token(header), ""
        cookie = request.cookies.get(COOKIE)
        if cookie is not None:
            found = self._by_session(request, cookie, needed)
            if found is not None:
                return found, cookie
        if needed is AdminRole.NONE:
            return _OUTSIDER, ""
        if cookie is not None:
            raise NotAuthenticated("the session is over: log in again (POST /api/v1/login)")
        return self._anonymous(request), ""

    def _by_token(self, header: str) -> Caller:
        text = _bearer(header)
        if text is None:
            raise NotAuthenticated(f"only bearer tokens are taken here; {_LOG_IN}")
        opened = self._desk.opened
        if text.startswith(PASS_MARK):
            return Caller(LOCAL.name, AdminRole.ADMIN, "token", self._desk.passes.check(text))
        authenticator = opened.authenticator
        if not text.startswith(MARK) and authenticator.takes_tokens:
            identity = authenticator.token_now(text)
            role = greater(authenticator.role_of(identity.name), identity.role)
            return Caller(identity.name, role, "token", identity.expires_ms or None, identity)
        token = opened.tokens.check(text)
        role = token.role
        if token.by_provider:
            known = Identity(token.owner, "token", expires_ms=token.expires_ms, role=role)
            if not authenticator.is_current(known):
                raise NotAuthenticated(f"the token belongs to {token.owner}, who is disabled")
            return Caller(token.owner, role, "token", token.expires_ms, known)
        if token.owner:
            role = lesser(role, authenticator.role_of(token.owner, token.created_ms))
            if role is AdminRole.NONE:
                raise NotAuthenticated(
                    f"the token belongs to {token.owner}, who has no role here any more"
                )
        return Caller(token.owner or f"token {token.id}", role, "token", token.expires_ms)

    def _by_session(self, request: Request, cookie: str, needed: AdminRole) -> Caller | None:
        session = self.logins.find(cookie)
        if session is None:
            return None
        authenticator = self._desk.opened.authenticator
        name = session.identity.name
        if not authenticator.is_current(session.identity):
            self.logins.end(cookie)
            return None
        changes = request.method not in _SAFE and needed is not AdminRole.NONE
        if changes and not is_same(request.headers.get(CSRF_HEADER, ""), session.csrf):
            raise NotAuthorized(
                f"a change by a session needs the header {CSRF_HEADER} with the value `csrf` of"
                " POST /api/v1/login or GET /api/v1/session"
            )
        role = greater(authenticator.role_of(name), session.identity.role)
        return Caller(name, role, "session", session.expires_ms, session.identity)

    def without_login(self, request: Request) -> Caller | None:
        """The caller that a peer without credentials is; None: such a peer is not let in.

        Nothing is noted.
        """
        try:
            return self._anonymous(request)
        except NotAuthenticated:
            return None

    def _anonymous(self, request: Request) -> Caller:
        peer = request.client.host if request.client is not None else None
        if not self._is_loopback:
            raise NotAuthenticated(f"nobody comes in here without a login; {_LOG_IN}")
        if not self._desk.is_open:
            return Caller(ANONYMOUS_NAME, AdminRole.VIEWER, "anonymous")
        opened = self._desk.opened
        try:
            opened.authenticator.anonymous(listener_is_loopback=True, peer_host=peer)
        except NotAuthenticated:
            raise NotAuthenticated(
                f"security.anonymous lets nobody in without a login; {_LOG_IN}"
            ) from None
        is_closed = (
            opened.authenticator.has_users
            or len(opened.tokens)
            or opened.authenticator.takes_tokens
            or opened.broker.authorizer.checks_delivery
        )
        role = AdminRole.VIEWER if is_closed else AdminRole.ADMIN
        return Caller(ANONYMOUS_NAME, role, "anonymous")


def _bearer(header: str) -> str | None:
    """The token of an Authorization header; None: it has none."""
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


def _refuse_other_sites(request: Request) -> None:
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    if foreign or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise NotAuthorized(
            f"a page of {(origin or 'another site')[:100]} may not change anything here"
        )
