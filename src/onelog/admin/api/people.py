"""Operations on who may come in: login, logout, users, tokens."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from onelog.admin.api.auditing import note_failed_login
from onelog.admin.api.declaring import (
    ADMIN,
    NOTHING,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.login_queue import LoginQueue
from onelog.admin.api.logins import LoginSessions, cookie_header
from onelog.admin.api.paging import Page, PageQuery, SearchQuery, choose, contains, full_page
from onelog.admin.oidc import provider_login
from onelog.base.errors import Conflict, NotAuthenticated, NotAuthorized, NotFound, QuotaExceeded
from onelog.security.bans import AddressBanned
from onelog.security.commands import UserInfo
from onelog.security.identity import Identity
from onelog.security.new_passwords import check_new_password
from onelog.security.roles import AdminRole
from onelog.security.token_commands import LIFETIME_MS_DEFAULT, LIFETIME_MS_MAX, TokenInfo
from onelog.security.users import GROUPS_MAX

TAG = "people"

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Password = Annotated[str, Meta(min_length=1, max_length=1024)]
Given = Literal["none", "viewer", "operator", "admin"]
Groups = Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=GROUPS_MAX)]


class LoginAsked(ApiInput, frozen=True, kw_only=True):
    """Who logs in."""

    user: Name
    password: Password


class LoginWays(msgspec.Struct, frozen=True, kw_only=True):
    """How people may log in, beside a user and a password."""

    provider_url: str | None
    """Where a browser begins a login at the identity provider; null: there is none."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asking, and what that is worth here."""

    name: str
    role: AdminRole
    proof: Literal["anonymous", "session", "token"]
    expires_ms: int | None
    csrf: str | None
    """What changes by this session have to carry in the header `X-CSRF-Token`."""
    open: bool
    """Whether everybody on this machine may do everything, because there are no users yet."""


class NewUser(ApiInput, frozen=True, kw_only=True):
    """A user to be made."""

    name: Name
    password: Password
    role: Given = "none"
    scram: bool = True
    """Whether it may log in by SCRAM."""
    groups: Groups = ()
    """What access rules may call it by, beside its name."""


class ChangedUser(ApiInput, frozen=True, kw_only=True):
    """What changes of a user; what is left out stays."""

    password: Password | None = None
    role: Given | None = None
    disabled: bool | None = None
    groups: Groups | None = None
    """All groups that it is in from now on."""


class NewToken(ApiInput, frozen=True, kw_only=True):
    """A token to be made."""

    label: Annotated[str, Meta(min_length=1, max_length=200)]
    role: Literal["viewer", "operator", "admin"]
    lifetime_ms: Annotated[int, Meta(ge=1, le=LIFETIME_MS_MAX)] = LIFETIME_MS_DEFAULT


class MadeToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token, shown this once."""

    token: str
    info: TokenInfo


class PeopleOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk, logins: LoginSessions) -> None:
        self._desk = desk
        self._logins = logins
        self._queue = LoginQueue()

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/login", role=AdminRole.NONE, tag=TAG,
                summary="How people may log in; open to everybody.", answer=LoginWays,
                handler=self.login_ways,
            ),
            ApiOperation(
                method="POST", path="/login", role=AdminRole.NONE, tag=TAG,
                summary="Log in by user and password; the answer sets a cookie.", body=LoginAsked,
                audited=False,
                answer=SessionInfo, handler=self.log_in,
            ),
            ApiOperation(
                method="POST", path="/logout", role=AdminRole.NONE, tag=TAG,
                summary="End the session of the cookie.", answer=NOTHING, status=204,
                audited=False,
                handler=self.log_out,
            ),
            ApiOperation(
                method="GET", path="/session", role=VIEWER, tag=TAG,
                summary="Who is asking.", answer=SessionInfo, handler=self.session,
            ),
            ApiOperation(
                method="GET", path="/users", role=ADMIN, tag=TAG, summary="Users by name.",
                query=SearchQuery, answer=Page[UserInfo], handler=self.users,
            ),
            ApiOperation(
                method="POST", path="/users", role=ADMIN, tag=TAG, summary="Make a user.",
                body=NewUser, answer=UserInfo, status=201, handler=self.add_user,
            ),
            ApiOperation(
                method="GET", path="/users/{user}", role=ADMIN, tag=TAG, summary="One user.",
                answer=UserInfo, handler=self.user,
            ),
            ApiOperation(
                method="PATCH", path="/users/{user}", role=ADMIN, tag=TAG,
                summary="Change a user's password, role, groups or state, all or nothing.",
                body=ChangedUser, answer=UserInfo, handler=self.change_user,
            ),
            ApiOperation(
                method="DELETE", path="/users/{user}", role=ADMIN, tag=TAG,
                summary="Remove a user; its connections end.", answer=NOTHING, status=204,
                handler=self.remove_user,
            ),
            ApiOperation(
                method="GET", path="/tokens", role=ADMIN, tag=TAG,
                summary="Tokens by their id, without their secrets.", query=PageQuery,
                answer=Page[TokenInfo], handler=self.tokens,
            ),
            ApiOperation(
                method="POST", path="/tokens", role=ADMIN, tag=TAG,
                summary="Make a token; its text is shown this once.", body=NewToken,
                answer=MadeToken, status=201, handler=self.make_token,
            ),
            ApiOperation(
                method="DELETE", path="/tokens/{token}", role=ADMIN, tag=TAG,
                summary="Make a token void.", answer=NOTHING, status=204,
                handler=self.revoke_token,
            ),
        ]  # fmt: skip
        return rows

    # -- sessions

    async def login_ways(self, _call: ApiCall[NoQuery, None]) -> LoginWays:
        """The ways to log in, for a page at which nobody is logged in yet."""
        settings = self._desk.opened.loaded.config.security.tokens
        return LoginWays(provider_url=provider_login(settings))

    async def log_in(self, call: ApiCall[NoQuery, LoginAsked]) -> SessionInfo:
        """Begin a session; a login that fails is noted in the audit trail."""
        try:
            return await self._log_in(call)
        except (NotAuthenticated, NotAuthorized) as error:
            note_failed_login(self._desk, call.peer_host, call.body.user, error)
            raise

    async def _log_in(self, call: ApiCall[NoQuery, LoginAsked]) -> SessionInfo:
        authenticator = self._desk.opened.authenticator
        user, password = call.body.user, call.body.password.encode("utf-8", "surrogatepass")

        async def check() -> Identity:
            known = authenticator.recall(user, password)
            if known is not None:
                return known
            async with self._queue.turn(call.peer_host):
                return await authenticator.password(user, password)

        try:
            identity = await authenticator.bans.guard(call.peer_host, check)
        except AddressBanned as error:
            raise QuotaExceeded(str(error)) from None
        except NotAuthenticated:
            raise NotAuthenticated("the user or the password is wrong") from None
        role = authenticator.role_of(identity.name)
        if role is AdminRole.NONE:
            raise NotAuthorized(
                f"the user {identity.name!r} has no role here; an administrator gives one:"
                f" `onelog user role {identity.name} viewer`"
            )
        cookie, session = self._logins.begin(identity)
        call.headers["set-cookie"] = cookie_header(cookie, secure=call.secure)
        return SessionInfo(
            name=identity.name,
            role=role,
            proof="session",
            expires_ms=session.expires_ms,
            csrf=session.csrf,
            open=False,
        )

    async def log_out(self, call: ApiCall[NoQuery, None]) -> None:
        """End a session."""
        self._logins.end(call.credentials)
        call.headers["set-cookie"] = cookie_header("", secure=call.secure)

    async def session(self, call: ApiCall[NoQuery, None]) -> SessionInfo:
        """Who asks."""
        caller = call.caller
        session = self._logins.find(call.credentials) if call.credentials else None
        return SessionInfo(
            name=caller.name,
            role=caller.role,
            proof=caller.proof,
            expires_ms=caller.expires_ms,
            csrf=None if session is None else session.csrf,
            open=caller.proof == "anonymous" and caller.role is AdminRole.ADMIN,
        )

    # -- users

    async def users(self, call: ApiCall[SearchQuery, None]) -> Page[UserInfo]:
        """A page of users."""
        query = call.query
        found = await choose(
            self._desk.share,
            await self._desk.opened.authenticator.users.infos(),
            query,
            lambda row: row.name,
            kind=str,
            wanted=lambda row: contains(query.search, row.name, *row.groups),
        )
        return full_page(query, found, lambda row: row.name)

    async def user(self, call: ApiCall[NoQuery, None]) -> UserInfo:
        """One user."""
        return await self._user(call.names["user"])

    async def _user(self, name: str) -> UserInfo:
        return await self._desk.opened.authenticator.users.info(name)

    async def add_user(self, call: ApiCall[NoQuery, NewUser]) -> UserInfo:
        """Make a user."""
        body, opened = call.body, self._desk.opened
        if call.caller.proof == "anonymous" and body.role != "admin":
            # Afterwards nobody could make an administrator over the API.
            raise Conflict(
                "the first user is an administrator: send the role admin, or use `onelog user add`"
            )
        check_new_password(body.name, body.password)
        await opened.authenticator.users.add(
            body.name,
            body.password,
            scram=body.scram,
            role=AdminRole(body.role),
            groups=body.groups,
        )
        return await self._user(body.name)

    async def change_user(self, call: ApiCall[NoQuery, ChangedUser]) -> UserInfo:
        """Change a user."""
        body, name, users = call.body, call.names["user"], self._desk.opened.authenticator.users
        own = name == call.caller.name and call.caller.proof == "session"
        if own and (body.disabled or body.role not in (None, call.caller.role)):
            raise Conflict("nobody takes their own role away: another administrator can")
        if body.password is not None:
            check_new_password(name, body.password)
        await users.change(
            name,
            password=body.password,
            role=None if body.role is None else AdminRole(body.role),
            disabled=body.disabled,
            groups=body.groups,
        )
        return await self._user(name)

    async def remove_user(self, call: ApiCall[NoQuery, None]) -> None:
        """Remove a user."""
        name = call.names["user"]
        if name == call.caller.name and call.caller.proof == "session":
            raise Conflict("nobody removes themselves: another administrator can")
        await self._desk.opened.authenticator.users.remove(name)

    # -- tokens

    async def tokens(self, call: ApiCall[PageQuery, None]) -> Page[TokenInfo]:
        """A page of tokens."""
        rows = self._desk.opened.tokens.infos()
        found = await choose(self._desk.share, rows, call.query, lambda row: row.id, kind=str)
        return full_page(call.query, found, lambda row: row.id)

    async def make_token(self, call: ApiCall[NoQuery, NewToken]) -> MadeToken:
        """Make a token; one that a user makes is worth what the user is worth.

        If the user's record does not give the role but the identity provider does, the token ends
        with the login.
        """
        body, caller, authenticator = call.body, call.caller, self._desk.opened.authenticator
        role = AdminRole(body.role)
        owner = caller.name if authenticator.knows(caller.name) else ""
        login_ends_ms = None
        if caller.identity is not None and not authenticator.role_of(caller.name).covers(role):
            owner, login_ends_ms = caller.name, caller.expires_ms
        text, info = await self._desk.opened.tokens.create(
            body.label, role, body.lifetime_ms, owner, login_ends_ms
        )
        return MadeToken(token=text, info=info)

    async def revoke_token(self, call: ApiCall[NoQuery, None]) -> None:
        """Make a token void."""
        token = call.names["token"]
        if not any(row.id == token for row in self._desk.opened.tokens.infos()):
            raise NotFound(f"there is no token {token[:40]!r}; GET /api/v1/tokens lists them")
        await self._desk.opened.tokens.revoke(token)
