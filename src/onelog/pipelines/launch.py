"""From a pipeline's file to its end: the tables that are kept up, the session, the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.pipelines.attempts import (
    Ending,
    OnProgress,
    attempt,
    interrupt,
    new_status,
    told_to_stop,
)
from onelog.pipelines.needs import need_spark
from onelog.pipelines.options import check_options, check_topics, second_copies
from onelog.pipelines.progress import Progress
from onelog.pipelines.runner import PipelineRun
from onelog.pipelines.sparks import spark_session
from onelog.pipelines.spec import Pipeline
from onelog.pipelines.state import State
from onelog.pipelines.upkeep import keep_tables_up
from onelog.pipelines.workspace import Workspace, as_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(
    pipeline: Pipeline,
    workspace: Workspace,
    *,
    file: Path,
    on_progress: OnProgress = lambda _: None,
    on_start: Callable[[], None] = lambda: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Ending:
    """Run a pipeline to its end. Raises PipelineFailed, Conflict, ConfigError."""
    need_spark()
    check_options(pipeline, workspace)
    for note in second_copies(pipeline, workspace):
        on_note(note)
    state = State(workspace.state_dir(pipeline.name))
    status = new_status(pipeline.name, file, pipeline.master, pipeline.mode)
    return attempt(
        state, status, on_progress, lambda seen: _run(pipeline, workspace, state, seen, on_start)
    )


def plan_pipeline(pipeline: Pipeline, workspace: Workspace) -> dict[str, str]:
    """The columns of every target, as Spark finds them. Raises PipelineFailed, ConfigError."""
    if not pipeline.targets:
        return {}
    check_topics(pipeline, workspace)
    with _session_of(pipeline, workspace, State(workspace.state_dir(pipeline.name))) as spark:
        frames = PipelineRun(spark, pipeline, workspace, lambda _: None).plan()
        return {name: frame.schema.simpleString() for name, frame in frames.items()}


def _run(
    pipeline: Pipeline,
    workspace: Workspace,
    state: State,
    on_progress: OnProgress,
    on_start: Callable[[], None],
) -> Ending:
    kept = {
        f"upkeep.{name}": Progress(batch=0, rows=done.files_before - done.files_after)
        for name, done in keep_tables_up(pipeline, workspace)
    }
    if kept:
        on_progress(kept)
    if not pipeline.targets:
        return "done"
    with told_to_stop(interrupt), _session_of(pipeline, workspace, state) as spark:
        on_start()
        run = PipelineRun(spark, pipeline, workspace, on_progress)
        with told_to_stop(run.stop):
            return run.run()


def _session_of(
    pipeline: Pipeline, workspace: Workspace, state: State
) -> contextlib.AbstractContextManager[SparkSession]:
    return spark_session(
        workspace.spark(pipeline.master),
        pipeline.name,
        state.log,
        config=as_text(pipeline.spark),
        jars=tuple(pipeline.jars),
    )
