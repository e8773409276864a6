"""One row of a table that a pipeline keeps, by its key; without Spark, so that it takes a second.

Rules: a table of this kind has the latest row of each key once, so the first one found is it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onelog.base.errors import ConfigError
from onelog.pipelines.needs import need_spark
from onelog.pipelines.options import target_options
from onelog.pipelines.spec import Pipeline
from onelog.pipelines.workspace import Workspace


def table_target(pipeline: Pipeline, wanted: str | None) -> str:
    """The target of a pipeline that has a row for each key. Raises ConfigError."""
    found = [name for name, target in pipeline.targets.items() if target.mode == "upsert"]
    if wanted is not None and wanted in found:
        return wanted
    if wanted is None and len(found) == 1:
        return found[0]
    which = ", ".join(found) or "none"
    raise ConfigError(
        f"the pipeline {pipeline.name} has these targets with one row per key (mode = upsert):"
        f" {which}; choose one with --target"
    )


def get_row(
    pipeline: Pipeline, workspace: Workspace, values: Sequence[str], target: str | None = None
) -> dict[str, Any] | None:
    """The row of a key, or None. Raises ConfigError, NotFound."""
    need_spark()
    import pyarrow.compute as pc  # noqa: PLC0415 - an extra
    from pyarrow import string  # noqa: PLC0415

    from onelog.lake.formats import open_table  # noqa: PLC0415
    from onelog.lake.options import parse_options  # noqa: PLC0415

    name = table_target(pipeline, target)
    keys = pipeline.targets[name].keys
    if len(values) != len(keys):
        raise ConfigError(
            f"targets.{name} has the key {', '.join(keys)}: give {len(keys)} values,"
            f" not {len(values)}"
        )
    table = open_table(parse_options(target_options(pipeline, name, workspace)[1]))
    for file in table.files():
        rows = table.read(file, keys)
        is_it = None
        for key, value in zip(keys, values, strict=True):
            same = pc.equal(pc.cast(rows[key], string()), value)
            is_it = same if is_it is None else pc.and_(is_it, same)
        at = pc.index(is_it, True).as_py()
        if at >= 0:
            row: dict[str, Any] = table.read(file).slice(at, 1).to_pylist()[0]
            return row
    return None
