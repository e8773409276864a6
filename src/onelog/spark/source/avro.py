"""Avro's schemas in Spark's words.

Rules: every type has one row in a table; a union may only be `null` and one other, since Spark has
no type for more. An error about a type that Spark does not have names its place in the schema.
"""

from __future__ import annotations

import json
from typing import Any, Final

from onelog.base.errors import ConfigError

_PLAIN: Final = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "bytes": "BINARY", "string": "STRING", "enum": "STRING", "fixed": "BINARY",
}  # fmt: skip
_LOGICAL: Final = {
    "date": "DATE", "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP",
    "uuid": "STRING",
}  # fmt: skip


def parse_schema(text: str) -> dict[str, Any]:
    """The schema of a record. Raises ConfigError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option valueSchema is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("type") != "record":
        raise ConfigError("option valueSchema: an Avro schema of type record is needed")
    return found


def avro_ddl(text: str) -> str:
    """The type of a record as Spark writes it. Raises ConfigError."""
    return _type(parse_schema(text), "value", {})


def _type(schema: Any, place: str, named: dict[str, Any]) -> str:
    while True:  # what a type is may be said inside of it
        if isinstance(schema, list):
            schema = _only(schema, place)
        elif isinstance(schema, str) and schema in named:
            schema = named[schema]
        elif isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            schema = schema["type"]
        else:
            break
    row = {"type": schema} if isinstance(schema, str) else schema
    if not isinstance(row, dict) or "type" not in row:
        raise ConfigError(f"option valueSchema: {place} has no type")
    if row["type"] == "record":
        return _record(row, place, named)
    if row["type"] == "array":
        return f"ARRAY<{_type(row.get('items'), f'{place}[]', named)}>"
    if row["type"] == "map":
        return f"MAP<STRING, {_type(row.get('values'), f'{place}[]', named)}>"
    if "name" in row:
        named[row["name"]] = row
    return _plain(row, place)


def _only(schema: list[Any], place: str) -> Any:
    kinds = [kind for kind in schema if kind != "null"]
    if len(kinds) != 1:
        raise ConfigError(f"option valueSchema: {place} is a union of {len(kinds)} types")
    return kinds[0]


def _plain(row: dict[str, Any], place: str) -> str:
    logical = row.get("logicalType", "")
    if logical == "decimal":
        return f"DECIMAL({row.get('precision', 10)}, {row.get('scale', 0)})"
    found = _LOGICAL.get(logical) or _PLAIN.get(row["type"])
    if found is None:
        raise ConfigError(
            f"option valueSchema: {place} has the type {row['type']!r}, which is unknown"
        )
    return found


def _record(schema: dict[str, Any], place: str, named: dict[str, Any]) -> str:
    if place.count(".") > 32:
        raise ConfigError(
            f"option valueSchema: {place[:60]}… contains itself, and Spark has no recursive types"
        )
    inside = named | {schema.get("name", ""): schema}
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(
        isinstance(row, dict) and "name" in row and "type" in row for row in fields
    ):
        raise ConfigError(f"option valueSchema: {place} is a record without fields")
    rows = []
    for row in fields:
        inner = _type(row["type"], f"{place}.{row['name']}", inside)
        rows.append(f"`{row['name']}`: {inner}")
    return f"STRUCT<{', '.join(rows)}>"
