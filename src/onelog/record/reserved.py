"""Reads reserved headers, whatever bytes they hold.

Rules: any Kafka producer can write a header that begins with `~`, because its batch is stored as it
came (ADR 13). So all code reads such headers through this module or a table of allowed values, and
nothing here raises: a value that does not parse, or is longer than its meaning can be, counts as
absent. Of several headers of one name the first counts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from onelog.base.limits import RESERVED_NAMES_BYTES_MAX
from onelog.record.headers import EXPIRY, Headers, find_header

NUMBER_MAX: Final = 10**20 - 1
"""The greatest number, where the meaning has no smaller one: 64 bits fit in 20 digits."""
OFFSET_MAX: Final = 2**63 - 1

_DIGITS_MAX: Final = 20
_names: Final = msgspec.json.Decoder(tuple[str, ...])


def parse_number(raw: bytes | None, most: int = NUMBER_MAX) -> int | None:
    """A decimal number of at most `most`."""
    if raw is None or len(raw) > _DIGITS_MAX or not raw.isdigit():
        return None
    number = int(raw)
    return number if number <= most else None


def read_number(headers: Headers, name: bytes, most: int = NUMBER_MAX) -> int | None:
    """The decimal number of a header."""
    return parse_number(find_header(headers, name), most)


def read_expiry_ms(headers: Headers) -> int | None:
    """When a message expires, in milliseconds since the Unix epoch; None: never."""
    return parse_number(find_header(headers, EXPIRY)) if headers else None


def read_names(headers: Headers, name: bytes) -> tuple[str, ...]:
    """The list of names of a header, JSON; empty when it is none."""
    return parse_names(find_header(headers, name))


def parse_names(raw: bytes | None) -> tuple[str, ...]:
    """A list of names, JSON; empty when it is none."""
    if raw is None or len(raw) > RESERVED_NAMES_BYTES_MAX:
        return ()
    try:
        return _names.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()


def read_text(headers: Headers, name: bytes) -> str:
    """The text of a header; empty when it is none."""
    return parse_text(find_header(headers, name))


def parse_text(raw: bytes | None) -> str:
    """A text; empty when it is none."""
    try:
        return "" if raw is None else raw.decode()
    except UnicodeDecodeError:
        return ""
