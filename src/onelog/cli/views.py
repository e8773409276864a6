"""`onelog view …`: names for filters, in a running server or in the data of a stopped one.

Rules: modules that only these commands need are imported when one of them runs, so that other
commands start faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App
from msgspec import to_builtins

from onelog.cli.api.showing import WHOLE, ListShown, Rows, show_list
from onelog.cli.places import Place
from onelog.cli.reaching import RunOffline, reach
from onelog.cli.render import say
from onelog.cli.tables import columns
from onelog.cli.users import DEFAULT_DATA, DataOptions

if TYPE_CHECKING:
    from onelog.broker.view_commands import ViewAnswer, ViewCommand


def build_views(run_offline: RunOffline | None) -> App:
    """The commands of `onelog view`."""
    app = App(name="view", help="Give filters friendly names, under which Kafka clients read them.")

    def perform(options: DataOptions, command: ViewCommand) -> tuple[ViewAnswer, str]:
        assert run_offline is not None, "the command line was built without a store"
        return _perform(run_offline, options, command)

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
        say(f"made view {name} of {filter} {where}")

    @app.command
    def delete(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Delete the name of a view; no record is deleted."""
        from onelog.broker.view_commands import DeleteView  # noqa: PLC0415

        say(f"deleted view {name} {perform(options, DeleteView(name=name))[1]}")

    @app.command(name="list")
    def list_command(*, shown: ListShown = WHOLE, options: DataOptions = DEFAULT_DATA) -> None:
        """List the views with friendly names."""
        from onelog.broker.view_commands import ListViews  # noqa: PLC0415

        def fetch() -> Rows:
            found, _where = perform(options, ListViews())
            yield to_builtins(found.views)

        none = "there are no named views; `onelog view create NAME FILTER` makes one"
        show_list(fetch, columns("name filter:name"), shown, none)

    return app


def _perform(run_offline: RunOffline, place: Place, command: ViewCommand) -> tuple[ViewAnswer, str]:
    """Run a command where the views are; the answer, and the place in words."""
    import msgspec  # noqa: PLC0415

    from onelog.broker.view_commands import decode_view_answer  # noqa: PLC0415

    answer, where = reach(run_offline, place, msgspec.json.encode(command))
    return decode_view_answer(answer), where
