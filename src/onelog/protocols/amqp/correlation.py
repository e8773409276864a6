"""A correlation as AMQP's `correlation_id`, which is text, and back.

Rules: a correlation that is short text stays as it is. Any other, such as the bytes of a UUID that
an MQTT client made, becomes `base64:` and its base64, so that a worker that echoes the id answers
the right request. The two directions are inverse: an application's own `base64:…` that could not
have come from here stays as it is.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Final

TEXT_BYTES_MAX: Final = 255
_BASE64: Final = "base64:"


def to_correlation(text: str) -> bytes:
    """The correlation that a `correlation_id` stands for."""
    if text.startswith(_BASE64):
        try:
            data = b64decode(text[len(_BASE64) :], validate=True)
        except (binascii.Error, ValueError):
            data = b""
        if to_correlation_id(data) == text:
            return data
    return text.encode("utf-8", "surrogateescape")


def to_correlation_id(data: bytes) -> str | None:
    """A correlation as text; None: it is too long."""
    if len(data) <= TEXT_BYTES_MAX:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    text = _BASE64 + b64encode(data).decode()
    return text if len(text) <= TEXT_BYTES_MAX else None
