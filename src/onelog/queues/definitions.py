"""Exchanges, queues and bindings as the metadata store keeps them.

Rules: arguments are kept as AMQP encodes them, so that a time, a decimal or bytes are what they
were after a restart. What is not durable is kept, too, while the broker lives: after a crash it
says where confirmed messages went, and is dropped then.
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
"""What a virtual host keeps, in the order it is read back."""
_DEPTH_MAX: Final = 1000
"""Tables in each other that are read back: deeper ones than are taken now were taken before."""
MADE: Final = "made"
"""The kind of the row that says that a virtual host is there."""

R = TypeVar("R", ExchangeRecord, QueueRecord, Binding)


def host_prefix(vhost: str) -> str:
    """What the keys of all rows of a virtual host begin with."""
    return f"{ROOT}{_part(vhost)}/"


def key_of(vhost: str, kind: str, *parts: str) -> str:
    """The key of a row."""
    return f"{host_prefix(vhost)}{kind}/{'/'.join(map(_part, parts))}"


def binding_key(vhost: str, binding: Binding) -> str:
    """The key of a binding: the same for what is the same binding."""
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
    """What is kept of one of them."""
    fields: dict[str, Any] = msgspec.structs.asdict(record)
    fields["arguments"] = encode_table(record.arguments)
    return msgspec.json.encode(fields)


def decode_row(value: bytes, kind: type[R]) -> R:
    """One of them from what was kept."""
    fields = msgspec.json.decode(value)
    arguments = decode_table(base64.b64decode(fields["arguments"]), _DEPTH_MAX)
    found = msgspec.convert({**fields, "arguments": {}}, type=kind)
    return msgspec.structs.replace(found, arguments=arguments)


def _part(text: str) -> str:
    return quote(text, safe="")
