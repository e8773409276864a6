"""The columns of Spark in Arrow's words.

Rules: a column keeps its name, whether it may be null, and the field id that Spark's metadata
carries. A type that no table can store is refused before the first row.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark_types

from onelog.base.errors import InvalidRequest
from onelog.lake.columns import FIELD_ID, PLAIN

SPARK_FIELD_ID = "parquet.field.id"
"""Where Spark keeps the number of a Parquet column, in a column's metadata."""


def arrow_schema(schema: spark_types.StructType) -> pa.Schema:
    """Spark's schema in Arrow's words, with the field ids that Spark's columns carry."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: spark_types.StructField) -> pa.Field:
    made = pa.field(field.name, _arrow_type(field.dataType, field.name), field.nullable)
    number = (field.metadata or {}).get(SPARK_FIELD_ID)
    return made if number is None else made.with_metadata({FIELD_ID: str(number).encode()})


def _arrow_type(kind: spark_types.DataType, column: str) -> pa.DataType:
    if isinstance(kind, spark_types.StructType):
        return pa.struct([_arrow_field(field) for field in kind.fields])
    if isinstance(kind, spark_types.ArrayType):
        element = _arrow_type(kind.elementType, column)
        return pa.list_(pa.field("element", element, kind.containsNull))
    if isinstance(kind, spark_types.MapType):
        value = pa.field("value", _arrow_type(kind.valueType, column), kind.valueContainsNull)
        return pa.map_(_arrow_type(kind.keyType, column), value)
    if isinstance(kind, spark_types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark_types.StringType):  # with any collation
        return pa.string()
    plain = PLAIN.get(kind.simpleString())
    if plain is None:
        raise InvalidRequest(
            f"column {column} has the type {kind.simpleString()}, which no table can store: cast it"
        )
    return plain
