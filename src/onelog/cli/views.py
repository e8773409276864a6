"""`onelog view …`: names for filters, in a running server or in the data of a stopped one.

Rules: modules that only these commands need are imported when one of them runs, so that other
commands start faster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App
from rich.table import Table
from rich.text import Text

from onelog.cli import render
from onelog.cli.reaching import RunOffline, reach
from onelog.cli.users import DEFAULT_DATA, DataOptions

if TYPE_CHECKING:
    from onelog.broker.view_commands import ViewAnswer, ViewCommand


def build_views(run_offline: RunOffline | None) -> App:
    """The commands of `onelog view`."""
    app = App(name="view", help="Give filters friendly names, under which Kafka clients read them.")

    def perform(options: DataOptions, command: ViewCommand) -> tuple[ViewAnswer, str]:
        assert run_offline is not None, "the command line was built without a store"
        return _perform(run_offline, options.data_dir, command)

    @app.command
    def create(
        name: str,
        filter: str,  # noqa: A002
        /,
        *,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Give a filter a friendly name, as in: onelog view create telemetry
        'sensors/+/telemetry'."""
        from onelog.broker.view_commands import CreateView  # noqa: PLC0415

        where = perform(options, CreateView(name=name, filter=filter))[1]
        _say(f"made view {name} of {filter} {where}")

    @app.command
    def delete(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Delete the name of a view; no record is deleted."""
        from onelog.broker.view_commands import DeleteView  # noqa: PLC0415

        _say(f"deleted view {name} {perform(options, DeleteView(name=name))[1]}")

    @app.command(name="list")
    def list_command(*, options: DataOptions = DEFAULT_DATA) -> None:
        """List the views with friendly names."""
        from onelog.broker.view_commands import ListViews  # noqa: PLC0415

        _show(*perform(options, ListViews()))

    return app


def _perform(
    run_offline: RunOffline, data_dir: Path, command: ViewCommand
) -> tuple[ViewAnswer, str]:
    """Run a command where the views are; the answer, and the place in words."""
    import msgspec  # noqa: PLC0415

    from onelog.broker.view_commands import decode_view_answer  # noqa: PLC0415

    answer, where = reach(run_offline, data_dir, msgspec.json.encode(command))
    return decode_view_answer(answer), where


def _show(found: ViewAnswer, where: str) -> None:
    if not found.views:
        _say(f"there are no named views {where}; `onelog view create NAME FILTER` makes one")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("view", "filter"):
        table.add_column(title, overflow="fold")
    for view in found.views:
        table.add_row(Text(view.name), Text(view.filter))
    render.OUT.print(table)


def _say(line: str) -> None:
    render.OUT.print(Text(line))
