"""Principals, actions and kinds of things: the words of the question "may X do Y to Z?".

Rules: a principal is a key. It is small, it is compared by value, and answers are remembered by it.
So a client id is part of a principal only where an answer depends on client ids.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

TOKEN_GROUP: Final = "~group="  # noqa: S105 - a mark, no secret
"""Stands before a group that a token names, among the claims of a principal."""


class Principal(msgspec.Struct, frozen=True, cache_hash=True):
    """Who asks, and through which protocol."""

    name: str
    protocol: str = "embedded"
    client_id: str = ""
    """The MQTT client id, where answers depend on it (`Authorizer.tells_clients_apart`)."""
    certificate: bool = False
    """Whether a TLS client certificate proved the name."""
    claims: tuple[str, ...] = ()
    """Claims of the token that proved the name, as `name=value`, and groups (`TOKEN_GROUP`)."""


LOCAL = Principal("local")
"""The broker itself, and the program that runs it in its own process. Code that acts as the broker
passes it by name. No call has it as a default: a call for a peer that forgot its principal would
act as the broker."""
NOBODY = Principal("", "none")
"""A peer that has not logged in yet."""


class Action(StrEnum):
    """What is asked for.

    A filter stands for many topics. SUBSCRIBE asks whether any of its topics may be had: each
    message is asked for by DELIVER. Every other action asks for all topics of a filter.
    """

    __hash__ = str.__hash__  # an enum's own is a Python call, and answers are remembered by it

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DELIVER = "deliver"
    CONSUME = "consume"
    """Own a cursor: a consumer group, a queue, a share group, a session, a transactional id."""
    CREATE = "create"
    CONFIGURE = "configure"
    DELETE = "delete"
    DESCRIBE = "describe"
    """See that something is there, and its settings. Who may do anything else to it sees it, too.
    """
    ADMIN = "admin"
    """See or change what belongs to no topic and no cursor: users, rules, settings of the node."""


class Kind(StrEnum):
    """What an action is done to, and so what the text of the question is."""

    __hash__ = str.__hash__

    TOPIC = "topic"
    """A topic or filter."""
    CURSOR = "cursor"
    """The name of a cursor, behind its kind: `group/billing`, `queue/jobs`, `share/workers`."""
    SERVER = "server"
    """A part of the server: `users`, `access`, `cluster`."""
