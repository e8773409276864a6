"""What the handlers share: AMQP once it is open, who asks, what the process says of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onelog.admin.api.auditing import action_of, peer_host
from onelog.admin.contract import ServerInfo
from onelog.admin.rabbitmq.contract import Amqp
from onelog.admin.rabbitmq.requests import Who, claimed_name, log_in
from onelog.base.errors import NotAuthenticated, Unavailable
from onelog.broker import AuditEvent, note_failed_login, outcome_of
from onelog.observe import Health, Troubles
from onelog.security.authenticator import Authenticator
from onelog.security.roles import AdminRole

Handler = Callable[[Request], Awaitable[Response]]
Table = Mapping[str, Mapping[str, Handler]]
"""Path → method → what answers it."""

DOOR: Final = "management"
_OPEN_PATHS: Final = ("/whoami", "/exchanges/{vhost}/{name}/publish")
"""Served to everybody who is let in. A publish asks for its own right."""


class Desk:
    """Set `open` once AMQP is served, and `close` before it stops."""

    def __init__(self, health: Health, info: Callable[[], ServerInfo], troubles: Troubles) -> None:
        self.health = health
        self.info = info
        self.troubles = troubles
        self._amqp: Amqp | None = None
        self._authenticator: Authenticator | None = None

    def open(self, amqp: Amqp, authenticator: Authenticator) -> None:
        """AMQP is served."""
        self._amqp, self._authenticator = amqp, authenticator

    def close(self) -> None:
        """AMQP is about to stop."""
        self._amqp = None

    @property
    def amqp(self) -> Amqp:
        """AMQP. Raises Unavailable."""
        if self._amqp is None:
            raise Unavailable("the broker is still starting or already stopping; ask again soon")
        return self._amqp

    @property
    def authenticator(self) -> Authenticator:
        """Who knows the users. Raises Unavailable."""
        if self._authenticator is None:
            raise Unavailable("the broker is still starting; ask again soon")
        return self._authenticator

    def is_administrator(self, who: Who) -> bool:
        """Whether somebody may change users: an administrator here, or by its token."""
        known = self.authenticator.is_administrator(who.user)
        return known or who.identity.role is AdminRole.ADMIN

    def routes(self, table: Table) -> list[Route]:
        """Routes that ask who it is, then do what the table says."""
        return [self._route(path, methods) for path, methods in table.items()]

    def _route(self, path: str, methods: Mapping[str, Handler]) -> Route:
        async def answer(request: Request) -> Response:
            who = request.state.who = await self._log_in(request)
            try:
                if path not in _OPEN_PATHS:
                    by_token = who.identity.role is AdminRole.ADMIN
                    self.amqp.check_administrator(who.principal, by_token=by_token)
                found = await methods["GET" if request.method == "HEAD" else request.method](
                    request
                )
            except BaseException as error:
                self._note(request, path, who, error)
                raise
            self._note(request, path, who, None)
            return found

        return Route(f"/api{path}", answer, methods=list(methods))

    async def _log_in(self, request: Request) -> Who:
        try:
            return await log_in(request, self.authenticator)
        except NotAuthenticated as error:
            if self._amqp is not None:
                audit, name = self._amqp.audit, claimed_name(request)
                note_failed_login(audit, DOOR, peer_host(request), name, error)
            raise

    def _note(self, request: Request, path: str, who: Who, error: BaseException | None) -> None:
        """Leave one record of a request that may change something, unless it is of messages."""
        if request.method in ("GET", "HEAD") or path in _OPEN_PATHS or self._amqp is None:
            return
        outcome, kind, reason = outcome_of(error)
        names = [unquote(text) for text in request.path_params.values()]
        self._amqp.audit.write(
            AuditEvent(
                door=DOOR,
                actor=who.user,
                address=peer_host(request),
                action=action_of(request.method, path),
                resource="/".join(names),
                outcome=outcome,
                error=kind,
                reason=reason,
            )
        )


def who_asks(request: Request) -> Who:
    """Who sent a request that a route of the desk answers."""
    found = request.state.who
    assert isinstance(found, Who)
    return found
