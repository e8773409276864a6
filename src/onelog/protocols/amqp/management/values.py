"""JSON values as values of AMQP tables, and back.

Rules: a value that a table cannot hold is refused: null (as in RabbitMQ), integers of more than 64
bits, names of more than 255 bytes, too much depth. Every value of a table has a form in JSON.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from onelog.base.errors import InvalidRequest
from onelog.record.tables import DEPTH_MAX

_NAME_BYTES_MAX: Final = 255
_INTEGERS: Final = range(-(2**63), 2**63)


def checked_table(table: Mapping[str, Any], depth: int = DEPTH_MAX) -> dict[str, Any]:
    """A JSON object that AMQP can hold as a table. Raises InvalidRequest."""
    for name in table:
        if len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX:
            raise InvalidRequest(f"the name {name[:40]!r}… is longer than {_NAME_BYTES_MAX} bytes")
    return {name: _checked(value, depth - 1) for name, value in table.items()}


def _checked(value: Any, depth: int) -> Any:
    if value is None:
        raise InvalidRequest("null_not_allowed")
    if not depth:
        raise InvalidRequest(f"arguments or headers are deeper than {DEPTH_MAX}")
    if isinstance(value, dict):
        return checked_table(value, depth)
    if isinstance(value, list):
        return [_checked(row, depth - 1) for row in value]
    if isinstance(value, int) and value not in _INTEGERS:
        raise InvalidRequest(f"{str(value)[:40]} does not fit into 64 bits")
    return value


def jsonable(value: Any) -> Any:
    """A value of a table in JSON: times are seconds, bytes are text."""
    if isinstance(value, dict):
        return {str(name): jsonable(row) for name, row in value.items()}
    if isinstance(value, list):
        return [jsonable(row) for row in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, datetime.datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return float(value)
    return value
