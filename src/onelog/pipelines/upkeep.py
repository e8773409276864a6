"""The part of a pipeline that keeps tables up: no rows come or go."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from onelog.config.units import parse_quantity
from onelog.pipelines.load import duration_ms
from onelog.pipelines.spec import Pipeline
from onelog.pipelines.workspace import Workspace

if TYPE_CHECKING:
    from onelog.lake.upkeep import Upkeep


def keep_tables_up(pipeline: Pipeline, workspace: Workspace) -> Iterator[tuple[str, Upkeep]]:
    """Compact, expire and sweep each table; what was done, one by one."""
    if not pipeline.upkeep:
        return
    from onelog.lake.options import parse_options  # noqa: PLC0415 - an extra
    from onelog.lake.upkeep import keep_up  # noqa: PLC0415

    for name, keys in pipeline.upkeep.items():
        small = keys.small_bytes
        yield (
            name,
            keep_up(
                parse_options(workspace.table(keys)),
                small_bytes=parse_quantity(small, "bytes") if isinstance(small, str) else small,
                snapshot_age=timedelta(milliseconds=duration_ms(keys.snapshots)),
                orphan_age=timedelta(milliseconds=duration_ms(keys.orphans)),
            ),
        )
