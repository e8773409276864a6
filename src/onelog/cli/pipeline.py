"""`onelog pipeline …`: writes, checks, runs, watches and stops pipelines.

Rules: modules that only these commands need are imported when one of them runs, so that other
commands start faster and OneLog needs no Spark for anything else. To run a pipeline, name its file;
after that, its name is enough.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from onelog.base.errors import ConfigError
from onelog.cli import pipeline_view, render
from onelog.cli.client import path_of
from onelog.cli.options import Assignments, ConfigFile, DataDir, load_options
from onelog.cli.places import CaFile, Insecure, Place, ServerUrl, connected

if TYPE_CHECKING:
    from onelog.pipelines import Pipeline, Status
    from onelog.pipelines.declarative import Declarative
    from onelog.pipelines.declarative.run import Refresh
    from onelog.pipelines.workspace import Workspace

JobName = Literal["transform", "archive", "table", "compact", "dedupe", "sessionise", "replay"]
Flag = Parameter(negative=(), show_default=False)
Master = Annotated[
    str | None, Parameter(help="Where Spark runs: local[*], spark://…, k8s://…, yarn, sc://….")
]
Servers = Annotated[
    str | None,
    Parameter(
        help="host:port of the broker's Kafka listener; default: ONELOG_SERVERS, configuration."
    ),
]
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Which data directory, and which broker."""

    config: ConfigFile = None
    data: DataDir = None
    servers: Servers = None
    assignments: Assignments = ()

    def workspace(self, folder: Path = Path()) -> Workspace:
        """The surroundings of a pipeline."""
        from onelog.pipelines.workspace import Workspace  # noqa: PLC0415 - see above
        from onelog.spark.options import SERVERS  # noqa: PLC0415

        loaded = load_options(self.config, self.data, self.assignments).config
        listener = loaded.listeners.kafka
        host = "127.0.0.1" if listener.host in ("0.0.0.0", "::") else listener.host  # noqa: S104
        servers = self.servers or os.environ.get(SERVERS) or f"{host}:{listener.port}"
        return Workspace(Path(loaded.data_dir), servers, folder)


HERE = Where()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Watched(Where):
    """Which data directory, or which server anywhere."""

    url: ServerUrl = ""
    ca_file: CaFile = ""
    insecure: Insecure = False

    @property
    def place(self) -> Place:
        """The server, if one is named."""
        return Place(
            url=self.url,
            ca_file=self.ca_file,
            insecure=self.insecure,
            config=self.config,
            data=self.data,
            assignments=self.assignments,
        )


WATCHED = Watched()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Refreshing:
    """The tables, views and flows that a declarative pipeline refreshes."""

    refresh: Annotated[
        Names, Parameter(help="For .yml files: only these tables, views and flows.")
    ] = ()
    full_refresh: Annotated[
        Names, Parameter(help="For .yml files: empty these, and fill them from the beginning.")
    ] = ()
    full_refresh_all: Annotated[
        bool,
        Flag,
        Parameter(help="For .yml files: empty everything, and fill it from the beginning."),
    ] = False

    def told(self) -> Refresh:
        """The same, as the runner takes it."""
        from onelog.pipelines.declarative.run import Refresh  # noqa: PLC0415 - see above

        return Refresh(only=self.refresh, full=self.full_refresh, full_all=self.full_refresh_all)


AS_IT_WAS = Refreshing()


def build_pipelines() -> App:
    """The commands of `onelog pipeline`."""
    app = App(name="pipeline", help="Data pipelines on Spark: topics to tables and topics.")
    _add_writing(app)
    _add_running(app)
    _add_watching(app)
    return app


def _add_writing(app: App) -> None:
    @app.command
    def init(file: Path = Path("pipeline.toml"), *, job: JobName | None = None) -> None:
        """Write a pipeline to begin with.

        Parameters
        ----------
        file
            The file to write; an existing file is not changed. The pipeline gets its name. A file
            that ends in .yml is a spec of Spark Declarative Pipelines, with definitions beside it.
            job The kind of pipeline: transform, archive, table, compact, dedupe, sessionise or
            replay.
        """
        from onelog.pipelines import job_text  # noqa: PLC0415
        from onelog.pipelines.declarative import is_declarative, write_project  # noqa: PLC0415

        if is_declarative(file):
            if job is not None:
                raise ConfigError(f"--job {job} is written as TOML: name a file that ends in .toml")
            written = write_project(file)
        else:
            written = [file]
            try:
                with file.open("x", encoding="utf-8") as out:
                    out.write(job_text(job or "transform", file.stem))
            except FileExistsError:
                raise ConfigError(f"{file} exists already; nothing was written") from None
            except OSError as error:
                raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
        told = " and ".join(map(str, written))
        render.OUT.print(f"wrote {told}; `onelog pipeline run {file}` runs it", markup=False)

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
        from onelog.pipelines.declarative import Declarative  # noqa: PLC0415

        pipeline = _loaded(file)
        workspace = where.workspace(file.parent)
        if isinstance(pipeline, Declarative):
            told = _validated_spec(pipeline, workspace, plan=plan)
        else:
            told = _validated(pipeline, workspace, plan=plan)
        render.OUT.print(f"{file}: pipeline {pipeline.name} ok: {told}", markup=False)


def _validated(pipeline: Pipeline, workspace: Workspace, *, plan: bool) -> str:
    """Check a pipeline of TOML; what it has."""
    from onelog.pipelines.launch import plan_pipeline  # noqa: PLC0415
    from onelog.pipelines.needs import need_spark  # noqa: PLC0415
    from onelog.pipelines.options import check_options, second_copies  # noqa: PLC0415

    need_spark()
    check_options(pipeline, workspace)
    if plan:
        for note in second_copies(pipeline, workspace):
            render.ERRORS.print(note, markup=False)
        for name, columns in plan_pipeline(pipeline, workspace).items():
            render.OUT.print(f"targets.{name}: {columns}", markup=False)
    return ", ".join(
        f"{len(getattr(pipeline, kind))} {kind}"
        for kind in ("sources", "transforms", "targets", "upkeep")
        if getattr(pipeline, kind)
    )


def _validated_spec(pipeline: Declarative, workspace: Workspace, *, plan: bool) -> str:
    """Check a declarative pipeline; what it has."""
    if plan:
        from onelog.pipelines.declarative.launch import plan_declarative  # noqa: PLC0415

        plan_declarative(pipeline, workspace)
    return ", ".join(library.glob.include for library in pipeline.keys.libraries)


def _loaded(file: Path) -> Pipeline | Declarative:
    from onelog.pipelines import load_pipeline  # noqa: PLC0415
    from onelog.pipelines.declarative import is_declarative, load_declarative  # noqa: PLC0415

    return load_declarative(file) if is_declarative(file) else load_pipeline(file)


def _add_running(app: App) -> None:
    @app.command
    def run(
        file: Path,
        *,
        master: Master = None,
        once: Annotated[bool, Flag] = False,
        refreshing: Refreshing = AS_IT_WAS,
        where: Where = HERE,
    ) -> None:
        """Run a pipeline until it is done, or until Ctrl-C; the next run goes on where it ended.

        Parameters
        ----------
        file
            The pipeline.
        once
            Process what is there now, then end, whatever the file says. A .yml always does this.
        """
        from onelog.pipelines.declarative import Declarative  # noqa: PLC0415
        from onelog.pipelines.declarative.launch import run_declarative  # noqa: PLC0415
        from onelog.pipelines.launch import run_pipeline  # noqa: PLC0415

        pipeline = _loaded(file)
        workspace, refresh = where.workspace(file.parent), refreshing.told()
        if master is not None:
            pipeline = msgspec.structs.replace(pipeline, master=master)
        with pipeline_view.Watch(pipeline.name, pipeline.master) as watch:
            if isinstance(pipeline, Declarative):
                ending = run_declarative(
                    pipeline,
                    workspace,
                    refresh=refresh,
                    on_progress=watch.show,
                    on_start=watch.started,
                )
            elif refresh:
                raise ConfigError("--refresh and --full-refresh are for declarative pipelines")
            else:
                if once:
                    pipeline = msgspec.structs.replace(pipeline, mode="triggered")
                ending = run_pipeline(
                    pipeline,
                    workspace,
                    file=file,
                    on_progress=watch.show,
                    on_start=watch.started,
                    on_note=watch.note,
                )
        render.OUT.print(f"pipeline {pipeline.name}: {ending}", markup=False)


def _add_watching(app: App) -> None:
    @app.command(name="list")
    def list_command(*, json: Annotated[bool, Flag] = False, where: Watched = WATCHED) -> None:
        """Show every pipeline that has run in this data directory, or on that of --url.

        Parameters
        ----------
        json
            One JSON object, with the pipelines in `items`.
        """
        found = _all(where)
        if json:
            told = msgspec.json.encode({"items": found}).decode()
            render.OUT.print(told, markup=False)
        else:
            pipeline_view.print_list(found)

    @app.command
    def status(name: str, *, json: Annotated[bool, Flag] = False, where: Watched = WATCHED) -> None:
        """Show the progress of a pipeline, or how it ended.

        Parameters
        ----------
        name
            The pipeline's name, or its file.
        json
            One JSON object.
        """
        found = _one(where, _named(name))
        if json:
            render.OUT.print(msgspec.json.encode(found).decode(), markup=False)
        else:
            pipeline_view.print_status(found)

    @app.command
    def stop(name: str, *, timeout: float = 60.0, where: Where = HERE) -> None:
        """Stop a running pipeline in order; its next run goes on where it ended.

        Parameters
        ----------
        name
            The pipeline's name, or its file.
        timeout
            How many seconds to wait until it has ended.
        """
        from onelog.pipelines import State  # noqa: PLC0415

        state = State(where.workspace().state_dir(_named(name)))
        ran = state.stop(timeout)
        told = "stopped" if ran else "does not run"
        render.OUT.print(f"pipeline {state.folder.name}: {told}", markup=False)


def _named(name: str) -> str:
    """The name of a pipeline that is named by its file or by itself."""
    return _loaded(Path(name)).name if Path(name).suffix in (".toml", ".yml", ".yaml") else name


def _all(where: Watched) -> list[Status]:
    """Every pipeline: of the files here, or as the server of --url answers."""
    from onelog.pipelines import known_pipelines  # noqa: PLC0415 - see above

    if not where.place.is_named:
        return known_pipelines(where.workspace().data_dir)
    with connected(where.place) as client:
        return [_status(row) for page in client.pages("/pipelines", {}) for row in page["items"]]


def _one(where: Watched, name: str) -> Status:
    """One pipeline, from the same places."""
    from onelog.pipelines import State  # noqa: PLC0415 - see above

    if not where.place.is_named:
        return State(where.workspace().state_dir(name)).status()
    with connected(where.place) as client:
        return _status(client.get(path_of("/pipelines/{pipeline}", {"pipeline": name})))


def _status(row: dict[str, Any]) -> Status:
    """A pipeline of the API, in the form of the file that it writes."""
    from onelog.pipelines import Status  # noqa: PLC0415 - see above

    targets = {target["target"]: target for target in row["targets"]}
    return msgspec.convert({**row, "targets": targets}, Status)
