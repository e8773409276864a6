"""The reserved headers: protocol facts that ride along with a record under the prefix `~`.

Rules: a reserved header is written only when its value is not the default. Application
properties never start with the prefix; the door refuses those that do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Headers = tuple[tuple[bytes, bytes | None], ...]

RESERVED_PREFIX: Final = b"~"

TOPIC: Final = b"~t"
"""The record's topic, when it is not the key; always the first header (the kernel writes it)."""

ORIGIN: Final = b"~p"
"""The protocol that wrote it."""

EXPIRY: Final = b"~ex"
"""When the message expires: milliseconds since the Unix epoch, decimal."""


def is_reserved(name: bytes) -> bool:
    """Whether a header belongs to OneLog and not to the application."""
    return name.startswith(RESERVED_PREFIX)


def application_headers(headers: Iterable[tuple[bytes, bytes | None]]) -> Headers:
    """The headers that the application wrote, in order, duplicates kept."""
    return tuple(pair for pair in headers if not is_reserved(pair[0]))


def find_header(headers: Headers, name: bytes) -> bytes | None:
    """The value of the first header of this name; None when there is none."""
    for key, value in headers:
        if key == name:
            return value
    return None
