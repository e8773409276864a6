"""Paths of connections, channels and consumers."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.rabbitmq.desk import Desk, Table
from onelog.admin.rabbitmq.listing import many, one
from onelog.admin.rabbitmq.requests import part

_REASON: Final = "Closed via management plugin"
_REASON_CHARS_MAX: Final = 200


class ConnectionPaths:
    """Handlers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def table(self) -> Table:
        """The paths, and the function for each."""
        return {
            "/connections": {"GET": self.connections},
            "/connections/username/{user}": {
                "GET": self.connections_of_user,
                "DELETE": self.close_of_user,
            },
            "/connections/{name}": {"GET": self.connection, "DELETE": self.close},
            "/connections/{name}/channels": {"GET": self.channels},
            "/vhosts/{vhost}/connections": {"GET": self.connections},
            "/vhosts/{vhost}/channels": {"GET": self.channels},
            "/channels": {"GET": self.channels},
            "/channels/{name}": {"GET": self.channel},
            "/consumers": {"GET": self.consumers},
            "/consumers/{vhost}": {"GET": self.consumers},
        }

    def _vhost(self, request: Request) -> str | None:
        """The virtual host of a list; None: all. Raises NotFound before the list begins."""
        if "vhost" not in request.path_params:
            return None
        return self._desk.amqp.known_vhost(part(request, "vhost"))

    async def connections(self, request: Request) -> Response:
        """Connections."""
        return await many(request, self._desk.amqp.connections(self._vhost(request)), paged=True)

    async def connection(self, request: Request) -> Response:
        """One connection."""
        return one(request, self._desk.amqp.connection(part(request, "name")))

    async def close(self, request: Request) -> Response:
        """Tell a connection to go, and why."""
        self._desk.amqp.close_connection(part(request, "name"), _reason(request))
        return Response(status_code=204)

    async def connections_of_user(self, request: Request) -> Response:
        """Connections of a user."""
        amqp, user = self._desk.amqp, part(request, "user")
        rows = (
            {name: row[name] for name in ("name", "vhost", "user", "node")}
            for row in amqp.connections(None)
            if row["user"] == user
        )
        return await many(request, rows)

    async def close_of_user(self, request: Request) -> Response:
        """Tell all connections of a user to go."""
        amqp, user = self._desk.amqp, part(request, "user")
        for name in [row["name"] for row in amqp.connections(None) if row["user"] == user]:
            amqp.close_connection(name, _reason(request))
        return Response(status_code=204)

    async def channels(self, request: Request) -> Response:
        """Channels, of a connection, a virtual host or all."""
        connection = part(request, "name") if "name" in request.path_params else None
        if connection is not None:
            self._desk.amqp.connection(connection)
        rows = self._desk.amqp.channels(self._vhost(request), connection)
        return await many(request, rows, paged=True)

    async def channel(self, request: Request) -> Response:
        """One channel."""
        return one(request, self._desk.amqp.channel(part(request, "name")))

    async def consumers(self, request: Request) -> Response:
        """Consumers."""
        return await many(request, self._desk.amqp.consumers(self._vhost(request)))


def _reason(request: Request) -> str:
    return request.headers.get("x-reason", _REASON)[:_REASON_CHARS_MAX]
