"""Whether the filters of a query may spare reading: only if it reads each relation once.

Rules: Spark keeps the effect of a filter for the whole relation. So a relation that a query reads
twice (a WITH that is used twice, a subquery that Spark turns into a join) would lack the rows that
only the other reading wants. How often a relation is read stands in Spark's plan and not in the
text. If the plan is not accessible (Spark Connect), filters are not used.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
_RELATION: Final = re.compile(r"RelationV2\[([^\]]*)\]")
_COLUMN: Final = re.compile(r"#(\d+)")


def reads_each_once(spark: SparkSession, query: str, relations: Iterable[DataFrame]) -> bool:
    """Whether a query reads each of some relations, which its views are made of, at most once."""
    known = {one for frame in relations for one in _first_columns(_plan(frame, "analyzed"))}
    with _without_filters(spark):
        found = _first_columns(_plan(spark.sql(query), "optimizedPlan"))
    # What Spark copies has columns of its own, or the same ones as the other copy.
    return bool(known) and set(found) <= known and len(found) == len(set(found))


def _first_columns(plan: str) -> list[str]:
    """The identity of each relation of a plan."""
    columns = (_COLUMN.search(text) for text in _RELATION.findall(plan))
    return [found[1] for found in columns if found is not None]


def _plan(frame: DataFrame, which: str) -> str:
    java: Any = getattr(frame, "_jdf", None)
    return "" if java is None else str(getattr(java.queryExecution(), which)().toString())


@contextlib.contextmanager
def _without_filters(spark: SparkSession) -> Iterator[None]:
    """Spark plans as ever and asks no Python for what it can filter, which takes its time."""
    before = spark.conf.get(_SETTING, "false")
    spark.conf.set(_SETTING, "false")
    try:
        yield
    finally:
        spark.conf.set(_SETTING, before or "false")
