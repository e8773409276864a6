"""The reserved headers: protocol facts that are stored with a record under the prefix `~`.

Rules: a reserved header is written only when its value is not the default. An application's own
header that begins with the prefix is stored with the prefix doubled (`~x` as `~~x`), so that it
can never be taken for one of ours, and comes out as it went in (I6).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Headers = tuple[tuple[bytes, bytes | None], ...]

RESERVED_PREFIX: Final = b"~"

TOPIC: Final = b"~t"
"""The record's topic, when it is not the key; always the first header (the kernel writes it)."""

EXPIRY: Final = b"~ex"
"""When the message expires: milliseconds since the Unix epoch, decimal."""

QOS: Final = b"~q"
"""MQTT's quality of service of the publish, decimal; absent is 0."""

RETAIN: Final = b"~r"
"""Present (as `1`) when the publish asked to be retained."""

PUBLISHER: Final = b"~nl"
"""The client that published, where a reader needs it (`no local`, hash by client)."""

CONTENT_TYPE: Final = b"~ct"
CONTENT_ENCODING: Final = b"~ce"
REPLY_TO: Final = b"~rt"
"""The topic for an answer."""
CORRELATION: Final = b"~ci"
MESSAGE_ID: Final = b"~id"
TYPE: Final = b"~ty"
USER_ID: Final = b"~ui"
APP_ID: Final = b"~ai"
CLUSTER_ID: Final = b"~cl"
PRIORITY: Final = b"~pr"
TIMESTAMP: Final = b"~ts"
"""The time that the application gave, in seconds since the Unix epoch, decimal."""
BLIND_KEYS: Final = b"~bc"
"""Routing keys beside the first (CC and BCC), JSON; the delivered message shows only CC."""
LEFT_OUT: Final = b"~nq"
"""Queues that a dead letter must not reach again, JSON."""
PAYLOAD_FORMAT: Final = b"~pf"
"""MQTT's payload format indicator, decimal; absent is 0 (bytes)."""


def is_reserved(name: bytes) -> bool:
    """Whether a header belongs to OneLog and not to the application."""
    return name.startswith(RESERVED_PREFIX) and not name.startswith(RESERVED_PREFIX * 2)


def stored_name(name: bytes) -> bytes:
    """How an application's header name is stored."""
    return RESERVED_PREFIX + name if name.startswith(RESERVED_PREFIX) else name


def application_name(stored: bytes) -> bytes:
    """The application's name of a stored header that is not reserved."""
    return stored[1:] if stored.startswith(RESERVED_PREFIX * 2) else stored


def application_headers(headers: Iterable[tuple[bytes, bytes | None]]) -> Headers:
    """The headers that the application wrote, in order, duplicates kept."""
    return tuple(
        (application_name(name), value) for name, value in headers if not is_reserved(name)
    )


def find_header(headers: Headers, name: bytes) -> bytes | None:
    """The value of the first header of this name; None: there is none."""
    for key, value in headers:
        if key == name:
            return value
    return None
