"""How rows are divided into files: by a column, or for Iceberg by a transform of a column.

Rules: a transform follows Iceberg's specification value for value, so that any engine finds the
rows again. Times are computed on whole columns; `bucket` and `truncate` once for each distinct
value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from onelog.base.errors import ConfigError

TIME_TRANSFORMS = ("year", "month", "day", "hour")
NUMBERED = ("bucket", "truncate")
_FIELD = re.compile(r"\s*(?:(\w+)\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)|([^(),]+?))\s*(?:,|$)")
EPOCH_YEAR = 1970
HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class PartitionField:
    """A column that divides the table, and the transform: `identity`, `day`, `bucket[16]` …"""

    source: str
    transform: str = "identity"

    def __str__(self) -> str:
        return self.source if self.transform == "identity" else f"{self.transform}({self.source})"

    @property
    def name(self) -> str:
        """The name of the partition field, as other engines make it."""
        return {"identity": self.source}.get(
            self.transform, f"{self.source}_{self.transform.partition('[')[0]}"
        )


def parse_partitions(text: str) -> tuple[PartitionField, ...]:
    """Read `region, day(time), bucket(16, device)`."""
    fields: list[PartitionField] = []
    at = 0
    while at < len(text.rstrip()):
        found = _FIELD.match(text, at)
        if found is None:
            raise ConfigError(f"partitionBy: {text!r} cannot be parsed from {text[at:]!r} on")
        at = found.end()
        transform, number, inner, plain = found.groups()
        fields.append(
            PartitionField(plain) if plain else PartitionField(inner, _named(transform, number))
        )
    if len({field.name for field in fields}) < len(fields):
        raise ConfigError(f"partitionBy: {text!r} names the same field twice")
    return tuple(fields)


def _named(transform: str, number: str | None) -> str:
    known = transform.rstrip("s") if transform.rstrip("s") in TIME_TRANSFORMS else transform
    if known in TIME_TRANSFORMS and number is None:
        return known
    if known in NUMBERED and number is not None and int(number) > 0:
        return f"{known}[{int(number)}]"
    raise ConfigError(
        f"partitionBy: {transform} is not one of: a column, year(c), month(c), day(c), "
        "hour(c), bucket(16, c) or truncate(4, c)"
    )


def transformed(field: PartitionField, column: Any) -> Any:
    """The partition values of a column, as an Arrow array."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if field.transform == "identity":
        return column
    if field.transform in TIME_TRANSFORMS:
        return _time(field.transform, column)
    distinct = column.dictionary_encode()
    apply = _iceberg_transform(field.transform, column.type)
    values = [apply(value) for value in distinct.dictionary.to_pylist()]
    kind = pa.int32() if field.transform.startswith("bucket") else column.type
    return pa.array(values, kind).take(distinct.indices)


def _time(transform: str, column: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.compute as pc  # noqa: PLC0415

    if transform == "day":
        return pc.floor_temporal(column, unit="day").cast(pa.date32()).cast(pa.int32())
    if transform == "hour":
        hours = pc.floor_temporal(column, unit="hour").cast(pa.int64())
        return pc.divide(hours, HOUR_US).cast(pa.int32())
    years = pc.subtract(pc.year(column), EPOCH_YEAR)
    if transform == "year":
        return years.cast(pa.int32())
    months = pc.add(pc.multiply(years, 12), pc.subtract(pc.month(column), 1))
    return months.cast(pa.int32())


def _iceberg_transform(transform: str, kind: Any) -> Any:
    from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs as Convert  # noqa: PLC0415
    from pyiceberg.io.pyarrow import visit_pyarrow  # noqa: PLC0415 - an extra
    from pyiceberg.transforms import parse_transform  # noqa: PLC0415

    source: Any = visit_pyarrow(kind, Convert())
    return parse_transform(transform).transform(source)
