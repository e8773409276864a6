"""The options of `format("onelog-table")`: one table of them, checked before anything is written.

Rules: an unknown option is an error that names the nearest known one. An option that a format does
not support is refused here, never half done. The case of names does not matter, as in Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from onelog.base.errors import ConfigError
from onelog.lake.partitions import PartitionField, parse_partitions
from onelog.lake.storage import S3_SCHEMES, Storage

Choice = TypeVar("Choice", bound=Enum)
PASSED_ON = ("catalog.", "s3.", "dead.")
SPARK_OWN = ("path", "checkpointlocation", "queryname")
"""Options that Spark itself adds to those of a sink."""


class Format(Enum):
    """How a table is kept."""

    ICEBERG = "iceberg"
    DELTA = "delta"
    PARQUET = "parquet"


class Mode(Enum):
    """What a batch does to existing rows."""

    APPEND = "append"
    UPSERT = "upsert"


class Option(NamedTuple):
    """An option: its name as it is written, and what it is when it is not given."""

    name: str
    default: str | None
    means: str


OPTIONS: tuple[Option, ...] = (
    Option("tableFormat", None, "iceberg, delta or parquet"),
    Option("table", None, "Iceberg: namespace.name; Delta and Parquet: the directory or its URI"),
    Option(
        "catalog", None, "Iceberg: sqlite:///file, postgresql://… or the http(s) address of REST"
    ),
    Option("catalogName", "onelog", "Iceberg: under which name the catalog keeps its tables"),
    Option("warehouse", None, "Iceberg: where tables lie; a REST catalog may know it itself"),
    Option("mode", "append", "append, or upsert: the latest row of each key"),
    Option("keys", None, "upsert: the columns of the key, by comma"),
    Option("orderBy", None, "upsert: the columns that say which row is later, by comma"),
    Option(
        "deleteColumn", None, "upsert: rows in which it is true take their key out of the table"
    ),
    Option("partitionBy", None, "columns, or day(c), bucket(16, c) … for Iceberg, by comma"),
    Option("evolve", "true", "whether new columns and wider types of the rows change the table"),
    Option("required", None, "columns that must not be null, by comma"),
    Option("errorColumn", "_error", "rows in which it is not null are bad; it is not stored"),
    Option("deadLetterTable", None, "a table of the same format that takes bad rows"),
    Option("deadLetterTopic", None, "a topic that takes bad rows; the broker by dead.servers …"),
    Option("compression", "zstd", "of Parquet: zstd, snappy, gzip, lz4, none"),
    Option("fileBytes", str(512 << 20), "a task begins another file beyond this"),
    Option("queryId", None, "batch: with batchId, what makes a repeated write a no-op"),
    Option("batchId", None, "batch: the number of this write; greater than the one before"),
)
_BY_NAME = {option.name.lower(): option for option in OPTIONS}
CODECS = ("zstd", "snappy", "gzip", "lz4", "none")


@dataclass(frozen=True)
class TableOptions:
    """The options of a sink or reader of a table, checked."""

    format: Format
    table: str
    storage: Storage
    catalog: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    catalog_name: str = "onelog"
    mode: Mode = Mode.APPEND
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    delete_column: str | None = None
    partitions: tuple[PartitionField, ...] = ()
    evolve: bool = True
    required: tuple[str, ...] = ()
    error_column: str = "_error"
    dead_letter_table: str | None = None
    dead_letter_topic: str | None = None
    dead_letter_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    compression: str = "zstd"
    file_bytes: int = 512 << 20
    written_as: tuple[str, int] | None = None
    properties: tuple[tuple[str, str], ...] = ()
    """Of a table that is made."""

    @property
    def place(self) -> str:
        """Where the table is, as far as the options say it: for messages."""
        return dict(self.catalog).get("warehouse", self.table)

    @property
    def takes_bad_rows(self) -> bool:
        """Whether bad rows have a place to go to; otherwise the first one fails the batch."""
        return self.dead_letter_table is not None or self.dead_letter_topic is not None


def parse_options(given: Mapping[str, str]) -> TableOptions:
    """Check and read options; ConfigError says which one is wrong and what would be right."""
    low = {name.lower(): text for name, text in given.items()}
    for name in low:
        if name not in _BY_NAME and name not in SPARK_OWN and not name.startswith(PASSED_ON):
            _refuse_unknown(name)

    def get(name: str) -> str | None:
        option = _BY_NAME[name.lower()]
        return low.get(name.lower(), option.default)

    table_format = _choice("tableFormat", get("tableFormat"), Format)
    table = get("table") or low.get("path")
    if not table:
        raise ConfigError("table is missing: give the name or the directory of the table")
    options = TableOptions(
        format=table_format,
        table=table,
        storage=_storage(low),
        catalog=_catalog(table_format, get, _passed_on(low, "catalog.")),
        catalog_name=get("catalogName") or "onelog",
        mode=_choice("mode", get("mode"), Mode),
        keys=_names(get("keys")),
        order_by=_names(get("orderBy")),
        delete_column=get("deleteColumn"),
        partitions=parse_partitions(get("partitionBy") or ""),
        evolve=_flag("evolve", get("evolve")),
        required=_names(get("required")),
        error_column=get("errorColumn") or "_error",
        dead_letter_table=get("deadLetterTable"),
        dead_letter_topic=get("deadLetterTopic"),
        dead_letter_options=_passed_on(low, "dead."),
        compression=_codec(get("compression")),
        file_bytes=_number("fileBytes", get("fileBytes"), 1 << 20),
        written_as=_written_as(get("queryId"), get("batchId")),
    )
    _check(options)
    return options


def _check(options: TableOptions) -> None:
    """Check options that exclude or need each other."""
    if options.mode is Mode.UPSERT:
        if options.format is Format.PARQUET:
            raise ConfigError("mode: plain Parquet cannot replace rows: use iceberg or delta")
        if not options.keys or not options.order_by:
            raise ConfigError(
                "mode: upsert needs keys (whose latest row is kept) and orderBy (what is latest)"
            )
    elif options.keys or options.order_by or options.delete_column:
        raise ConfigError("keys, orderBy and deleteColumn need mode=upsert: set it, or drop them")
    if options.format is not Format.ICEBERG:
        for field in options.partitions:
            if field.transform != "identity":
                raise ConfigError(
                    f"partitionBy: {field} is Iceberg's: "
                    f"{options.format.value} partitions by columns"
                )
    if options.dead_letter_table is not None and options.dead_letter_topic is not None:
        raise ConfigError(
            "deadLetterTable and deadLetterTopic: bad rows go to one of them: drop one"
        )
    if options.dead_letter_topic is not None and "servers" not in dict(options.dead_letter_options):
        raise ConfigError("deadLetterTopic: the broker is missing: set dead.servers to host:port")


def _refuse_unknown(name: str) -> None:
    near = difflib.get_close_matches(name, _BY_NAME, 1)
    hint = f": did you mean {_BY_NAME[near[0]].name}?" if near else ""
    raise ConfigError(f"onelog-table has no option {name}{hint}")


def _storage(low: Mapping[str, str]) -> Storage:
    """How files are reached; a table on a disk does not care what the environment says of S3."""
    given = {name: text for name, text in low.items() if name.startswith("s3.")}
    named = any(text.startswith(S3_SCHEMES) for text in low.values())
    asks = low.get("catalog", "").startswith(("http://", "https://"))  # it knows where tables are
    return Storage.of(given) if given or named or asks else Storage()


def _passed_on(low: Mapping[str, str], prefix: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted((k.removeprefix(prefix), v) for k, v in low.items() if k.startswith(prefix))
    )


def _catalog(
    table_format: Format, get: Callable[[str], str | None], more: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Iceberg's catalog as pyiceberg takes it; nothing for the other formats."""
    uri, warehouse = get("catalog"), get("warehouse")
    if table_format is not Format.ICEBERG:
        if uri or warehouse or more:
            raise ConfigError(f"catalog: {table_format.value} has none: the table is a directory")
        return ()
    if not uri:
        raise ConfigError(
            "catalog is missing: Iceberg needs one: sqlite:///file.db, or a REST address"
        )
    kind = "rest" if uri.startswith(("http://", "https://")) else "sql"
    if kind == "sql" and not warehouse:
        raise ConfigError("warehouse: where the catalog's tables lie is missing: give a directory")
    properties = {"type": kind, "uri": uri, **dict(more)}
    if warehouse:
        properties["warehouse"] = warehouse if "://" in warehouse else f"file://{warehouse}"
    return tuple(sorted(properties.items()))


def _choice(name: str, text: str | None, kind: type[Choice]) -> Choice:
    known = [str(member.value) for member in kind]
    if text is None:
        raise ConfigError(f"{name} is missing: one of {', '.join(known)}")
    if text.lower() not in known:
        raise ConfigError(f"{name} is {text!r}, not one of {', '.join(known)}")
    return kind(text.lower())


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _flag(name: str, text: str | None) -> bool:
    flags = {"true": True, "false": False}
    if (text or "").lower() not in flags:
        raise ConfigError(f"{name} is {text!r}, not true or false")
    return flags[(text or "").lower()]


def _number(name: str, text: str | None, least: int) -> int:
    if not (text or "").isdecimal() or int(text or 0) < least:
        raise ConfigError(f"{name} is {text!r}, not a number of at least {least}")
    return int(text or 0)


def _codec(text: str | None) -> str:
    if (text or "").lower() not in CODECS:
        raise ConfigError(f"compression is {text!r}, not one of {', '.join(CODECS)}")
    return (text or "").lower()


def _written_as(query: str | None, batch: str | None) -> tuple[str, int] | None:
    if query is None and batch is None:
        return None
    if not query or batch is None:
        raise ConfigError("queryId and batchId need each other: give both, or neither")
    return query, _number("batchId", batch, 0)
