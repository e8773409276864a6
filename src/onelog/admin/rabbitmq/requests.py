"""What a request says: names in its path, its JSON, and who sent it.

Rules: a body is bounded before it is read. An error has RabbitMQ's form, in one word
or in a pair of a word and the value.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.requests import Request

from onelog.admin.bodies import body_bound, bounded_body, too_long
from onelog.base.errors import InvalidRequest, NotAuthenticated, NotFound
from onelog.broker import Principal
from onelog.security.authenticator import Authenticator
from onelog.security.identity import Identity

Row = dict[str, Any]

BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of one request's body: a message of 16 MiB in base64, or a file of definitions."""
BODY_BOUND: Final = body_bound(
    BODY_BYTES_MAX,
    "400 Bad Request",
    {"error": "bad_request", "reason": too_long(BODY_BYTES_MAX)},
)
DEFAULT_EXCHANGE: Final = "amq.default"
"""What paths say for the exchange without a name."""


class BadRequest(InvalidRequest):
    """A bad request whose reason is not plain text."""

    def __init__(self, *reason: Any) -> None:
        super().__init__(str(reason[0]))
        self.reason: Any = reason[0] if len(reason) == 1 else list(reason)


class Who(msgspec.Struct, frozen=True):
    """Who asks: the name that was given, and the identity that it proved."""

    name: str
    identity: Identity

    @property
    def user(self) -> str:
        """The user's name."""
        return self.identity.name

    @property
    def principal(self) -> Principal:
        """Who rights are asked for."""
        return self.identity.principal("amqp")


def part(request: Request, name: str) -> str:
    """A part of the path, decoded. Raises NotFound where it is no UTF-8: no name is that."""
    try:
        return unquote(request.path_params[name], errors="strict")
    except UnicodeDecodeError:
        raise NotFound("no name is like that") from None


def exchange_part(request: Request, name: str = "name") -> str:
    """The part of the path that names an exchange."""
    found = part(request, name)
    return "" if found == DEFAULT_EXCHANGE else found


async def raw_body(request: Request) -> bytes:
    """The body, if it is whole and not too large. Raises BadRequest."""
    return await bounded_body(request, BODY_BYTES_MAX, too_large=BadRequest, cut=BadRequest)


async def json_body(request: Request, *, wrong: str = "not_json") -> Row:
    """The object in the body; nothing at all is an empty one. Raises BadRequest."""
    data = await raw_body(request)
    if not data.strip():
        return {}
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest(wrong) from None
    if not isinstance(found, dict):
        raise BadRequest(wrong)
    return found


def need(body: Row, *names: str) -> None:
    """Refuse a body without these names."""
    missing = [f"{{key_missing,{name}}}" for name in names if name not in body]
    if missing:
        raise BadRequest(f"[{','.join(missing)}]")


def flag(body: Row, name: str) -> bool:
    """A boolean, also as text; false when it is not there."""
    value = body.get(name, False)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise BadRequest("not_boolean", value)


def number(body: Row, name: str) -> int:
    """A whole number, also as text."""
    value = body[name]
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest("not_integer", value)
    return value


def text(body: Row, name: str, default: str = "") -> str:
    """A string."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise BadRequest("not_string", name)
    return value


def arguments(body: Row) -> Row:
    """The arguments of a declaration; RabbitMQ's own tools write none as a list."""
    value = body.get("arguments") or {}
    if not isinstance(value, dict):
        raise BadRequest("not_an_object", "arguments")
    return value


def query_flag(request: Request, name: str) -> bool:
    """A flag of the query."""
    return request.query_params.get(name) == "true"


async def log_in(request: Request, authenticator: Authenticator) -> Who:
    """Who asks, by a bearer token or HTTP basic authentication. Raises NotAuthenticated,
    BadRequest.

    As in AMQP, a token also counts as the password of any name. Without credentials, or with those
    that every client has by default and nobody here, it is a peer without a name, where such may
    come.
    """
    given = request.headers.get("authorization")
    name, secret = _credentials(given) if given is not None else ("", b"")
    host = "" if request.client is None else request.client.host
    if name or secret:
        authenticator.bans.check(host)  # first: else a remembered password can be guessed for ever
    known = authenticator.recall(name, secret)
    if known is not None:
        return Who(name, known)
    is_default = (name, secret) == ("guest", b"guest") and not authenticator.knows("guest")
    if is_default or not (name or secret):
        found = authenticator.anonymous(listener_is_loopback=True, peer_host=host or None)
        return Who(name or found.name, found)
    if not name or (secret.count(b".") == 2 and authenticator.takes_tokens):
        token = secret.decode("ascii", "replace")
        found = await authenticator.bans.guard(host, lambda: authenticator.token(token))
        return Who(found.name, found)  # with a token, clients give any name
    found = await authenticator.bans.guard(host, lambda: authenticator.password(name, secret))
    return Who(name, found)


def claimed_name(request: Request) -> str:
    """The name that a request gives, whether or not it is true; empty: none."""
    try:
        return _credentials(request.headers.get("authorization", ""))[0]
    except (NotAuthenticated, BadRequest):
        return ""


def _credentials(header: str) -> tuple[str, bytes]:
    """A name and its secret; a bearer token is a secret without a name."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return "", value.strip().encode()
    if scheme.lower() != "basic":
        raise NotAuthenticated("only basic authentication and bearer tokens are taken here")
    try:
        name, found, secret = base64.b64decode(value.strip(), validate=True).partition(b":")
        if found:
            return name.decode(), secret
    except (binascii.Error, ValueError):
        pass
    raise BadRequest("bad_basic_authentication")
