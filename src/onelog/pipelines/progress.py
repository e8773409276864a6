"""How far a pipeline is: rows, rows a second, lag and the time of a batch, for each target."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a target is."""

    batch: int = -1
    """The last micro-batch that is done."""
    rows: int = 0
    """Rows read since the run began."""
    rows_per_s: float = 0.0
    """Rows a second of the last micro-batch that had some."""
    lag: int = 0
    """How many offsets are behind the ones that were read."""
    batch_ms: int = 0
    at: str = ""
    """When the last micro-batch began, as Spark says it."""
    state: str = ""
    """Of a flow of a declarative pipeline: queued, running, completed …"""


def read_reports(reports: Iterable[StreamingQueryProgress]) -> Iterator[dict[str, Any]]:
    """Reports as Spark wrote them; its objects lose what offsets are."""
    return (json.loads(one.json) for one in reports)


def advance(known: Progress, reports: Iterable[Mapping[str, Any]]) -> Progress:
    """The progress, updated by newer reports of Spark; these may overlap with it."""
    from onelog.spark import lag  # noqa: PLC0415 - an extra

    for report in reports:
        if report["batchId"] < known.batch or report["timestamp"] <= known.at:
            continue
        rows = int(_total(report, "numInputRows"))
        known = Progress(
            batch=int(report["batchId"]),
            rows=known.rows + rows,
            rows_per_s=_total(report, "processedRowsPerSecond") if rows else known.rows_per_s,
            lag=lag(report),
            batch_ms=int(report["durationMs"].get("triggerExecution", 0))
            if rows
            else known.batch_ms,
            at=str(report["timestamp"]),
            state=known.state,
        )
    return known


def _total(report: Mapping[str, Any], key: str) -> float:
    """A number of all sources; by Spark Connect only each source has it."""
    whole = report.get(key)
    if whole is not None:
        return float(whole)
    return float(sum(source.get(key) or 0 for source in report["sources"]))
