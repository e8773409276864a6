"""SQL over topics, streams and tables: `topic('a/+/c')`, `stream('s')`, `iceberg('n.t')` and so on.

Rules: these calls stand where a table stands; everything else is Spark's SQL. They are found
outside of strings, quoted names and comments only. A topic or a stream is read up to the end that
it has when the query begins: its objects in a store and the log behind them, each record once. Key
and value are text unless they are decoded, for that is what people type at a prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import ConfigError
from onelog.config.keys import nearest
from onelog.pipelines.failures import patiently
from onelog.pipelines.narrowing import reads_each_once
from onelog.pipelines.options import starting
from onelog.pipelines.spec import BrokerKeys, TableKeys
from onelog.pipelines.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE: Final = 1000
"""How many values are read to find the columns of JSON without a schema."""
_SKIPPED: Final = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|--[^\n]*|/\*.*?\*/"""
_CALL: Final = re.compile(
    rf"(?P<skipped>{_SKIPPED})|(?<![\w.])(?P<call>topic|stream|iceberg|delta|parquet)\s*\(",
    re.IGNORECASE | re.DOTALL,
)
_ARGUMENT: Final = re.compile(
    r"""\s*(?:(?P<name>\w+)\s*=>\s*)?(?:'(?P<text>(?:[^'\\]|\\.|'')*)'|(?P<number>\d+)"""
    r"""|(?P<flag>true|false))\s*(?P<end>[,)])""",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Call:
    """A call that stands for a table."""

    kind: str
    name: str
    view: str
    arguments: dict[str, str] = field(default_factory=dict)


_READING: Final = ("from", "to", "decode", "schema", "mode", "headers", "cold_reads")
ARGUMENTS: Final = {
    "topic": _READING,
    "stream": _READING,
    "iceberg": ("catalog", "warehouse"),
    "delta": (),
    "parquet": (),
}


OF_THE_LOG: Final = {"topic": "filter", "stream": "stream"}
"""Calls that the source reads, and its option for their names."""


def split_calls(query: str) -> tuple[str, list[Call]]:
    """The query with a view in place of each call, and the calls. Raises ConfigError."""
    calls: list[Call] = []
    parts: list[str] = []
    at = 0
    while found := _CALL.search(query, at):
        if found["skipped"] is not None:
            parts.append(query[at : found.end()])
            at = found.end()
            continue
        kind = found["call"].lower()
        name, arguments, end = _arguments(query, found.end(), kind)
        call = Call(kind, name, f"onelog_{kind}_{len(calls)}", arguments)
        calls.append(call)
        parts += [query[at : found.start()], call.view]
        at = end
    return "".join([*parts, query[at:]]), calls


def _arguments(query: str, at: int, kind: str) -> tuple[str, dict[str, str], int]:
    """The name and the named arguments of a call, and where it ends."""
    name: str | None = None
    named: dict[str, str] = {}
    while True:
        found = _ARGUMENT.match(query, at)
        if found is None or (found["name"] is None) != (name is None):
            raise ConfigError(
                f"{kind}({query[at : at + 40]}…: write {kind}('name', argument => 'value')"
            )
        value = found["number"] or found["flag"] or _unquoted(found["text"] or "")
        if found["name"] is None:
            name = value
        else:
            key = found["name"].lower()
            if key not in ARGUMENTS[kind]:
                hint = nearest(key, list(ARGUMENTS[kind]))
                raise ConfigError(f"{kind}('{name}'): there is no argument {key}{hint}")
            named[key] = value
        at = found.end()
        if found["end"] == ")":
            return name or "", named, at


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text.replace("''", "'"), flags=re.DOTALL)


class Query:
    """A query over topics and tables."""

    def __init__(self, spark: SparkSession, workspace: Workspace, broker: BrokerKeys) -> None:
        self._spark = spark
        self._workspace = workspace
        self._broker = broker

    def ask(self, query: str) -> Answer:
        """The rows of a query; nothing is read yet but what JSON looks like."""
        text, calls = split_calls(query)
        self._workspace.lakehouse.mkdir(parents=True, exist_ok=True)
        topics = {
            call.view: patiently(partial(self._options, call))
            for call in calls
            if call.kind in OF_THE_LOG
        }
        frames = [patiently(partial(self._read, call, topics, pushdown=True)) for call in calls]
        _show(calls, frames)
        if topics and not reads_each_once(self._spark, text, frames):
            _show(calls, [self._read(call, topics, pushdown=False) for call in calls])
        return Answer(self._spark.sql(text))

    def _read(
        self, call: Call, topics: Mapping[str, dict[str, str]], *, pushdown: bool
    ) -> DataFrame:
        if call.kind not in OF_THE_LOG:
            return self._table(call)
        options = topics[call.view] | {"pushdown": str(pushdown).lower()}
        frame = self._spark.read.format("onelog").options(**options).load()
        if "key" not in frame.columns:
            return frame
        return frame.withColumn("key", frame["key"].cast("string"))

    def _table(self, call: Call) -> DataFrame:
        from onelog.spark import read_table  # noqa: PLC0415 - an extra

        keys = TableKeys(**{call.kind: call.name}, **call.arguments)  # type: ignore[arg-type]
        return read_table(self._spark, **self._workspace.table(keys))

    def _options(self, call: Call) -> dict[str, str]:
        """The options for the source of a topic."""
        told = call.arguments
        options = self._workspace.connection(self._broker)
        options |= {OF_THE_LOG[call.kind]: call.name, "decode": told.get("decode", "string")}
        if "from" in told:
            options |= _moment(told["from"], f"{call.kind}('{call.name}'): from")
        if "to" in told:
            where = starting(_number(told["to"]), f"{call.kind}('{call.name}'): to")
            options["endingTimestamp"] = where.get("startingTimestamp", "")
        options["includeHeaders"] = told.get("headers", "false")
        if "cold_reads" in told:
            options["coldReads"] = told["cold_reads"]
        if "mode" in told:
            options["mode"] = told["mode"]
        if "schema" in told:
            options["valueSchema"] = told["schema"]
        elif options["decode"] == "json":
            options["valueSchema"] = self._look(call, dict(options))
        return options

    def _look(self, call: Call, options: dict[str, str]) -> str:
        """The columns of JSON, by looking at some of it."""
        plain = options | {"decode": "string", "columns": "value", "includeHeaders": "false"}
        plain.pop("mode", None)
        rows = self._spark.read.format("onelog").options(**plain).load().limit(SAMPLE).collect()
        found = infer_ddl(row.value for row in rows if row.value is not None)
        if found is None:
            raise ConfigError(
                f"{call.kind}('{call.name}'): the first {len(rows)} records have no JSON object to"
                " take the columns from: name them, schema => 'name TYPE, …'"
            )
        return found


def _show(calls: Iterable[Call], frames: Iterable[DataFrame]) -> None:
    """Let the names in the query mean these rows."""
    for call, frame in zip(calls, frames, strict=True):
        frame.createOrReplaceTempView(call.view)


def _moment(text: str, key: str) -> dict[str, str]:
    return starting(_number(text), key)


def _number(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


# -- what JSON looks like

Shape = Any
"""A word of `_PLAIN`, a dict of shapes for an object, a list of one for an array, None: no idea."""
_PLAIN: Final[dict[type, str]] = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "STRING"}


def infer_ddl(values: Iterable[str]) -> str | None:
    """The columns that JSON objects have, as Spark's DDL; None when there is no object."""
    shape: Shape = None
    for value in values:
        try:
            found = json.loads(value)
        except ValueError:
            continue
        if isinstance(found, dict):
            shape = _joined(shape, _shape(found))
    if not shape:
        return None
    return ", ".join(f"{_quoted(name)} {_ddl(inner)}" for name, inner in shape.items())


def _shape(value: Any) -> Shape:
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        inner: Shape = None
        for one in value:
            inner = _joined(inner, _shape(one))
        return [inner]
    return _PLAIN.get(type(value))


def _joined(one: Shape, other: Shape) -> Shape:
    """The shape of values of both; text where they have nothing in common."""
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _joined(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_joined(one[0], other[0])]
    numbers = {"BIGINT", "DOUBLE"}
    if isinstance(one, str) and isinstance(other, str) and {one, other} == numbers:
        return "DOUBLE"
    return "STRING"


def _ddl(shape: Shape) -> str:
    if isinstance(shape, dict):
        inner = ", ".join(f"{_quoted(name)}: {_ddl(one)}" for name, one in shape.items())
        return f"STRUCT<{inner}>" if shape else "STRING"
    if isinstance(shape, list):
        return f"ARRAY<{_ddl(shape[0])}>"
    return shape or "STRING"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# -- what comes out


class Answer:
    """The rows of a query, in the shapes that people want; each asks Spark anew."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return self._frame.columns

    def take(self, count: int) -> list[tuple[Any, ...]]:
        """The first rows."""
        return [tuple(row) for row in self._frame.take(count)]

    def json_lines(self) -> Iterable[str]:
        """All rows, one JSON object each; they pass through here one after the other."""
        text = "to_json(struct(*), map('ignoreNullFields', 'false')) AS line"
        return (row.line for row in self._frame.selectExpr(text).toLocalIterator())

    def write_parquet(self, folder: Path) -> None:
        """All rows, by Spark's own writer."""
        self._frame.write.parquet(str(folder.absolute()))
