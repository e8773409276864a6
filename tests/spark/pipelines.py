"""Pipelines in the session of the tests, on the broker of the tests."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from onelog.lake.formats import open_table
from onelog.lake.options import parse_options
from onelog.pipelines import Pipeline, Progress, Workspace, job_text
from onelog.pipelines.load import parse_pipeline
from onelog.pipelines.runner import PipelineRun
from tests.conformance.kafka_brokers import KafkaOnelog
from tests.spark.topics import append, row, servers


def place(broker: KafkaOnelog, folder: Path) -> Workspace:
    return Workspace(folder / "data", servers(broker), folder)


def parsed(text: str, **changes: str) -> Pipeline:
    """A pipeline, with some words of its text changed."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return parse_pipeline(tomllib.loads(text))


def job(kind: str, name: str, changes: Mapping[str, str]) -> Pipeline:
    """A built-in job; its example names are changed to those of a test."""
    text = job_text(kind, name).replace('"continuous"', '"triggered"')
    if spark_version.startswith("4.1."):  # it has no limits for sources, and says so
        text = re.sub("^rows_per_trigger.*$", "", text, flags=re.MULTILINE)
    return parsed(text, **changes)


def run(spark: SparkSession, pipeline: Pipeline, where: Workspace) -> dict[str, Progress]:
    """Run it to its end; how far each target came."""
    seen: dict[str, Progress] = {}
    assert PipelineRun(spark, pipeline, where, seen.update).run() == "done"
    return seen


def send(broker: KafkaOnelog, topic: str, *values: Any, **more: Any) -> None:
    """JSON into partition 0 of a topic; what is text is sent as it is."""
    texts = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
    append(broker, topic, 0, [row(text, **more) for text in texts])


def table_rows(options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every row of a table."""
    table = open_table(parse_options(options))
    return [one for file in table.files() for one in table.read(file).to_pylist()]
