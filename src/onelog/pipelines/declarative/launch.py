"""From a spec to its end: the broker and the lakehouse in the environment, a catalog, the run.

Rules: a table of the definitions outlives the run, so its catalog has to, too: Hive's, in a file
of the pipeline's directory, unless the spec names another one. A run processes what is there, then
ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from onelog.pipelines.attempts import (
    Ending,
    OnProgress,
    attempt,
    interrupt,
    new_status,
    told_to_stop,
)
from onelog.pipelines.declarative.run import EVERYTHING, DeclarativeRun, Refresh
from onelog.pipelines.declarative.spec import Declarative
from onelog.pipelines.sparks import connect_session, environment, kept_catalog
from onelog.pipelines.state import State
from onelog.pipelines.workspace import Workspace
from onelog.spark.masters import Kind, kind_of

MODE: Final = "triggered"


def run_declarative(
    pipeline: Declarative,
    workspace: Workspace,
    *,
    refresh: Refresh = EVERYTHING,
    on_progress: OnProgress = lambda _: None,
    on_start: Callable[[], None] = lambda: None,
) -> Ending:
    """Run a declarative pipeline to its end. Raises PipelineFailed, Conflict, ConfigError."""
    state = State(workspace.state_dir(pipeline.name))

    def work(seen: OnProgress) -> Ending:
        with told_to_stop(interrupt), _begun(pipeline, workspace, state) as run:
            on_start()
            with told_to_stop(run.stop):
                return run.run(refresh, seen)

    status = new_status(pipeline.name, pipeline.file, pipeline.master, MODE)
    return attempt(state, status, on_progress, work)


def plan_declarative(pipeline: Declarative, workspace: Workspace) -> None:
    """Let Spark check it without running it. Raises PipelineFailed, Conflict."""
    state = State(workspace.state_dir(pipeline.name))
    with state.held(), _begun(pipeline, workspace, state) as run:
        run.plan()


@contextlib.contextmanager
def _begun(pipeline: Declarative, workspace: Workspace, state: State) -> Iterator[DeclarativeRun]:
    workspace.lakehouse.mkdir(parents=True, exist_ok=True)
    remote = kind_of(pipeline.master) is Kind.CONNECT
    kept = {} if remote else kept_catalog(state.folder)
    storage = pipeline.keys.storage or f"file://{state.folder / 'storage'}"
    with (
        environment(workspace.environment()),
        connect_session(
            workspace.spark(pipeline.master),
            pipeline.name,
            state.log,
            config=kept | pipeline.keys.configuration,
        ) as spark,
    ):
        yield DeclarativeRun(spark, pipeline, storage, state.log)
