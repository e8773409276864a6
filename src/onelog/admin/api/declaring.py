"""What an operation of the API is: path, method, role, what comes in and goes out, who answers.

Rules: everything that a client may send has a declared type, and is refused before the handler sees
it when it does not fit. Query parameters and bodies refuse names that they do not know. Routes, the
role check and the OpenAPI document come from these declarations and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from onelog.base.errors import NotAuthorized
from onelog.broker import LOCAL, Principal
from onelog.security.identity import Identity
from onelog.security.roles import AdminRole

PREFIX: Final = "/api/v1"
VIEWER: Final = AdminRole.VIEWER
OPERATOR: Final = AdminRole.OPERATOR
ADMIN: Final = AdminRole.ADMIN

PROTOCOL: Final = "admin"
"""What the API is called as a protocol, where a principal is asked for."""

NOTHING: Final = type(None)
"""No body, or an answer without one."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

Q = TypeVar("Q")
B = TypeVar("B")
A = TypeVar("A")


class ApiInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client sends: names that are not known are refused."""


class NoQuery(ApiInput, frozen=True, kw_only=True):
    """No query parameters."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what that is worth here."""

    name: str
    role: AdminRole
    proof: Literal["anonymous", "session", "token"]
    expires_ms: int | None = None
    """When the session or token ends; None: it does not."""
    identity: Identity | None = None
    """Who it is to the access list: for logins whose token has claims and groups."""

    @property
    def principal(self) -> Principal:
        """The caller as the broker's door knows it. Administrators, who may change access rules,
        are not bound by them."""
        if self.role is AdminRole.ADMIN:
            return LOCAL
        known = self.identity
        return Principal(self.name, PROTOCOL) if known is None else known.principal(PROTOCOL)

    def need(self, role: AdminRole, to: str) -> None:
        """Raise NotAuthorized without this role."""
        if not self.role.covers(role):
            raise NotAuthorized(
                f"{self.name} has the role {self.role}, and {to} needs the role {role}"
            )


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[Q, B]):
    """One request, as values."""

    names: Mapping[str, str]
    """The parts of the path in braces, decoded."""
    query: Q
    body: B
    caller: Caller
    peer_host: str
    secure: bool
    """Whether it came over TLS."""
    headers: dict[str, str] = field(default_factory=dict)
    """What the handler adds to the answer."""
    credentials: str = ""
    """The session that the request showed, if any."""
    recheck: Callable[[], Caller] | None = None
    """Who asks, looked up again: for answers that last. Raises as the first time."""


@dataclass(frozen=True, kw_only=True)
class ApiOperation(Generic[Q, B, A]):
    """One thing that can be asked."""

    method: Method
    path: str
    """Below `PREFIX`; parts in braces are names, in which `/` is written `%2F`."""
    role: AdminRole
    """Who may; `AdminRole.NONE`: everybody, also before the login."""
    summary: str
    tag: str
    query: type[Q] = NoQuery  # type: ignore[assignment]
    body: type[B] = NOTHING  # type: ignore[assignment]
    answer: type[A]
    status: int = 200
    handler: Callable[[ApiCall[Q, B]], Awaitable[A]]
    audited: bool | None = None
    """Whether the audit trail notes it; None: if it is no GET."""

    @property
    def is_audited(self) -> bool:
        """Whether each request leaves a record in the audit trail."""
        return self.method != "GET" if self.audited is None else self.audited


@dataclass(frozen=True, kw_only=True)
class EventStream(Generic[Q]):
    """One stream of server-sent events."""

    path: str
    role: AdminRole
    summary: str
    tag: str
    query: type[Q]
    handler: Callable[[ApiCall[Q, None]], Awaitable[AsyncIterator[bytes]]]


AnyOperation = ApiOperation[Any, Any, Any]
AnyEvents = EventStream[Any]
