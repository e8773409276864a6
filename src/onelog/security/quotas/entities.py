"""Who a quota is for, and what it bounds: the words of every surface, and how they are checked.

Rules:
- An entity names a user, a client, both, a listener, or an address. A part without a name is the
  default: it counts for each one that has no quota of its own.
- Written, parts are joined by commas, `user:alice,client:pump-1`; the default is the bare word,
  `user`. In names, `%`, `,` and control characters are escaped as in URLs.
- A limit is a rate per second or a number of things at once. 0 of something is not a limit but a
  ban, and that is what access rules are for.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from onelog.base.errors import InvalidName, InvalidRequest

DEFAULT: Final = ""
"""The name of a part that counts for everyone without a quota of their own."""
NAME_BYTES_MAX: Final = 512
"""UTF-8 bytes of each name."""
VALUE_MAX: Final = 2**53


class Limit(StrEnum):
    """What a quota bounds."""

    PUBLISH_BYTES = "publish_bytes"
    PUBLISH_MESSAGES = "publish_messages"
    FETCH_BYTES = "fetch_bytes"
    REQUESTS = "requests"
    CONNECTS = "connects"
    CONNECTIONS = "connections"
    SUBSCRIPTIONS = "subscriptions"
    QUEUES = "queues"

    # That of Python 3.11 is a function of Python's; the text is what is compared.
    __hash__ = str.__hash__


COUNTS: Final = frozenset({Limit.CONNECTIONS, Limit.SUBSCRIPTIONS, Limit.QUEUES})
"""Limits of things at once; all others are rates per second."""

MEANINGS: Final[dict[Limit, str]] = {
    Limit.PUBLISH_BYTES: "bytes published per second",
    Limit.PUBLISH_MESSAGES: "messages published per second",
    Limit.FETCH_BYTES: "bytes fetched per second",
    Limit.REQUESTS: "requests per second",
    Limit.CONNECTS: "new connections per second",
    Limit.CONNECTIONS: "connections at once",
    Limit.SUBSCRIPTIONS: "subscriptions and consumers at once",
    Limit.QUEUES: "queues at once",
}

_PARTS: Final = ("user", "client", "listener", "ip")
_OF_CLIENTS: Final = frozenset(Limit) - {Limit.CONNECTS}
_KINDS: Final[dict[tuple[str, ...], frozenset[Limit]]] = {
    ("user",): _OF_CLIENTS,
    ("client",): _OF_CLIENTS,
    ("user", "client"): _OF_CLIENTS,
    ("listener",): _OF_CLIENTS,
    ("ip",): frozenset({Limit.CONNECTS}),
}
"""The entities that there are, and what each may bound."""


class QuotaEntity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a quota is for. None: the part is not named, `DEFAULT`: it is the default."""

    user: str | None = None
    client: str | None = None
    listener: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """The parts that are named, and their names."""
        found = ((part, getattr(self, part)) for part in _PARTS)
        return tuple((part, name) for part, name in found if name is not None)

    @property
    def text(self) -> str:
        """The entity as people write it."""
        return ",".join(
            part if not name else f"{part}:{_quoted(name)}" for part, name in self.parts
        )


class QuotaRow(msgspec.Struct, frozen=True, kw_only=True):
    """A quota: who, and how much."""

    entity: QuotaEntity
    limits: dict[Limit, float]


def parse_entity(text: str) -> QuotaEntity:
    """The entity of a text. Raises InvalidName."""
    found: dict[str, str] = {}
    for word in text.split(","):
        part, colon, name = word.partition(":")
        if part not in _PARTS or (colon and not name):
            raise InvalidName(
                f"{word[:80]!r} names nobody whom a quota could be for: use user:NAME, client:ID,"
                " listener:NAME or ip:ADDRESS, or the bare word for everyone without a quota of"
                " their own"
            )
        if part in found:
            raise InvalidName(f"{text[:80]!r} names two {part}s; a quota is for one")
        found[part] = unquote(name, errors="surrogateescape")
    return check_entity(QuotaEntity(**found))


def check_entity(entity: QuotaEntity) -> QuotaEntity:
    """An entity that a quota can be for. Raises InvalidName."""
    parts = tuple(part for part, _name in entity.parts)
    if parts not in _KINDS:
        known = ", ".join("+".join(kind) for kind in _KINDS)
        raise InvalidName(f"a quota is for one of: {known}; not for {'+'.join(parts) or 'nobody'}")
    for part, name in entity.parts:
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            raise InvalidName(f"the name of a {part} is UTF-8, {name[:80]!r} is not") from None
        if size > NAME_BYTES_MAX:
            raise InvalidName(f"the name of a {part} has at most {NAME_BYTES_MAX} bytes")
    if entity.ip:
        try:
            address = ipaddress.ip_address(entity.ip)
        except ValueError:
            raise InvalidName(f"ip:{entity.ip[:80]} is no address") from None
        return QuotaEntity(ip=str(address))
    return entity


def check_limits(entity: QuotaEntity, limits: Mapping[str, float]) -> dict[Limit, float]:
    """Limits that an entity can have. Raises InvalidRequest."""
    allowed = _KINDS[tuple(part for part, _name in entity.parts)]
    found: dict[Limit, float] = {}
    for name, value in limits.items():
        if name not in allowed:
            known = ", ".join(limit for limit in Limit if limit in allowed)
            raise InvalidRequest(f"{name[:80]!r} is no limit for {entity.text[:80]}: use {known}")
        limit = Limit(name)
        if not (math.isfinite(value) and 0 < value <= VALUE_MAX):
            raise InvalidRequest(f"{limit} is a number above 0, not {value}")
        if limit in COUNTS and value != int(value):
            raise InvalidRequest(f"{limit} is a whole number, not {value}")
        found[limit] = float(value)
    return found


def _quoted(name: str) -> str:
    return quote(name, safe=" /:@!$&'()*+;=?#[]<>|{}~\"^`\\")
