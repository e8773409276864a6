"""A run of a declarative pipeline: its definitions become a graph of flows, which Spark runs.

Rules: definitions are loaded, and the run is started, by PySpark's own functions, those of its
command `spark-pipelines`. Spark reports the progress of flows: its events say which flow is queued,
runs or is completed, its listener how many rows a stream has processed.
"""

from __future__ import annotations

import contextlib
import re
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from onelog.base.errors import ConfigError
from onelog.pipelines.attempts import Ending, OnProgress
from onelog.pipelines.declarative.spec import Declarative
from onelog.pipelines.failures import PipelineFailed, told, told_text
from onelog.pipelines.progress import Progress, advance, read_reports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

CATALOG: Final = "spark_catalog"
DATABASE: Final = "default"
_FLOW: Final = re.compile(r"Flow '?([^\s']+)'? (?:is|has) ([A-Z]+)\b")
_FAILED: Final = re.compile(
    r"(?:Flow|Failed to resolve flow:) '([^']+)'.*?\nError: (.+)", re.DOTALL
)


class Message(NamedTuple):
    """An event of Spark: words for people."""

    text: str


class Report(NamedTuple):
    """How far the stream of a flow is."""

    flow: str
    progress: StreamingQueryProgress


class Ended(NamedTuple):
    """It is over."""

    how: Ending
    error: Exception | None = None


Event = Message | Report | Ended


@dataclass(frozen=True, kw_only=True)
class Refresh:
    """The tables and flows that are refreshed; by default everything goes on where it was."""

    only: Sequence[str] = ()
    full: Sequence[str] = ()
    full_all: bool = False

    def __post_init__(self) -> None:
        if self.full_all and (self.only or self.full):
            raise ConfigError(
                "--full-refresh-all refreshes everything: drop --refresh and --full-refresh"
            )

    def __bool__(self) -> bool:
        return bool(self.only or self.full or self.full_all)


EVERYTHING: Final = Refresh()


class DeclarativeRun:
    """A declarative pipeline that is being run."""

    def __init__(self, spark: SparkSession, pipeline: Declarative, storage: str, log: Path) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._storage = storage
        self._log = log
        self._progress: dict[str, Progress] = {}
        self._failures: dict[str, str] = {}
        self._events: SimpleQueue[Event] = SimpleQueue()

    def stop(self) -> None:
        """End soon; also from a handler of a signal."""
        self._events.put(Ended("stopped"))

    def plan(self) -> None:
        """Let Spark check the graph: names, columns, sources. Raises PipelineFailed."""
        self._run(EVERYTHING, lambda _: None, dry=True)

    def run(self, refresh: Refresh, on_progress: OnProgress) -> Ending:
        """Run until the end. Raises PipelineFailed."""
        with self._reports():
            return self._run(refresh, on_progress, dry=False)

    def _run(self, refresh: Refresh, on_progress: OnProgress, *, dry: bool) -> Ending:
        from pyspark.pipelines import spark_connect_pipeline  # noqa: PLC0415 - an extra

        graph = self._graph()
        events = spark_connect_pipeline.start_run(
            self._spark,
            graph,
            full_refresh=refresh.full,
            full_refresh_all=refresh.full_all,
            refresh=refresh.only,
            dry=dry,
            storage=self._storage,
        )
        threading.Thread(target=self._follow, args=(events,), daemon=True).start()
        while True:
            event = self._events.get()
            if isinstance(event, Ended):
                if event.error is not None:
                    raise self._failure(event.error) from event.error
                if refresh and all(one.state == "excluded" for one in self._progress.values()):
                    names = ", ".join((*refresh.only, *refresh.full))
                    raise PipelineFailed(
                        f"nothing was done: the definitions have no table or view {names}"
                    )
                return event.how
            if self._learn(event):
                on_progress(dict(self._progress))

    # -- the graph

    def _graph(self) -> str:
        """Load the definitions; the graph's name at Spark. Raises PipelineFailed."""
        from pyspark.pipelines import cli, spark_connect_pipeline  # noqa: PLC0415 - an extra
        from pyspark.pipelines.spark_connect_graph_element_registry import (  # noqa: PLC0415
            SparkConnectGraphElementRegistry,
        )

        spec = cli.unpack_pipeline_spec(self._pipeline.tree(self._storage))
        graph = spark_connect_pipeline.create_dataflow_graph(
            self._spark,
            default_catalog=spec.catalog,
            default_database=spec.database,
            sql_conf=spec.configuration,
        )
        registry = SparkConnectGraphElementRegistry(self._spark, graph)
        file = self._pipeline.file
        try:
            # PySpark, and definitions that print, write to standard output, which is not theirs.
            with self._log.open("a") as log, contextlib.redirect_stdout(log):
                cli.register_definitions(file, registry, spec, self._spark, graph)
        except Exception as error:
            raise PipelineFailed(f"{_where(error, file.parent)}{told(error)}") from error
        return graph

    # -- how far it is

    def _follow(self, events: Iterable[Mapping[str, Any]]) -> None:
        try:
            for result in events:
                if "pipeline_event_result" in result:
                    text = str(result["pipeline_event_result"].event.message)
                    self._events.put(Message(text))
        except Exception as error:  # noqa: BLE001 - the thread that waits for the end raises it
            self._events.put(Ended("stopped", error))
        else:
            self._events.put(Ended("done"))

    @contextlib.contextmanager
    def _reports(self) -> Iterator[None]:
        """Have streams report how far they are."""
        from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415

        told_to: SimpleQueue[Event] = self._events

        class Reports(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:
                pass

            def onQueryProgress(self, event: Any) -> None:
                told_to.put(Report(str(event.progress.name), event.progress))

            def onQueryIdle(self, event: Any) -> None:
                pass

            def onQueryTerminated(self, event: Any) -> None:
                pass

        listener = Reports()
        self._spark.streams.addListener(listener)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # a session that died hears nothing more
                self._spark.streams.removeListener(listener)

    def _learn(self, event: Message | Report) -> bool:
        """Whether something is known now that was not."""
        if isinstance(event, Report):
            name = self._short(event.flow)
            known = self._progress.get(name, Progress())
            self._progress[name] = advance(known, read_reports([event.progress]))
            return True
        with self._log.open("a") as log:
            log.write(f"{event.text}\n")
        failed = _FAILED.search(event.text)
        if failed is not None:
            self._failures[self._short(failed[1])] = failed[2]
        found = _FLOW.search(event.text)
        if found is None:
            return False
        name = self._short(found[1])
        known = self._progress.get(name, Progress())
        self._progress[name] = msgspec.structs.replace(known, state=found[2].lower())
        return True

    def _failure(self, error: Exception) -> PipelineFailed:
        """The error of the flow that failed first; the run's own error names no reason."""
        for flow, text in self._failures.items():
            return PipelineFailed(f"flow {flow}: {told_text(text)}")
        return PipelineFailed(told(error))

    def _short(self, flow: str) -> str:
        """A flow's name without what all of them begin with."""
        keys = self._pipeline.keys
        database = keys.database or keys.schema or DATABASE
        return flow.removeprefix(f"{keys.catalog or CATALOG}.{database}.")


def _where(error: BaseException, folder: Path) -> str:
    """The line of the definitions in which it went wrong, if it did in one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    kind = type(error).__name__
    return f"{ours[-1].filename}:{ours[-1].lineno}: {kind}: " if ours else ""
