"""Tables as data frames, read by Spark's own Parquet reader: no jar, and no Python in between.

Tables in an object store are read by Arrow in Python tasks (`source.py`), since Spark has no jar
for it.

Rules: a read returns the whole table as it is at the moment of the call. Columns of Iceberg are
found by field id in every file, old or new. Partition columns that files leave out come from the
table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.functions import broadcast, col

from onelog.base.errors import InvalidRequest
from onelog.lake.columns import PLAIN, field_id, small
from onelog.lake.formats import open_table
from onelog.lake.options import Format, parse_options
from onelog.lake.storage import is_object_store
from onelog.lake.tables import LakeTable, TableFile
from onelog.spark.lakehouse.spark_columns import SPARK_FIELD_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE = "onelog.file"
_NAMES = {kind: name for name, kind in PLAIN.items()}


def read_table(spark: SparkSession, **options: str) -> DataFrame:
    """A table as a data frame; the options are those of `format("onelog-table")`."""
    parsed = parse_options(options)
    table = open_table(parsed)
    if is_object_store(table.layout.directory):  # Spark's own reader would need a jar
        return spark.read.format("onelog-table").options(**options).load()
    files = table.files()
    schema = spark_schema(table.layout.schema)
    if not files:
        return spark.createDataFrame([], schema)
    if parsed.format is Format.ICEBERG:
        for file in files:
            if file.handle.delete_files:
                raise InvalidRequest(
                    f"the table {parsed.table} has delete files of another engine: read it with "
                    "Iceberg's own jar (onelog.spark.session(jars=['iceberg']))"
                )
        return _by_id(spark, schema, [file.path for file in files])
    root = parsed.table.rstrip("/")
    paths = [f"{root}/{file.path}" for file in files]
    if parsed.format is Format.PARQUET:
        rows = spark.read.schema(schema).option("basePath", root).parquet(*paths)
        return rows.select(*(col(f"`{name}`") for name in schema.names))
    return _with_partitions(spark, table, schema, files, paths)


def _by_id(spark: SparkSession, schema: spark_types.StructType, paths: list[str]) -> DataFrame:
    """Iceberg: columns by id, under names that no file has, and then under their own.

    Spark's vectorized reader takes a column of the same name for one whose id a file lacks.
    """
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    spark.conf.set("spark.sql.parquet.fieldId.read.ignoreMissing", "true")
    hidden = [
        spark_types.StructField(f"onelog.{at}", one.dataType, True, one.metadata)
        for at, one in enumerate(schema.fields)
    ]
    rows = spark.read.schema(spark_types.StructType(hidden)).parquet(*paths)
    pairs = zip(hidden, schema.names, strict=True)
    return rows.select(*(col(f"`{one.name}`").alias(name) for one, name in pairs))


def _with_partitions(
    spark: SparkSession,
    table: LakeTable,
    schema: spark_types.StructType,
    files: list[TableFile],
    paths: list[str],
) -> DataFrame:
    """Delta: partition values stand in the log, by file."""
    parts = [part.source for part in table.layout.partitions]
    stored = spark_types.StructType([one for one in schema.fields if one.name not in parts])
    rows = spark.read.schema(stored).parquet(*paths)
    if not parts:
        return rows
    named = spark_types.StructType(
        [
            spark_types.StructField(_FILE, spark_types.StringType()),
            *(one for one in schema.fields if one.name in parts),
        ]
    )
    values: list[tuple[Any, ...]] = [
        (
            file.path.rsplit("/", 1)[-1],
            *(file.handle["values"][one.name] for one in named.fields[1:]),
        )
        for file in files
    ]
    known = broadcast(spark.createDataFrame(values, named))
    joined = rows.withColumn(_FILE, col("_metadata.file_name")).join(known, _FILE)
    return joined.select(*(col(f"`{name}`") for name in schema.names))


def spark_schema(schema: pa.Schema) -> spark_types.StructType:
    """Arrow's schema in Spark's words, with the ids of its fields."""
    return spark_types.StructType([_spark_field(one) for one in schema])


def _spark_field(field: pa.Field) -> spark_types.StructField:
    number = field_id(field)
    told = None if number is None else {SPARK_FIELD_ID: number}
    return spark_types.StructField(field.name, _spark_type(small(field.type)), True, told)


def _spark_type(kind: pa.DataType) -> spark_types.DataType:
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return spark_types.StructType([_spark_field(one) for one in fields])
    if pa.types.is_list(kind):
        return spark_types.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return spark_types.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return spark_types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return spark_types.TimestampType() if kind.tz else spark_types.TimestampNTZType()
    if kind not in _NAMES:
        raise InvalidRequest(f"Spark has no type for {kind}: leave the column out")
    return SIMPLE[_NAMES[kind]]


SIMPLE: dict[str, spark_types.DataType] = {
    "boolean": spark_types.BooleanType(),
    "tinyint": spark_types.ByteType(),
    "smallint": spark_types.ShortType(),
    "int": spark_types.IntegerType(),
    "bigint": spark_types.LongType(),
    "float": spark_types.FloatType(),
    "double": spark_types.DoubleType(),
    "string": spark_types.StringType(),
    "binary": spark_types.BinaryType(),
    "date": spark_types.DateType(),
}
