"""Exchanges, queues and bindings as the metadata store keeps them.

Rules: arguments are kept as AMQP encodes them, so that a time, a decimal or bytes are the same
after a restart. Definitions that are not durable are kept, too, while the broker lives: after a
crash they say which queues confirmed messages went to, and are then dropped.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec

from onelog.queues.exchanges import Binding, ExchangeRecord
from onelog.queues.settings import QueueRecord
from onelog.record.tables import decode_table, encode_table

ROOT: Final = "amqp/vhosts/"
KINDS: Final = ("exchanges", "queues", "bindings")
"""The kinds of rows of a virtual host, in the order in which they are read back."""
_DEPTH_MAX: Final = 1000
"""How deep nested tables may be when they are read back: older versions accepted deeper ones."""
MADE: Final = "made"
"""The kind of the row that says that a virtual host exists."""

R = TypeVar("R", ExchangeRecord, QueueRecord, Binding)


def host_prefix(vhost: str) -> str:
    """The prefix of the keys of all rows of a virtual host."""
    return f"{ROOT}{_part(vhost)}/"


def key_of(vhost: str, kind: str, *parts: str) -> str:
    """The key of a row."""
    return f"{host_prefix(vhost)}{kind}/{'/'.join(map(_part, parts))}"


def binding_key(vhost: str, binding: Binding) -> str:
    """The key of a binding. Equal bindings have the same key."""
    digest = sha256(repr(binding.identity).encode()).hexdigest()[:32]
    return key_of(
        vhost,
        "bindings",
        binding.source,
        binding.destination.kind,
        binding.destination.name,
        binding.routing_key,
        digest,
    )


def parse_key(key: str) -> tuple[str, str]:
    """The virtual host and the kind of a row."""
    vhost, kind, _rest = key.removeprefix(ROOT).split("/", 2)
    return unquote(vhost), kind


def encode_row(record: ExchangeRecord | QueueRecord | Binding) -> bytes:
    """The kept form of a definition."""
    fields: dict[str, Any] = msgspec.structs.asdict(record)
    fields["arguments"] = encode_table(record.arguments)
    for name in ("maker", "client", "listener"):
        if not fields.get(name):
            fields.pop(name, None)
    return msgspec.json.encode(fields)


def decode_row(value: bytes, kind: type[R]) -> R:
    """A definition from its kept form."""
    fields = msgspec.json.decode(value)
    arguments = decode_table(base64.b64decode(fields["arguments"]), _DEPTH_MAX)
    found = msgspec.convert({**fields, "arguments": {}}, type=kind)
    return msgspec.structs.replace(found, arguments=arguments)


def _part(text: str) -> str:
    return quote(text, safe="")
