"""The rows of a target, as Spark sees them: sources, then transforms in the order of the file.

Rules: each target has its own sources, so that its progress is its own. A name of a source or a
transform is a view of the session while the rows are made, so the next target may have the same
names. A Python function takes data frames and returns one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onelog.base.errors import ConfigError, InvalidRequest
from onelog.pipelines.load import duration_ms
from onelog.pipelines.options import source_options
from onelog.pipelines.spec import Pipeline, Source, Transform
from onelog.pipelines.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Graph:
    """The frames of one target."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, workspace: Workspace) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._workspace = workspace

    def rows(self, target: str) -> DataFrame:
        """The data frame of a target."""
        frames: dict[str, DataFrame] = {}
        wanted = self._pipeline.targets[target].rows
        try:
            for name, source in self._pipeline.sources.items():
                self._add(frames, name, self._read(name, source, target))
            for name, transform in self._pipeline.transforms.items():
                if wanted in frames:
                    break
                self._add(frames, name, self._transformed(name, transform, frames))
            return self._fixed(target, frames[wanted])
        finally:
            for name in frames:
                self._spark.catalog.dropTempView(name)

    def _fixed(self, target: str, rows: DataFrame) -> DataFrame:
        """Rows that do not change with the views that they were made of.

        Spark Connect looks up the names in SQL whenever it runs; what a view is, it keeps.
        """
        from pyspark.sql.utils import is_remote  # noqa: PLC0415 - an extra

        if not is_remote():
            return rows
        view = f"onelog_rows_of_{target}"
        rows.createOrReplaceTempView(view)
        return self._spark.table(view)

    def _add(self, frames: dict[str, DataFrame], name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        frames[name] = frame

    def _read(self, name: str, source: Source, target: str) -> DataFrame:
        if source.named() is not None:
            from onelog.spark import read_table  # noqa: PLC0415 - an extra

            return read_table(self._spark, **self._workspace.table(source))
        options = source_options(self._pipeline, name, target, self._workspace)
        rows = self._spark.readStream.format("onelog").options(**options).load()
        return _marked(rows, source)

    def _transformed(
        self, name: str, transform: Transform, frames: dict[str, DataFrame]
    ) -> DataFrame:
        inputs = [frames[one] for one in transform.inputs]
        if transform.sql is not None:
            rows = self._spark.sql(transform.sql)
        elif transform.unique is not None:
            rows = inputs[0].withWatermark(
                transform.watermark_column, f"{duration_ms(transform.within or '')} milliseconds"
            )
            return rows.dropDuplicatesWithinWatermark(transform.unique)
        else:
            path = f"transforms.{name}.python"
            rows = load_function(transform.python or "", self._workspace.folder, path)(*inputs)
            if not hasattr(rows, "isStreaming"):
                raise InvalidRequest(
                    f"{path}: the function returned {type(rows).__name__}, not a data frame"
                )
        return _marked(rows, transform)


def _marked(rows: DataFrame, keys: Source | Transform) -> DataFrame:
    """The frame with its watermark (the time after which late rows are dropped), if it has one."""
    if keys.watermark is None:
        return rows
    return rows.withWatermark(keys.watermark_column, f"{duration_ms(keys.watermark)} milliseconds")


def load_function(text: str, folder: Path, key: str) -> Callable[..., Any]:
    """The function of `file.py:function`. Raises ConfigError."""
    file_name, _, function = text.rpartition(":")
    file = folder / file_name
    if not file.is_file():
        raise ConfigError(f"{key}: {file} is not a file")
    # It is not put among the modules: what is in none goes to executors by value, not by name.
    spec = importlib.util.spec_from_file_location(f"pipeline_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{key}: {file}: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigError(f"{key}: {file} has no function {function}")
    return found  # type: ignore[no-any-return]
