"""Filters of a query that spare reading: on topic, partition, offset and timestamp.

Rules: a filter only narrows what is fetched. Spark still applies every filter itself, so a filter
that is not supported here only costs time. A least timestamp gives a least offset, since the broker
knows the first record of a time; a greatest gives none, as times need not ascend.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from onelog.kafka_client import Client, Part
from onelog.spark.source.planning import Slice

OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Bound:
    """Which values of a column can match."""

    least: int = -OFFSET_MAX
    most: int = OFFSET_MAX

    def allows(self, value: int) -> bool:
        """Whether a value can match."""
        return self.least <= value <= self.most


@dataclass(frozen=True)
class Narrowed:
    """The part of the records that filters leave to be read."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition: Bound = Bound()
    offset: Bound = Bound()
    time_us: Bound = Bound()


def narrow(filters: Iterable[Filter]) -> Narrowed:
    """The part that is left to be read when all these filters have to hold."""
    found = Narrowed()
    for row in filters:
        path: tuple[str, ...] = getattr(row, "attribute", ())
        name = path[0] if len(path) == 1 else ""
        if name in ("topic", "partition"):
            found = _among(found, name, row)
        if name in _RANGES:
            found = _between(found, name, row)
    return found


def _among(found: Narrowed, name: str, row: Any) -> Narrowed:
    if isinstance(row, In):
        values = frozenset(row.value)
    elif isinstance(row, EqualTo | EqualNullSafe):
        values = frozenset([row.value])
    else:
        return found
    if name == "topic":
        return replace(found, topics=_both(found.topics, values))
    return replace(found, partitions=_both(found.partitions, values))


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


_RANGES: Final[Mapping[str, str]] = {
    "partition": "partition", "offset": "offset", "timestamp": "time_us",
}  # fmt: skip


def _between(found: Narrowed, name: str, row: Any) -> Narrowed:
    value = _number(getattr(row, "value", None))
    if value is None:
        return found
    known: Bound = getattr(found, _RANGES[name])
    least, most = known.least, known.most
    if isinstance(row, EqualTo | EqualNullSafe | GreaterThanOrEqual):
        least = max(least, value)
    if isinstance(row, EqualTo | EqualNullSafe | LessThanOrEqual):
        most = min(most, value)
    if isinstance(row, GreaterThan):
        least = max(least, value + 1)
    if isinstance(row, LessThan):
        most = min(most, value - 1)
    change: dict[str, Any] = {_RANGES[name]: Bound(least, most)}
    return replace(found, **change)


def _number(value: Any) -> int | None:
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return round(moment.timestamp() * 1_000_000)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def apply(narrowed: Narrowed, slices: Iterable[Slice], client: Client) -> list[Slice]:
    """The parts of slices that are left."""
    kept = []
    for row in slices:
        other = None not in (narrowed.topics, row.shown)
        if other and row.shown not in (narrowed.topics or ()):
            continue
        if narrowed.partitions is not None and row.partition not in narrowed.partitions:
            continue
        if not narrowed.partition.allows(row.partition):
            continue
        kept.append(
            row.cut(max(row.start, narrowed.offset.least), min(row.end, narrowed.offset.most + 1))
        )
    kept = [row for row in kept if row.end > row.start]
    return _since(kept, narrowed.time_us.least, client)


def _since(slices: list[Slice], least_us: int, client: Client) -> list[Slice]:
    least_ms = least_us // 1000
    if least_ms <= 0 or not slices:
        return slices
    asked: dict[Part, int] = {(row.topic, row.partition): least_ms for row in slices}
    found = client.offsets(asked)
    kept = []
    for row in slices:
        first = found[row.topic, row.partition]
        if 0 <= first < row.end:
            kept.append(row.cut(max(row.start, first), row.end))
    return kept
