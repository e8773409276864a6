"""How a pipeline looks while it runs: a table that changes on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table
from rich.text import Text

from onelog.cli import render

if TYPE_CHECKING:
    from onelog.pipelines import Progress, Status

STYLES = {"running": "green", "done": "green", "failed": "red", "killed": "red"}


class Watch:
    """The display of one run. It goes to standard error: rows of a console target have the rest."""

    def __init__(self, name: str, master: str) -> None:
        self._name = name
        self._master = master
        self._live: Live | None = None
        self._shown: dict[str, tuple[int, str]] = {}

    def __enter__(self) -> Watch:
        from onelog.spark.masters import shown  # noqa: PLC0415 - as in cli.pipeline

        text = f"pipeline {self._name}: starting Spark ({shown(self._master)})"
        render.ERRORS.print(text, markup=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Something that the user should know of the pipeline."""
        render.ERRORS.print(f"pipeline {self._name}: {text}", markup=False)

    def started(self) -> None:
        """Spark is there."""
        render.ERRORS.print(f"pipeline {self._name}: running; Ctrl-C ends it", markup=False)
        if render.ERRORS.is_terminal:
            self._live = Live(console=render.ERRORS, auto_refresh=False)
            self._live.start()

    def show(self, progress: Mapping[str, Progress]) -> None:
        """How far the targets are now."""
        if self._live is not None:
            self._live.update(progress_table(progress), refresh=True)
            return
        for name, one in progress.items():
            rows, state = self._shown.get(name, (0, ""))
            self._shown[name] = one.rows, one.state
            if one.state != state:
                render.ERRORS.print(f"{name}: {one.state}", markup=False)
            if one.rows != rows and one.batch >= 0:
                render.ERRORS.print(
                    f"{name}: batch {one.batch}, {one.rows} rows, {one.rows_per_s:.0f} rows/s,"
                    f" lag {one.lag}, {one.batch_ms} ms",
                    markup=False,
                )


def progress_table(progress: Mapping[str, Progress]) -> Table:
    """A row for each target."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("target", no_wrap=True)
    for title in ("batch", "rows", "rows/s", "lag", "batch ms"):
        table.add_column(title, justify="right", no_wrap=True)
    flows = any(one.state for one in progress.values())
    if flows:
        table.add_column("state", no_wrap=True)
    for name, one in progress.items():
        batch = "-" if one.batch < 0 else str(one.batch)
        table.add_row(
            Text(name), batch, str(one.rows), f"{one.rows_per_s:.0f}", str(one.lag),
            str(one.batch_ms), *((one.state,) if flows else ()),
        )  # fmt: skip
    return table


def print_list(found: list[Status]) -> None:
    """Every pipeline, one a line."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("pipeline", "state", "mode", "master", "started", "rows", "lag", "file"):
        table.add_column(title, no_wrap=True)
    for one in found:
        progress = one.targets.values()
        table.add_row(
            Text(one.name),
            Text(one.phase, style=STYLES.get(one.phase, "")),
            one.mode,
            Text(one.master),
            one.started,
            str(sum(target.rows for target in progress)),
            str(sum(target.lag for target in progress)),
            Text(one.file),
        )
    if found:
        render.print_whole(table)
    else:
        render.OUT.print("no pipeline has run here")


def print_status(status: Status) -> None:
    """One pipeline at a glance."""
    line = Text(status.name, style="bold")
    line.append(f": {status.phase}", style=STYLES.get(status.phase, ""))
    line.append(f", {status.mode} on {status.master}, since {status.started}, pid {status.pid}")
    render.OUT.print(line)
    if status.error:
        render.OUT.print(Text(f"  {status.error}", style="red"))
    if status.targets:
        render.print_whole(progress_table(status.targets))
