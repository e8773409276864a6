"""Messages as kio's own classes: the oracle for what we write, and requests for what we read."""

from __future__ import annotations

import datetime
import io
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from onelog.protocols.kafka.schema import fields_of


def entity(schema: Any, body: Mapping[str, Any]) -> Any:
    """An instance of a kio class; times are given in milliseconds, what is not given is default."""
    values = {}
    for field in fields_of(schema):
        value = body.get(field.name, field.default)
        if field.structure is not None and field.is_array and value is not None:
            value = tuple(
                row if isinstance(row, field.structure) else entity(field.structure, row)
                for row in value
            )
        elif field.structure is not None and isinstance(value, Mapping):
            value = entity(field.structure, value)
        elif field.is_array and value is not None:
            value = tuple(value)
        elif field.kind == "error_code":
            value = ErrorCode(value)
        elif field.kind.startswith("timedelta") and isinstance(value, int):
            value = datetime.timedelta(milliseconds=value)
        elif field.kind == "datetime_i64" and isinstance(value, int):
            value = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        values[field.name] = value
    return schema(**values)


def written(schema: Any, body: Mapping[str, Any]) -> bytes:
    """The bytes that kio writes."""
    out = io.BytesIO()
    entity_writer(schema)(out, entity(schema, body))
    return out.getvalue()
