"""Values of JSON as values of AMQP's tables, and back.

Rules: what comes in is checked for all that a table cannot hold: no null (as RabbitMQ has it),
64 bit integers, names of at most 255 bytes, bounded depth. What goes out is always JSON.
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
    """An object of JSON that AMQP can hold as a table. Raises InvalidRequest."""
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
    """A value of a table as JSON has it: times are seconds, bytes are text."""
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
