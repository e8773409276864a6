"""Paths of users and their permissions.

Rules: users are those of every protocol. Only administrators make, change and delete users;
everybody may change the own password. There are no permissions yet: every user may do everything
else, so that is what is shown, and a permission that would say less is refused. No hash of a
password is ever shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.rabbitmq.desk import Desk, Table, who_asks
from onelog.admin.rabbitmq.listing import answer, many, one
from onelog.admin.rabbitmq.requests import BadRequest, json_body, need, part
from onelog.base.errors import NotAuthorized, NotFound
from onelog.security.users import Users

Row = dict[str, Any]

EVERYTHING: Final = ".*"
RIGHTS: Final = ("configure", "write", "read")
_NOT_KEPT: Final = (
    "permissions are not kept here yet: every user may do everything, so configure, write and read"
    f" have to be {EVERYTHING}"
)


ADMINISTRATOR: Final = "administrator"


def tags_of(is_administrator: bool) -> list[str]:
    """What RabbitMQ calls who may do what here."""
    return [ADMINISTRATOR if is_administrator else "management"]


def wants_administrator(tags: Any) -> bool:
    """Whether the tags of a user, as text or as a list, make it one."""
    found = tags.split(",") if isinstance(tags, str) else tags
    return isinstance(found, list) and ADMINISTRATOR in [str(tag).strip() for tag in found]


def need_administrator(desk: Desk, request: Request) -> None:
    """Refuse who may not change other users. Raises NotAuthorized."""
    if not desk.authenticator.is_administrator(who_asks(request).user):
        raise NotAuthorized("only an administrator may do that")


def user_row(name: str, is_administrator: bool) -> Row:
    """A user as RabbitMQ shows one."""
    return {
        "name": name,
        "password_hash": "",
        "hashing_algorithm": "argon2id",
        "tags": tags_of(is_administrator),
        "limits": {},
    }


def permission_row(user: str, vhost: str) -> Row:
    """What a user may do in a virtual host: everything."""
    return {"user": user, "vhost": vhost, **dict.fromkeys(RIGHTS, EVERYTHING)}


def check_permission(row: Row) -> None:
    """Refuse a permission that would have to be held back from somebody. Raises BadRequest."""
    if any(row.get(name) != EVERYTHING for name in RIGHTS):
        raise BadRequest(_NOT_KEPT)


class UserPaths:
    """Handlers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def table(self) -> Table:
        """The paths, and the function for each."""
        return {
            "/whoami": {"GET": self.whoami},
            "/users": {"GET": self.users},
            "/users/without-permissions": {"GET": self.nobody},
            "/users/bulk-delete": {"POST": self.delete_many},
            "/users/{user}": {"GET": self.user, "PUT": self.make, "DELETE": self.delete},
            "/users/{user}/permissions": {"GET": self.permissions},
            "/users/{user}/topic-permissions": {"GET": self.nobody},
            "/vhosts/{vhost}/permissions": {"GET": self.permissions},
            "/vhosts/{vhost}/topic-permissions": {"GET": self.nobody},
            "/permissions": {"GET": self.permissions},
            "/permissions/{vhost}/{user}": {
                "GET": self.permission,
                "PUT": self.allow,
                "DELETE": self.forbid,
            },
        }

    @property
    def _users(self) -> Users:
        return self._desk.authenticator.users

    async def whoami(self, request: Request) -> Response:
        """Who asks."""
        who = who_asks(request)
        is_administrator = self._desk.authenticator.is_administrator(who.user)
        return one(request, {"name": who.name, "tags": tags_of(is_administrator)})

    async def _names(self) -> list[str]:
        return [row.name for row in await self._users.infos()]

    def _known(self, name: str) -> str:
        if not self._desk.authenticator.knows(name):
            raise NotFound(f"there is no user {name!r}")
        return name

    async def users(self, request: Request) -> Response:
        """Every user."""
        rows = await self._users.infos()
        return await many(request, (user_row(row.name, row.administrator) for row in rows))

    async def user(self, request: Request) -> Response:
        """One user."""
        name = self._known(part(request, "user"))
        return one(request, user_row(name, self._desk.authenticator.is_administrator(name)))

    async def make(self, request: Request) -> Response:
        """Make a user, or give it another password."""
        body = await json_body(request)
        if "tags" not in body:
            raise BadRequest("tags_not_present")
        password = body.get("password")
        if not isinstance(password, str):
            raise BadRequest(
                "a password is needed: hashes that RabbitMQ made cannot be checked here"
            )
        name = part(request, "user")
        authenticator = self._desk.authenticator
        asker = who_asks(request).user
        administrator = wants_administrator(body["tags"])
        if asker == name and not authenticator.is_administrator(asker):
            await self._users.set_password(name, password)
            return Response(status_code=204)
        need_administrator(self._desk, request)
        if authenticator.knows(name):
            await self._users.set_password(name, password, administrator=administrator)
            return Response(status_code=204)
        await self._users.add(name, password, administrator=administrator)
        return Response(status_code=201)

    async def delete(self, request: Request) -> Response:
        """Forget a user."""
        need_administrator(self._desk, request)
        await self._users.remove(part(request, "user"))
        return Response(status_code=204)

    async def delete_many(self, request: Request) -> Response:
        """Forget several users; one that is not there is fine."""
        need_administrator(self._desk, request)
        body = await json_body(request)
        need(body, "users")
        names = body["users"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadRequest("not_strings", "users")
        for name in names:
            if self._desk.authenticator.knows(name):
                await self._users.remove(name)
        return Response(status_code=204)

    # -- permissions

    async def permissions(self, request: Request) -> Response:
        """Who may do what where."""
        params = request.path_params
        users = [self._known(part(request, "user"))] if "user" in params else await self._names()
        amqp = self._desk.amqp
        hosts = amqp.vhost_names()
        if "vhost" in params:
            hosts = [amqp.known_vhost(part(request, "vhost"))]
        return await many(request, _permissions(users, hosts))

    async def permission(self, request: Request) -> Response:
        """What a user may do in a virtual host."""
        vhost = self._desk.amqp.known_vhost(part(request, "vhost"))
        return one(request, permission_row(self._known(part(request, "user")), vhost))

    async def allow(self, request: Request) -> Response:
        """Allow a user everything, which it may anyway."""
        body = await json_body(request)
        need(body, *RIGHTS)
        try:
            self._desk.amqp.known_vhost(part(request, "vhost"))
            self._known(part(request, "user"))
        except NotFound:
            raise BadRequest("vhost_or_user_not_found") from None
        check_permission(body)
        return Response(status_code=204)

    async def forbid(self, _request: Request) -> Response:
        """What every user may cannot be taken from one."""
        raise BadRequest(_NOT_KEPT)

    async def nobody(self, _request: Request) -> Response:
        """There are none."""
        return answer([])


def _permissions(users: list[str], vhosts: list[str]) -> Iterator[Row]:
    return (permission_row(user, vhost) for user in users for vhost in vhosts)
