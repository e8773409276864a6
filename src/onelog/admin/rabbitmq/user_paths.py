"""Paths of users and their permissions.

Rules: users are those of every protocol. Only administrators make, change and delete users;
everybody may change the own password. No hash of a password is ever shown. Permissions are access
rules (`permission_forms.py`). While there is no rule, every user may do everything: that is what is
shown, and a permission for everything makes no rule, because the first rule denies all else.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.rabbitmq.desk import Desk, Table, who_asks
from onelog.admin.rabbitmq.listing import answer, many, one
from onelog.admin.rabbitmq.permission_forms import (
    EVERYTHING,
    RIGHTS,
    permissions_of,
    rules_of,
)
from onelog.admin.rabbitmq.requests import BadRequest, json_body, need, part
from onelog.admin.rabbitmq.shown_permissions import replaced_by, shown_permissions
from onelog.base.errors import NotAuthorized, NotFound
from onelog.broker import Principal
from onelog.security.access.judging import selectors_of
from onelog.security.new_passwords import check_new_password
from onelog.security.users import Users

Row = dict[str, Any]

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
    if not desk.is_administrator(who_asks(request)):
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


def all_permissions(desk: Desk, users: list[str]) -> list[Row]:
    """Every permission that was given here, or everything for everybody while there is no rule."""
    amqp = desk.amqp
    if not amqp.access.rules:
        return [permission_row(user, vhost) for user in users for vhost in amqp.vhost_names()]
    return permissions_of(amqp.access.rules)


async def keep_permission(desk: Desk, vhost: str, user: str, body: Row) -> None:
    """Give a user a permission in place of the one it has. Raises BadRequest."""
    access, made = desk.amqp.access, rules_of(vhost, user, body)
    if not access.rules and all(body[right] == EVERYTHING for right in RIGHTS):
        return
    if not access.rules and not made:
        raise BadRequest(
            "there are no access rules, so every user may do everything; give others their"
            " permissions first, or disable the user"
        )
    gone = [row.id for row in replaced_by(access.rules, vhost, user)]
    await access.change(made, gone, may_open=False)


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
        return one(request, {"name": who.name, "tags": tags_of(self._desk.is_administrator(who))})

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
        asker = who_asks(request)
        administrator = wants_administrator(body["tags"])
        # A login that ends, as one by token, makes no login that lasts.
        is_lasting = asker.identity.proof == "password"
        own = asker.user == name and is_lasting and not self._desk.is_administrator(asker)
        if not own:
            need_administrator(self._desk, request)
        check_new_password(name, password)
        if own:
            await self._users.set_password(name, password)
            return Response(status_code=204)
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

    def _shown(self, users: list[str]) -> list[Row]:
        """What users may do, by whichever rules."""
        amqp, groups_of = self._desk.amqp, self._desk.authenticator.groups_of
        if not amqp.access.rules:
            return all_permissions(self._desk, users)
        known = {user: selectors_of(Principal(user, "amqp"), groups_of(user)) for user in users}
        return shown_permissions(amqp.access.rules, amqp.vhost_names(), known)

    async def permissions(self, request: Request) -> Response:
        """Who may do what where."""
        params = request.path_params
        rows = self._shown(await self._names())
        if "user" in params:
            user = self._known(part(request, "user"))
            rows = [row for row in rows if row["user"] == user]
        if "vhost" in params:
            vhost = self._desk.amqp.known_vhost(part(request, "vhost"))
            rows = [row for row in rows if row["vhost"] == vhost]
        return await many(request, iter(rows))

    async def permission(self, request: Request) -> Response:
        """What a user may do in a virtual host."""
        vhost = self._desk.amqp.known_vhost(part(request, "vhost"))
        user = self._known(part(request, "user"))
        for row in self._shown([user]):
            if (row["user"], row["vhost"]) == (user, vhost):
                return one(request, row)
        raise NotFound(f"{user} has no permission in {vhost}")

    async def allow(self, request: Request) -> Response:
        """Give a user a permission."""
        need_administrator(self._desk, request)
        body = await json_body(request)
        need(body, *RIGHTS)
        try:
            vhost = self._desk.amqp.known_vhost(part(request, "vhost"))
            user = self._known(part(request, "user"))
        except NotFound:
            raise BadRequest("vhost_or_user_not_found") from None
        await keep_permission(self._desk, vhost, user, body)
        return Response(status_code=204)

    async def forbid(self, request: Request) -> Response:
        """Take a user's permission away."""
        need_administrator(self._desk, request)
        vhost, user = part(request, "vhost"), part(request, "user")
        access = self._desk.amqp.access
        gone = [row.id for row in replaced_by(access.rules, vhost, user)]
        if not access.rules:
            raise BadRequest(
                "there are no access rules, so every user may do everything; a narrower permission"
                " makes rules"
            )
        if not gone:
            if any(row["vhost"] == vhost for row in self._shown([user])):
                raise BadRequest(
                    f"{user} has it by rules that are about others or other things, too: change"
                    " them with `onelog acl`"
                )
            raise NotFound(f"{user} has no permission in {vhost}")
        await access.change(remove=gone, may_open=False)
        return Response(status_code=204)

    async def nobody(self, _request: Request) -> Response:
        """There are none."""
        return answer([])
