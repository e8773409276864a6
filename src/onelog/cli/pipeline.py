"""`onelog pipeline …`: pipelines are written, checked, run, watched and stopped.

Rules: what only these commands need is imported when one of them runs; all others start faster,
and OneLog needs no Spark for anything else. A pipeline is named by its file to run it, and by its
name once it has run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from onelog.base.errors import ConfigError
from onelog.cli import pipeline_view, render
from onelog.cli.options import Assignments, ConfigFile, DataDir, load_options

if TYPE_CHECKING:
    from onelog.pipelines import Pipeline
    from onelog.pipelines.place import Place

JobName = Literal["transform", "archive", "table", "compact", "dedupe", "sessionise", "replay"]
Flag = Parameter(negative=(), show_default=False)
Master = Annotated[
    str | None, Parameter(help="Where Spark runs: local[*], spark://…, k8s://…, yarn, sc://….")
]
Servers = Annotated[
    str | None, Parameter(help="host:port of the broker's Kafka listener; default: configuration.")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Which data directory, and which broker."""

    config: ConfigFile = None
    data: DataDir = None
    servers: Servers = None
    assignments: Assignments = ()

    def place(self, folder: Path = Path()) -> Place:
        """The surroundings of a pipeline."""
        from onelog.pipelines.place import Place  # noqa: PLC0415 - see above

        loaded = load_options(self.config, self.data, self.assignments).config
        listener = loaded.listeners.kafka
        host = "127.0.0.1" if listener.host in ("0.0.0.0", "::") else listener.host  # noqa: S104
        servers = self.servers or f"{host}:{listener.port}"
        return Place(Path(loaded.data_dir), servers, folder)


HERE = Where()


def build_pipelines() -> App:
    """The commands of `onelog pipeline`."""
    app = App(name="pipeline", help="Data pipelines on Spark: topics to tables and topics.")
    _add_writing(app)
    _add_running(app)
    _add_watching(app)
    return app


def _add_writing(app: App) -> None:
    @app.command
    def init(file: Path = Path("pipeline.toml"), *, job: JobName = "transform") -> None:
        """Write a pipeline to begin with.

        Parameters
        ----------
        file
            Where to write it; an existing file is left alone. The pipeline is named after it.
        job
            Which one: transform, archive, table, compact, dedupe, sessionise or replay.
        """
        from onelog.pipelines import job_text  # noqa: PLC0415

        try:
            with file.open("x", encoding="utf-8") as out:
                out.write(job_text(job, file.stem))
        except FileExistsError:
            raise ConfigError(f"{file} exists already; it was left as it is") from None
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
        render.OUT.print(f"wrote {file}; `onelog pipeline run {file}` runs it")

    @app.command
    def validate(
        file: Path,
        *,
        plan: Annotated[bool, Flag] = False,
        where: Where = HERE,
    ) -> None:
        """Check a pipeline without running it.

        Parameters
        ----------
        file
            The pipeline.
        plan
            Start Spark, too, and let it check SQL, functions and columns against the topics.
        """
        from onelog.pipelines.needs import need_spark  # noqa: PLC0415
        from onelog.pipelines.options import check_options  # noqa: PLC0415

        pipeline = _loaded(file)
        place = where.place(file.parent)
        need_spark()
        check_options(pipeline, place)
        if plan:
            from onelog.pipelines.launch import plan_pipeline  # noqa: PLC0415

            for name, columns in plan_pipeline(pipeline, place).items():
                render.OUT.print(f"targets.{name}: {columns}", markup=False)
        counts = ", ".join(
            f"{len(getattr(pipeline, kind))} {kind}"
            for kind in ("sources", "transforms", "targets", "upkeep")
            if getattr(pipeline, kind)
        )
        render.OUT.print(f"{file}: pipeline {pipeline.name} ok: {counts}", markup=False)


def _loaded(file: Path) -> Pipeline:
    from onelog.pipelines import load_pipeline  # noqa: PLC0415

    return load_pipeline(file)


def _add_running(app: App) -> None:
    @app.command
    def run(
        file: Path,
        *,
        master: Master = None,
        once: Annotated[bool, Flag] = False,
        where: Where = HERE,
    ) -> None:
        """Run a pipeline until it is done, or until Ctrl-C; a next run goes on where it was.

        Parameters
        ----------
        file
            The pipeline.
        once
            Do what there is now and end, whatever the file says.
        """
        from onelog.pipelines.launch import run_pipeline  # noqa: PLC0415

        pipeline = _loaded(file)
        if master is not None:
            pipeline = msgspec.structs.replace(pipeline, master=master)
        if once:
            pipeline = msgspec.structs.replace(pipeline, mode="triggered")
        with pipeline_view.Watch(pipeline.name, pipeline.master) as watch:
            ending = run_pipeline(
                pipeline,
                where.place(file.parent),
                file=file,
                on_progress=watch.show,
                on_start=watch.started,
            )
        render.OUT.print(f"pipeline {pipeline.name}: {ending}", markup=False)


def _add_watching(app: App) -> None:
    @app.command(name="list")
    def list_command(*, where: Where = HERE) -> None:
        """Show every pipeline that has run in this data directory."""
        from onelog.pipelines import known_pipelines  # noqa: PLC0415

        pipeline_view.print_list(
            [state.status() for state in known_pipelines(where.place().data_dir)]
        )

    @app.command
    def status(name: str, *, json: Annotated[bool, Flag] = False, where: Where = HERE) -> None:
        """Show how far a pipeline is, or how it ended.

        Parameters
        ----------
        name
            The pipeline's name, or its file.
        json
            One JSON object.
        """
        from onelog.pipelines import State  # noqa: PLC0415

        found = State(where.place().state_dir(_named(name))).status()
        if json:
            render.OUT.print(msgspec.json.encode(found).decode(), markup=False)
        else:
            pipeline_view.print_status(found)

    @app.command
    def stop(name: str, *, timeout: float = 60.0, where: Where = HERE) -> None:
        """End a pipeline that runs, in order; its next run goes on where it was.

        Parameters
        ----------
        name
            The pipeline's name, or its file.
        timeout
            How many seconds to wait until it has ended.
        """
        from onelog.pipelines import State  # noqa: PLC0415

        state = State(where.place().state_dir(_named(name)))
        ran = state.stop(timeout)
        told = "stopped" if ran else "does not run"
        render.OUT.print(f"pipeline {state.folder.name}: {told}", markup=False)


def _named(name: str) -> str:
    """The name of a pipeline that is named by its file or by itself."""
    return _loaded(Path(name)).name if name.endswith(".toml") else name
