"""From a pipeline's file to its end: the lock, the session, signals, and what others are told.

Rules: SIGTERM and Ctrl-C end a run in order; kill -9 is no harm, since the next run goes on from
the checkpoint. What Spark writes to standard error is kept in the pipeline's log, so that the
terminal has only what was asked for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from onelog.base.errors import OnelogError
from onelog.pipelines.failures import PipelineFailed, told
from onelog.pipelines.needs import need_spark
from onelog.pipelines.options import check_options
from onelog.pipelines.place import Place, as_text
from onelog.pipelines.progress import Progress
from onelog.pipelines.runner import OnProgress, Run
from onelog.pipelines.spec import Pipeline
from onelog.pipelines.state import State, Status
from onelog.pipelines.upkeep import keep_tables_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local"
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def spark_session(
    master: str,
    name: str,
    log: Path,
    *,
    config: Mapping[str, str] | None = None,
    jars: tuple[str, ...] = (),
) -> Iterator[SparkSession]:
    """A session for one command; it ends with the block."""
    need_spark()
    from onelog.spark import session  # noqa: PLC0415 - an extra

    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    settings["spark.log.level"] = "WARN"
    if master.startswith(LOCAL):
        # One machine: nobody else is to reach it, and a shuffle has as many parts as there are
        # cores, not the two hundred of a cluster.
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    with _errors_into(log):
        spark = session(master, name=name, jars=jars, config=settings | dict(config or {}))
    try:
        yield spark
    finally:
        with _errors_into(log):
            spark.stop()


@contextlib.contextmanager
def _errors_into(log: Path) -> Iterator[None]:
    """Who is started in this block writes its errors into a file for as long as it lives."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as out:
            os.dup2(out.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def run_pipeline(
    pipeline: Pipeline,
    place: Place,
    *,
    file: Path,
    on_progress: OnProgress = lambda _: None,
    on_start: Callable[[], None] = lambda: None,
) -> Literal["done", "stopped"]:
    """Run a pipeline to its end. Raises PipelineFailed, Conflict, ConfigError."""
    need_spark()
    check_options(pipeline, place)
    state = State(place.state_dir(pipeline.name))
    with state.held():
        told_last = Status(
            name=pipeline.name,
            file=str(file.absolute()),
            master=pipeline.master,
            mode=pipeline.mode,
            pid=os.getpid(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        state.save(told_last)

        def seen(progress: Mapping[str, Progress]) -> None:
            nonlocal told_last
            told_last = msgspec.structs.replace(told_last, phase="running", targets=dict(progress))
            state.save(told_last)
            on_progress(progress)

        try:
            ending = _run(pipeline, place, state, seen, on_start)
        except KeyboardInterrupt:
            state.save(msgspec.structs.replace(told_last, phase="stopped"))
            raise
        except Exception as error:
            state.save(msgspec.structs.replace(told_last, phase="failed", error=told(error)))
            if isinstance(error, OnelogError):
                raise
            raise PipelineFailed(f"{told(error)}; Spark's own log is {state.log}") from error
        state.save(msgspec.structs.replace(told_last, phase=ending))
        return ending


def plan_pipeline(pipeline: Pipeline, place: Place) -> dict[str, str]:
    """The columns of every target, as Spark finds them. Raises PipelineFailed."""
    if not pipeline.targets:
        return {}
    log = place.state_dir(pipeline.name) / "spark.log"
    with spark_session(
        pipeline.master, pipeline.name, log, config=as_text(pipeline.spark)
    ) as spark:
        frames = Run(spark, pipeline, place, lambda _: None).plan()
        return {name: frame.schema.simpleString() for name, frame in frames.items()}


def _run(
    pipeline: Pipeline,
    place: Place,
    state: State,
    on_progress: OnProgress,
    on_start: Callable[[], None],
) -> Literal["done", "stopped"]:
    kept = {
        f"upkeep.{name}": Progress(batch=0, rows=done.files_before - done.files_after)
        for name, done in keep_tables_up(pipeline, place)
    }
    if kept:
        on_progress(kept)
    if not pipeline.targets:
        return "done"
    with _told_to_stop(_interrupt), _session_of(pipeline, state) as spark:
        on_start()
        run = Run(spark, pipeline, place, on_progress)
        with _told_to_stop(run.stop):
            return run.run()


def _session_of(
    pipeline: Pipeline, state: State
) -> contextlib.AbstractContextManager[SparkSession]:
    return spark_session(
        pipeline.master,
        pipeline.name,
        state.log,
        config=as_text(pipeline.spark),
        jars=tuple(pipeline.jars),
    )


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _told_to_stop(stop: Callable[[], None]) -> Iterator[None]:
    """What signals do while the block runs; after it they mean what they did."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
