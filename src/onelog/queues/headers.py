"""What routing reads of a record beside its topic: headers, further keys, queues to leave out.

Rules: records may come from any client. Headers are plain record headers. Where an encoded table
was kept (`record/tables.py`), its values count; a table that cannot be read counts as absent.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from onelog.base.errors import OnelogError
from onelog.record.headers import (
    BLIND_KEYS,
    LEFT_OUT,
    Headers,
    application_headers,
    find_header,
)
from onelog.record.record import Record
from onelog.record.reserved import read_names
from onelog.record.tables import decode_table, header_value

TABLE: Final = b"~ah"
"""The encoded headers table, when it holds anything but strings."""


def kept_table(headers: Headers) -> dict[str, Any] | None:
    """The kept encoded table; None: there is none, or it cannot be read."""
    encoded = find_header(headers, TABLE)
    if encoded is None:
        return None
    try:
        return decode_table(encoded)
    except (OnelogError, ValueError, IndexError, struct.error):
        return None


def headers_of(record: Record) -> dict[str, Any]:
    """The headers of a record as routing sees them."""
    kept = kept_table(record.headers)
    if kept is not None:
        return kept
    return {
        name.decode("utf-8", "replace"): header_value(value)
        for name, value in application_headers(record.headers)
    }


def extra_keys_of(record: Record) -> tuple[str, ...]:
    """Routing keys beside the first."""
    return read_names(record.headers, BLIND_KEYS)


def left_out_of(record: Record) -> tuple[str, ...]:
    """Queues that must not get the record."""
    return read_names(record.headers, LEFT_OUT)
