"""Paths of definitions: everything that can be made again elsewhere, as one file.

Rules: an export holds no secret. An import makes users that come with a password; those with only
a hash of RabbitMQ's are not made, and the log names them. It is refused as a whole when it holds a
permission that cannot be kept, or a user with a password that may not be set.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.rabbitmq.contract import API_VERSION
from onelog.admin.rabbitmq.desk import Desk, Table
from onelog.admin.rabbitmq.listing import answer
from onelog.admin.rabbitmq.permission_forms import EVERYTHING, RIGHTS, rules_of
from onelog.admin.rabbitmq.requests import BadRequest, json_body, part
from onelog.admin.rabbitmq.user_paths import (
    all_permissions,
    keep_permission,
    need_administrator,
    user_row,
    wants_administrator,
)
from onelog.base.errors import InvalidRequest, NotFound
from onelog.observe import get_logger
from onelog.security.new_passwords import check_new_password

Row = dict[str, Any]

_log = get_logger("amqp")


class DefinitionPaths:
    """Handlers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def table(self) -> Table:
        """The paths, and the function for each."""
        handlers = {"GET": self.export, "POST": self.take, "PUT": self.take}
        return {"/definitions": handlers, "/definitions/{vhost}": handlers}

    async def export(self, request: Request) -> Response:
        """Write all of it down."""
        amqp, info = self._desk.amqp, self._desk.info()
        found: Row = {"rabbit_version": API_VERSION}
        if "vhost" in request.path_params:
            try:
                return answer(found | await amqp.definitions(part(request, "vhost")))
            except NotFound:
                raise BadRequest("vhost_not_found") from None
        infos = await self._desk.authenticator.users.infos()
        users = [row.name for row in infos]
        found |= {
            "rabbitmq_version": API_VERSION,
            "product_name": "OneLog",
            "product_version": info.version,
            "users": [user_row(row.name, row.administrator) for row in infos],
            "permissions": all_permissions(self._desk, users),
            "topic_permissions": [],
            "global_parameters": [],
        }
        return answer(found | await amqp.definitions(None))

    async def take(self, request: Request) -> Response:
        """Make what a file holds."""
        body = await json_body(request, wrong="failed_to_parse_json")
        vhost = part(request, "vhost") if "vhost" in request.path_params else None
        users = _rows(body, "users")
        if not all(self._is_known(row) for row in users):  # those that are known stay as they are
            need_administrator(self._desk, request)
        permissions = _rows(body, "permissions")
        for row in permissions:
            where, user = row.get("vhost", vhost), row.get("user")
            if not isinstance(where, str) or not isinstance(user, str):
                raise BadRequest("a permission needs a user and a vhost")
            rules_of(where, user, row)
        for row in users:
            self._check_user(row)
        await self._desk.amqp.define(body, vhost)
        await self._make_users(users)
        await self._give(request, permissions, vhost)
        return Response(status_code=204)

    async def _give(self, request: Request, rows: list[Row], vhost: str | None) -> None:
        """Give users the permissions of the file; while all is open, those for less only."""
        narrow = [row for row in rows if any(row[right] != EVERYTHING for right in RIGHTS)]
        for row in rows if self._desk.amqp.access.rules or narrow else ():
            need_administrator(self._desk, request)
            await keep_permission(self._desk, str(row.get("vhost", vhost)), row["user"], row)

    def _is_known(self, row: Row) -> bool:
        name = row.get("name")
        return isinstance(name, str) and self._desk.authenticator.knows(name)

    def _check_user(self, row: Row) -> None:
        """Refuse a user who cannot be made, before anything of the file is."""
        name, password = row.get("name"), row.get("password")
        if not isinstance(name, str):
            raise BadRequest("name_not_present")
        if isinstance(password, str) and not self._is_known(row):
            try:
                check_new_password(name, password)
            except InvalidRequest as error:
                raise BadRequest(f"the user {name[:80]!r}: {error}") from None

    async def _make_users(self, rows: list[Row]) -> None:
        authenticator = self._desk.authenticator
        left_out = []
        for row in rows:
            name, password = row["name"], row.get("password")
            if authenticator.knows(name):
                continue
            if isinstance(password, str):
                administrator = wants_administrator(row.get("tags"))
                await authenticator.users.add(name, password, administrator=administrator)
            else:
                left_out.append(name)
        if left_out:
            _log.warning(
                "users of imported definitions have no password that can be checked here; make"
                " them with `onelog user add`",
                users=left_out[:100],
            )


def _rows(body: Row, name: str) -> list[Row]:
    found = body.get(name, [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise BadRequest("not_a_list_of_objects", name)
    return found
