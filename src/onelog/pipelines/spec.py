"""The keys of a pipeline: sources, transforms, targets, and how it runs.

Rules: the structs here are the only list of keys. A key that nothing reads does not exist, and an
unknown key is an error that names the nearest known one. Options of the broker or of a table are
checked by the connector itself, so that a pipeline can say everything that a program can.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, field

Text = Annotated[str, Meta(min_length=1)]
Options = dict[str, str | int | float | bool]
PipelineName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

TABLE_KINDS: Final = ("iceberg", "delta", "parquet")
STREAM_KINDS: Final = ("topics", "filter", "pattern", "stream")
TARGET_KINDS: Final = ("topic", *TABLE_KINDS, "console")
TRANSFORM_KINDS: Final = ("sql", "python", "unique")


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a pipeline's file."""


class TableKeys(Keys, frozen=True, kw_only=True):
    """Which table; one of the three kinds."""

    iceberg: Text | None = None
    delta: Text | None = None
    parquet: Text | None = None
    catalog: Text | None = None
    warehouse: Text | None = None
    options: Options = {}

    def named(self) -> tuple[str, str] | None:
        """The kind and name of the table, if it is one."""
        for kind in TABLE_KINDS:
            name = getattr(self, kind)
            if name is not None:
                return kind, name
        return None


class Source(TableKeys, frozen=True, kw_only=True):
    """Rows that come in: topics as a stream, or a table as it is when the run begins."""

    topics: list[Text] | None = None
    filter: Text | None = None
    pattern: Text | None = None
    stream: Text | None = None
    start: str | int = field(name="from", default="earliest")
    decode: Literal["json", "avro", "string"] | None = None
    schema: Text | None = None
    mode: Literal["permissive", "dropmalformed", "failfast"] | None = None
    headers: bool = False
    watermark: Text | None = None
    watermark_column: Text = "timestamp"
    rows_per_trigger: Annotated[int, Meta(ge=1)] | None = None


class Transform(Keys, frozen=True, kw_only=True):
    """Rows made of rows: by SQL, by a function of Python, or by leaving out what came before."""

    sql: Text | None = None
    python: Text | None = None
    unique: Annotated[list[Text], Meta(min_length=1)] | None = None
    within: Text | None = None
    inputs: list[Text] = field(name="from", default=[])
    watermark: Text | None = None
    watermark_column: Text = "timestamp"


class Target(TableKeys, frozen=True, kw_only=True):
    """Where rows go."""

    rows: Text = field(name="from")
    topic: Text | None = None
    console: bool = False
    mode: Literal["append", "upsert"] = "append"
    output: Literal["append", "update", "complete"] = "append"
    keys: list[Text] = []
    order_by: list[Text] = []
    delete_column: Text | None = None
    partition_by: list[Text] = []
    dead_letter_topic: Text | None = None
    dead_letter_table: Text | None = None


class Upkeep(TableKeys, frozen=True, kw_only=True):
    """A table whose small files are merged, and whose old snapshots expire."""

    small_bytes: int | str = 64 << 20
    snapshots: str = "7d"
    orphans: str = "1d"


class BrokerKeys(Keys, frozen=True, kw_only=True):
    """How the broker is reached; without it the configuration's Kafka listener is taken."""

    servers: Text | None = None
    user: Text | None = None
    password_file: Text | None = None
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    tls: bool = False
    ca_file: Text | None = None
    options: Options = {}


class Pipeline(Keys, frozen=True, kw_only=True):
    """A pipeline, as its file says it."""

    name: PipelineName
    mode: Literal["triggered", "continuous"] = "continuous"
    every: str = "0s"
    master: Text = "local[*]"
    checkpoint: Text | None = None
    broker: BrokerKeys = BrokerKeys()
    spark: Options = {}
    jars: list[Text] = []
    sources: dict[str, Source] = {}
    transforms: dict[str, Transform] = {}
    targets: dict[str, Target] = {}
    upkeep: dict[str, Upkeep] = {}


TABLES_OF: Final[dict[str, type[Keys]]] = {
    "sources": Source,
    "transforms": Transform,
    "targets": Target,
    "upkeep": Upkeep,
}
"""The keys whose values are tables of named things."""
