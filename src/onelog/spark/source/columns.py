"""The columns of the source: those of Spark's Kafka source, and what `decode` makes of the value.

Rules: only requested columns are made, by the kernel and on the way to Spark. Spark's schema and
the options must agree on a column, or reading does not begin.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple

from onelog.base.errors import ConfigError
from onelog.kernel import (
    WITH_HEADERS,
    WITH_KEYS,
    WITH_OFFSETS,
    WITH_TIMESTAMPS,
    WITH_TOPICS,
    WITH_VALUES,
)
from onelog.spark.source.avro import avro_ddl
from onelog.spark.source.options import Decode, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VALUE: Final = "value"
CORRUPT: Final = "corrupt"
"""The bytes of a value that could not be decoded."""


class Column(NamedTuple):
    """A column: its type in Spark, and what the kernel has to give for it."""

    type: str
    want: int = 0


COLUMNS: Final = {
    "key": Column("binary", WITH_KEYS),
    VALUE: Column("binary", WITH_VALUES),
    "topic": Column("string", WITH_TOPICS),
    "partition": Column("int"),
    "offset": Column("bigint", WITH_OFFSETS),
    "timestamp": Column("timestamp", WITH_TIMESTAMPS),
    "timestampType": Column("int"),
    "headers": Column("array<struct<key:string,value:binary>>", WITH_HEADERS),
    CORRUPT: Column("binary", WITH_VALUES),
}


def keeps_corrupt(decode: Decode) -> bool:
    """Whether values that cannot be decoded have a column to be seen in."""
    return decode.kind in ("json", "avro") and decode.mode == "PERMISSIVE"


def source_columns(options: SourceOptions) -> tuple[str, ...]:
    """The names of the columns, in order. Raises ConfigError."""
    there = [
        name
        for name in COLUMNS
        if (name != CORRUPT or keeps_corrupt(options.decode))
        and (name != "headers" or options.include_headers or options.columns)
    ]
    if not options.columns:
        return tuple(there)
    for name in options.columns:
        if name not in there:
            raise ConfigError(f"option columns: there is no column {name!r}: {_hint(name, there)}")
    if len(set(options.columns)) != len(options.columns):
        raise ConfigError("option columns: a column is named twice")
    return options.columns


def _hint(name: str, there: list[str]) -> str:
    near = difflib.get_close_matches(name, there, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(there)}"


def source_ddl(options: SourceOptions) -> str:
    """The schema, as Spark reads it. Raises ConfigError."""
    return ", ".join(
        f"{name} {_value_type(options.decode) if name == VALUE else COLUMNS[name].type}"
        for name in source_columns(options)
    )


def _value_type(decode: Decode) -> str:
    if not decode.kind:
        return COLUMNS[VALUE].type
    if decode.kind == "string":
        return "string"
    if not decode.schema:
        raise ConfigError(f"option valueSchema is missing: decode={decode.kind} needs it")
    return f"STRUCT<{decode.schema}>" if decode.kind == "json" else avro_ddl(decode.schema)


def check_schema(options: SourceOptions, schema: StructType) -> None:
    """Whether the columns that Spark expects are ours. Raises ConfigError."""
    plain = not options.decode.kind
    for field in schema.fields:
        known = COLUMNS.get(field.name)
        if known is None:
            raise ConfigError(
                f"the schema has a column {field.name!r}: {_hint(field.name, list(COLUMNS))};"
                " fields of a value need decode=json or decode=avro"
            )
        told = field.dataType.simpleString()
        if field.name == VALUE and not plain:
            if options.decode.kind == "string" and told != "string":
                raise ConfigError(f"the schema has value as {told}; decode=string makes it string")
            if options.decode.kind != "string" and not told.startswith("struct<"):
                raise ConfigError(f"the schema has value as {told}; decoded it is a struct")
        elif told != known.type:
            raise ConfigError(f"the schema has {field.name} as {told}; it is {known.type}")
        if field.name == CORRUPT and not keeps_corrupt(options.decode):
            raise ConfigError("the column corrupt needs decode=json or avro in mode=PERMISSIVE")
    if CORRUPT in schema.names and VALUE not in schema.names:
        raise ConfigError("the column corrupt needs the column value beside it")


def wanted_of(schema: StructType, decode: Decode) -> int:
    """The columns that the kernel has to make for a schema."""
    want = WITH_OFFSETS if decode.mode == "FAILFAST" else 0  # where a bad value lies
    for field in schema.fields:
        want |= COLUMNS[field.name].want
    return want
