"""The options of the source: names and meanings of Spark's Kafka source, and a few of our own.

Rules: everything is checked here, before a task starts, and an error names its option. Options that
do not fit a batch (limits of triggers) or a stream (ends) are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from onelog.base.errors import ConfigError, InvalidName
from onelog.base.names import to_dotted
from onelog.kafka_client import EARLIEST, LATEST, Access
from onelog.lake.s3_access import S3_OPTIONS, SOURCES
from onelog.spark.options import CONNECTION, Given, Option, access_of

SPLIT_BYTES: Final = 256 << 20
MAX_TRIGGER_DELAY: Final = "15m"
_KAFKA_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_DELAY: Final = re.compile(r"\s*(\d{1,9})\s*(ms|s|m|h|d)?[a-z]*\s*")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 0.001}

OPTIONS: Final = (
    *CONNECTION,
    Option("subscribe", "topics, by comma"),
    Option("subscribePattern", "a regular expression over topic names"),
    Option("assign", '{"topic":[0,1]}: these partitions only'),
    Option("filter", "a topic filter: every topic that matches, a/+/c or a/#"),
    Option("stream", "a stream by its name: all of its records"),
    Option("startingOffsets", 'earliest, latest or {"topic":{"0":23,"1":-2}}'),
    Option("endingOffsets", 'batch: latest or {"topic":{"0":50,"1":-1}}'),
    Option("startingTimestamp", "milliseconds: from the first record of this time on"),
    Option("endingTimestamp", "batch: to before the first record of this time"),
    Option("startingOffsetsByTimestamp", '{"topic":{"0":1700000000000}}'),
    Option("endingOffsetsByTimestamp", "the same for the end"),
    Option(
        "startingOffsetsByTimestampStrategy", "when no record is so late: error, or latest"
    ),
    Option("maxOffsetsPerTrigger", "stream: offsets of one micro-batch", ("maxRowsPerTrigger",)),
    Option("maxBytesPerTrigger", "stream: about so many bytes of one micro-batch"),
    Option("minOffsetsPerTrigger", "stream: wait for so many, but not longer than the next"),
    Option("maxTriggerDelay", "stream: 15m unless told"),
    Option("minPartitions", "at least so many tasks"),
    Option("maxRecordsPerPartition", "at most so many offsets in a task"),
    Option("splitBytes", "about so many bytes in a task; 256 MiB unless told"),
    Option("failOnDataLoss", "false: go on behind offsets that are gone"),
    Option("includeHeaders", "true: with the column headers"),
    Option("group.id", "under which name the broker remembers how far a stream is",
           ("kafka.group.id", "groupIdPrefix")),
    Option("kafka.isolation.level", "read_committed; nothing else is there"),
    Option("columns", "which columns, by comma: the others are not even made"),
    Option("pushdown", "batch, true: filters of the query spare reading; see docs for its price"),
    Option("decode", "what values are: json, avro or string"),
    Option("valueSchema", "of json: Spark's DDL; of avro: the schema as JSON"),
    Option("mode", "a value that cannot be decoded: PERMISSIVE, DROPMALFORMED or FAILFAST"),
    Option("coldReads", "what lies in an object store: auto, read by tasks from the store, or by"
           " the broker"),
    *(Option(name, f"of that store: {row.means}") for name, row in S3_OPTIONS.items()),
    *(Option(name, f"of that store: {means}") for name, means in SOURCES.items()),
)  # fmt: skip

Kind = Literal["subscribe", "subscribePattern", "assign", "filter", "stream"]


@dataclass(frozen=True)
class Topics:
    """Which topics are read."""

    kind: Kind
    names: Mapping[str, str]
    """Kafka's name of each topic, and the name that the user gave."""
    pattern: str = ""
    """`subscribePattern`: the expression; `stream`: the stream's name."""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """`assign`: the partitions by Kafka's name."""


@dataclass(frozen=True)
class Where:
    """A place in every partition."""

    option: str
    """The name of the option, for errors."""
    at: int | None = None
    """EARLIEST, LATEST or a time in milliseconds, for all partitions."""
    each: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Offsets, or times, by Kafka's name and partition."""
    by_time: bool = False
    late: Literal["error", "latest"] = "error"
    """Where to begin if no record is as late as the given time."""


@dataclass(frozen=True)
class Limits:
    """How much a micro-batch takes."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_s: float = 900.0

    def any(self) -> bool:
        """Whether there is one at all."""
        return any((self.offsets_max, self.bytes_max, self.offsets_min))


@dataclass(frozen=True)
class Decode:
    """How values are decoded."""

    kind: str = ""
    schema: str = ""
    mode: str = "PERMISSIVE"


@dataclass(frozen=True)
class ColdReads:
    """How records are read that lie in an object store."""

    mode: str = "auto"
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """`s3.*`, as the user gave them."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options of a source. Plain values: they travel to executors."""

    access: Access
    topics: Topics
    starting: Where
    ending: Where
    limits: Limits
    min_partitions: int
    task_offsets_max: int | None
    split_bytes: int
    fail_on_data_loss: bool
    include_headers: bool
    group: str
    columns: tuple[str, ...]
    decode: Decode
    pushdown: bool = False
    cold: ColdReads = ColdReads()


def source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Read the options of a source. Raises ConfigError.

    `streaming` None: it is not known yet, and what only one of both may have is not refused.
    """
    given = Given(options, OPTIONS)
    given.choice("kafka.isolation.level", ["read_committed"], "read_committed")
    limits = _limits(given)
    if limits.any() and streaming is False:
        raise ConfigError("options …PerTrigger are for streams: a batch has no triggers")
    split = given.number("splitBytes", 1 << 10)
    return SourceOptions(
        access=access_of(given),
        topics=_topics(given),
        starting=_starting(given, streaming=streaming),
        ending=_ending(given, streaming=streaming),
        limits=limits,
        min_partitions=given.number("minPartitions", 1, 1_000_000) or 1,
        task_offsets_max=given.number("maxRecordsPerPartition", 1),
        split_bytes=SPLIT_BYTES if split is None else split,
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        group=given.text("group.id"),
        columns=_columns(given),
        decode=_decode(given),
        pushdown=given.flag("pushdown", default=False),
        cold=_cold(given),
    )


def _cold(given: Given) -> ColdReads:
    mode = given.choice("coldReads", ("auto", "store", "broker"), "auto")
    names = [name for name in (*S3_OPTIONS, *SOURCES) if name in given]
    return ColdReads(mode, tuple((name, given.text(name)) for name in names))


# -- topics


def kafka_name(text: str, option: str) -> str:
    """Kafka's name of a topic that is written `a.b` as in Kafka, or `a/b`."""
    if _KAFKA_NAME.fullmatch(text):
        return text
    try:
        return to_dotted(text)
    except InvalidName as error:
        raise ConfigError(f"option {option}: {error}") from None


def _topics(given: Given) -> Topics:
    kinds: tuple[Kind, ...] = ("subscribe", "subscribePattern", "assign", "filter", "stream")
    chosen = [name for name in kinds if name in given]
    if len(chosen) != 1:
        told = "none is" if not chosen else f"{' and '.join(chosen)} are"
        raise ConfigError(f"{told} given: one of {', '.join(kinds)} says which topics are read")
    kind, text = chosen[0], given.text(chosen[0]).strip()
    if not text:
        raise ConfigError(f"option {kind} is empty")
    if kind == "filter":
        try:
            return Topics(kind, {to_dotted(text): text})
        except InvalidName as error:
            raise ConfigError(f"option filter: {error}") from None
    if kind == "subscribe":
        names = [name.strip() for name in text.split(",") if name.strip()]
        return Topics(kind, {kafka_name(name, kind): name for name in names})
    if kind == "stream":
        return Topics(kind, {}, text)
    if kind == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"option subscribePattern: {text!r}: {error}") from None
        return Topics(kind, {}, text)
    return _assigned(text)


def _assigned(text: str) -> Topics:
    names: dict[str, str] = {}
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, numbers in _json_object(text, "assign").items():
        if not isinstance(numbers, list) or not all(
            isinstance(number, int) and number >= 0 for number in numbers
        ):
            raise ConfigError(f"option assign: {topic!r} needs a list of partitions, as [0,1]")
        name = kafka_name(topic, "assign")
        names[name] = topic
        partitions[name] = tuple(sorted(set(numbers)))
    return Topics("assign", names, "", partitions)


# -- places


def _json_object(text: str, option: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {option}: {text!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"option {option}: {text!r} is not a JSON object of topics")
    return found


def _each(text: str, option: str, least: int) -> dict[str, dict[int, int]]:
    rows: dict[str, dict[int, int]] = {}
    for topic, places in _json_object(text, option).items():
        if not isinstance(places, dict):
            raise ConfigError(f'option {option}: {topic!r} needs partitions, as {{"0":23}}')
        row = rows.setdefault(kafka_name(topic, option), {})
        for number, value in places.items():
            if not number.isdigit() or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"option {option}: {topic!r} partition {number!r}: {value!r} is not an offset"
                )
            row[int(number)] = value
    return rows


def _starting(given: Given, *, streaming: bool | None) -> Where:
    late = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    strategy: Literal["error", "latest"] = "latest" if late == "latest" else "error"
    timestamp = given.number("startingTimestamp")
    if timestamp is not None:
        return Where("startingTimestamp", timestamp, by_time=True, late=strategy)
    name = "startingOffsetsByTimestamp"
    if name in given:
        rows = _each(given.text(name), name, 0)
        return Where(name, None, rows, by_time=True, late=strategy)
    text = given.text("startingOffsets", "latest" if streaming else "earliest").strip()
    if text.lower() == "earliest":
        return Where("startingOffsets", EARLIEST)
    if text.lower() == "latest":
        if streaming is False:
            raise ConfigError("option startingOffsets: a batch cannot start at latest")
        return Where("startingOffsets", LATEST)
    rows = _each(text, "startingOffsets", EARLIEST)
    if streaming is False and any(at == LATEST for row in rows.values() for at in row.values()):
        raise ConfigError("option startingOffsets: a batch cannot start at latest (-1)")
    return Where("startingOffsets", None, rows)


def _ending(given: Given, *, streaming: bool | None) -> Where:
    names = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    for name in names:
        if streaming and name in given:
            raise ConfigError(f"option {name} is for batches: a stream has no end")
    timestamp = given.number("endingTimestamp")
    if timestamp is not None:
        return Where("endingTimestamp", timestamp, by_time=True, late="latest")
    name = "endingOffsetsByTimestamp"
    if name in given:
        return Where(name, None, _each(given.text(name), name, 0), by_time=True, late="latest")
    text = given.text("endingOffsets", "latest").strip()
    if text.lower() == "latest":
        return Where("endingOffsets", LATEST)
    if text.lower() == "earliest":
        raise ConfigError("option endingOffsets: a batch cannot end at earliest")
    return Where("endingOffsets", None, _each(text, "endingOffsets", LATEST))


# -- the rest


def _limits(given: Given) -> Limits:
    delay = given.text("maxTriggerDelay", MAX_TRIGGER_DELAY)
    found = _DELAY.fullmatch(delay.lower())
    if found is None:
        raise ConfigError(
            f"option maxTriggerDelay: {delay!r} is not a duration, such as 15m or 30s"
        )
    limits = Limits(
        given.number("maxOffsetsPerTrigger", 1),
        given.number("maxBytesPerTrigger", 1),
        given.number("minOffsetsPerTrigger", 1),
        int(found[1]) * _UNITS_S[found[2]],
    )
    least, most = limits.offsets_min, limits.offsets_max
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"options minOffsetsPerTrigger ({least}) and maxOffsetsPerTrigger ({most}):"
            " the minimum is larger than the maximum"
        )
    return limits


def _columns(given: Given) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.text("columns").split(",") if name.strip())


def _decode(given: Given) -> Decode:
    if "decode" not in given:
        for name in ("valueSchema", "mode"):
            if name in given:
                raise ConfigError(f"option {name} needs decode=json or decode=avro")
        return Decode()
    kind = given.choice("decode", ("json", "avro", "string"), "")
    modes = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
    return Decode(
        kind, given.text("valueSchema").strip(), given.choice("mode", modes, "PERMISSIVE")
    )
