"""A run of a pipeline: a query for each target, watched until all end, one fails or we stop.

Rules: a checkpoint belongs to a target of a pipeline and stays where it is, so a run goes on
exactly where the last one ended. A target whose rows are a stream is a query. A target whose rows
are a table is one write, which happens once, however often a failed run is repeated. When one
target fails the others are stopped, too: half a pipeline is worse than none.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from onelog.pipelines.attempts import Ending, OnProgress
from onelog.pipelines.failures import STARTS_MAX, PipelineFailed, is_passing, patiently, told
from onelog.pipelines.graph import Graph
from onelog.pipelines.load import duration_ms
from onelog.pipelines.options import target_options
from onelog.pipelines.progress import Progress, advance, read_reports
from onelog.pipelines.spec import Pipeline
from onelog.pipelines.state import State
from onelog.pipelines.workspace import Workspace, as_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REFRESH_S: Final = 1.0
"""How often the runner reads the progress of the queries; they do not wait for it."""


class PipelineRun:
    """A pipeline that is being run."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, workspace: Workspace, on_progress: OnProgress
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._workspace = workspace
        self._on_progress = on_progress
        self._state = State(workspace.state_dir(pipeline.name))
        self._frames: dict[str, DataFrame] = {}
        self._queries: dict[str, StreamingQuery] = {}
        self._starts: Counter[str] = Counter()
        self._progress: dict[str, Progress] = {}
        # A query's name when it has ended, None when we are to stop. Signals may put to it.
        self._events: SimpleQueue[str | None] = SimpleQueue()

    def stop(self) -> None:
        """End soon; also from a handler of a signal."""
        self._events.put(None)

    def plan(self) -> dict[str, DataFrame]:
        """The rows of every target, as far as Spark can check them without running."""
        self._workspace.lakehouse.mkdir(parents=True, exist_ok=True)
        graph = Graph(self._spark, self._pipeline, self._workspace)
        frames: dict[str, DataFrame] = {}
        for name in self._pipeline.targets:
            try:
                frames[name] = patiently(partial(graph.rows, name))
            except Exception as error:
                raise PipelineFailed(f"targets.{name}: {told(error)}") from error
        return frames

    def run(self) -> Ending:
        """Run until the end. Raises PipelineFailed."""
        self._frames = self.plan()
        try:
            for name, frame in self._frames.items():
                self._progress[name] = Progress()
                if frame.isStreaming:
                    self._begin(name)
            for name, frame in self._frames.items():
                if not frame.isStreaming:
                    self._write(name, frame)
            return self._wait()
        finally:
            with contextlib.suppress(Exception):  # a session that died has ended them all
                self._end()

    # -- targets

    def _checkpoint(self, name: str) -> str:
        root = self._pipeline.checkpoint or str(self._state.folder / "checkpoint")
        return f"{root.rstrip('/')}/{name}"

    def _begin(self, name: str) -> None:
        """Start the query of a target, and have its end told."""
        self._starts[name] += 1
        query = self._queries[name] = self._start(name, self._frames[name])
        threading.Thread(target=self._watch, args=(name, query), daemon=True).start()

    def _start(self, name: str, frame: DataFrame) -> StreamingQuery:
        target = self._pipeline.targets[name]
        writer = frame.writeStream.queryName(f"{self._pipeline.name}_{name}")
        writer = writer.option("checkpointLocation", self._checkpoint(name))
        writer = writer.outputMode(target.output)
        if self._pipeline.mode == "triggered":
            writer = writer.trigger(availableNow=True)
        else:
            every = f"{duration_ms(self._pipeline.every)} milliseconds"
            writer = writer.trigger(processingTime=every)
        if target.console:
            writer = writer.format("console").options(**as_text(target.options))
        else:
            kind, options = target_options(self._pipeline, name, self._workspace)
            writer = writer.format(kind).options(**options)
        try:
            return patiently(writer.start)
        except Exception as error:
            raise PipelineFailed(f"targets.{name}: {told(error)}") from error

    def _write(self, name: str, frame: DataFrame) -> None:
        if self._pipeline.targets[name].console:
            frame.show(100, truncate=False)
            return
        kind, options = target_options(self._pipeline, name, self._workspace)
        job = self._state.next_job(name)
        marks = {"queryId": job.query, "batchId": str(job.number)}
        try:
            writer = frame.write.format(kind).mode("append").options(**options, **marks)
            patiently(writer.save)
        except Exception as error:
            raise PipelineFailed(f"targets.{name}: {told(error)}") from error
        self._state.job_done(name, job)
        self._progress[name] = Progress(batch=job.number)

    # -- until the end

    def _watch(self, name: str, query: StreamingQuery) -> None:
        # The thread that waits asks for the error; here it only has to be woken.
        with contextlib.suppress(Exception):
            query.awaitTermination()
        self._events.put(name)

    def _wait(self) -> Ending:
        left = set(self._queries)
        while left:
            self._look()
            try:
                ended = self._events.get(timeout=REFRESH_S)
            except Empty:
                continue
            if ended is None:
                return "stopped"
            failure: Any = self._queries[ended].exception()
            if is_passing(failure) and self._starts[ended] < STARTS_MAX:
                self._look()
                self._begin(ended)
                continue
            left.discard(ended)
            if failure is not None:
                raise PipelineFailed(f"targets.{ended}: {told(failure)}") from failure
        return "done"

    def _end(self) -> None:
        for query in self._queries.values():
            if query.isActive:
                query.stop()
        self._look()

    def _look(self) -> None:
        for name, query in self._queries.items():
            self._progress[name] = advance(self._progress[name], read_reports(query.recentProgress))
        self._on_progress(dict(self._progress))
