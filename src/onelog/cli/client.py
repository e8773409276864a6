"""Asks a running server over its admin API.

Rules: the CLI shares only the admin contract with the server. Every request has a deadline. If no
server answers, the error is one clear line.
"""

from __future__ import annotations

import http.client
import os
import ssl
from typing import Any, Final, TypeVar

import msgspec

from onelog.admin.contract import ErrorAnswer, ServerInfo, StreamInfo, TroubleInfo
from onelog.base.errors import Unavailable

TIMEOUT_S: Final = 5.0
TOKEN_VARIABLE: Final = "ONELOG_TOKEN"  # noqa: S105  its name

T = TypeVar("T")


class HealthAnswer(msgspec.Struct, frozen=True):
    """The answer of `/health`."""

    status: str
    checks: dict[str, str]
    troubles: list[TroubleInfo]


class StreamPage(msgspec.Struct, frozen=True):
    """A page of streams."""

    items: list[StreamInfo]
    next_cursor: str | None


class Status(msgspec.Struct, frozen=True):
    """The facts that `onelog status` shows."""

    info: ServerInfo
    health: HealthAnswer
    streams: list[StreamInfo]
    more_streams: bool


def fetch_status(host: str, port: int, cert_file: str = "") -> Status:
    """Ask the server at `host:port` for its identity and state. Raises Unavailable.

    `cert_file` is the certificate that it shows, if it speaks TLS. Where it wants a login, it gets
    the token of the variable `ONELOG_TOKEN`.
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  where it listens
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    if cert_file:
        context = ssl.create_default_context(cafile=cert_file)
        context.check_hostname = False  # it is this file's certificate, whatever its name
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    try:
        info = _get(connection, "/api/v1/info", ServerInfo)
        health = _get(connection, "/health", HealthAnswer, also=503)
        page = StreamPage([], None)
        if health.checks.get("state", "ok") == "ok":
            page = _get(connection, "/api/v1/streams", StreamPage)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
        raise Unavailable(
            f"no OneLog server answers at {host}:{port} ({error}); start one with `onelog serve`"
        ) from error
    finally:
        connection.close()
    return Status(info, health, page.items, page.next_cursor is not None)


def _get(connection: http.client.HTTPConnection, path: str, kind: type[T], also: int = 200) -> T:
    token = os.environ.get(TOKEN_VARIABLE, "")
    login = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request("GET", path, headers={"Host": "localhost", **login})
    response = connection.getresponse()
    body: Any = response.read()
    if response.status not in (200, also):
        error = msgspec.json.decode(body, type=ErrorAnswer).error
        hint = f" ({TOKEN_VARIABLE} holds the token)" if response.status == 401 else ""
        raise Unavailable(f"{path}: {error.message}{hint}")
    return msgspec.json.decode(body, type=kind)
