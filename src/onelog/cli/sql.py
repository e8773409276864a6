"""`onelog sql` and `onelog table`: rows of topics and tables, on the command line.

Rules: rows go to standard output, everything else to standard error. Nothing of Spark is imported
before one of the commands runs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from onelog.base.errors import ConfigError, NotFound
from onelog.cli import render
from onelog.cli.pipeline import HERE, Flag, Master, Where
from onelog.cli.printable import escape_json, visible

if TYPE_CHECKING:
    from onelog.pipelines.sql import Answer

Output = Literal["table", "json", "parquet"]
ROWS_SHOWN = 1000
"""So many rows a table on the terminal has; JSON and Parquet have all."""


def add_sql(app: App) -> None:
    """Add `sql` and `table` to the commands."""

    @app.command
    def sql(
        query: str,
        *,
        output: Annotated[Output, Parameter(name=["--output", "-o"])] = "table",
        file: Annotated[Path | None, Parameter(name=["--file", "-f"])] = None,
        limit: int = ROWS_SHOWN,
        master: Master = None,
        where: Where = HERE,
    ) -> None:
        """Query topics and tables by SQL: select … from topic('sensors/+/telemetry') where ….

        Parameters
        ----------
        query
            Spark's SQL. topic('filter', decode => 'json', from => '…'), stream('name'),
            iceberg('n.t'), delta('dir') and parquet('dir') stand for tables.
        output
            table for people, json for pipes (a line for each row), parquet into --file. file A
            directory for parquet; a file for json, instead of standard output. limit How many rows
            a table shows.
        """
        from onelog.pipelines.failures import told_whole  # noqa: PLC0415
        from onelog.pipelines.sparks import spark_session  # noqa: PLC0415
        from onelog.pipelines.spec import BrokerKeys  # noqa: PLC0415
        from onelog.pipelines.sql import Query, split_calls  # noqa: PLC0415

        if output == "parquet" and file is None:
            raise ConfigError("--output parquet needs --file DIRECTORY")
        split_calls(query)  # a wrong query is an error before Spark is started
        workspace = where.workspace()
        log = workspace.data_dir.absolute() / "pipelines" / "sql.log"
        with spark_session(workspace.spark(master or "local[*]"), "onelog sql", log) as spark:
            try:
                _put(Query(spark, workspace, BrokerKeys()).ask(query), output, file, limit)
            except BrokenPipeError:
                raise
            except Exception as error:
                raise told_whole(error) from error

    tables = App(
        name="table", help="Read tables that pipelines keep, with the latest row of each key."
    )

    @tables.command
    def get(
        pipeline: str,
        key: tuple[str, ...],
        *,
        target: str | None = None,
        json_line: Annotated[bool, Flag, Parameter(name="--json")] = False,
        where: Where = HERE,
    ) -> None:
        """Show the row of a key.

        Parameters
        ----------
        pipeline
            The pipeline that keeps the table: its file, or its name once it has run.
        key
            The key; as many values as the table's key has columns.
        target
            The target to read, if several have one row per key. json_line One JSON object.
        """
        from onelog.pipelines import State, load_pipeline  # noqa: PLC0415
        from onelog.pipelines.tables import get_row  # noqa: PLC0415

        file = Path(pipeline)
        if not pipeline.endswith(".toml"):
            file = Path(State(where.workspace().state_dir(pipeline)).status().file)
        row = get_row(load_pipeline(file), where.workspace(file.parent), key, target)
        if row is None:
            raise NotFound(f"the table has no row with the key {', '.join(key)}")
        if json_line:
            render.OUT.print(json.dumps(row, default=_plain), markup=False)
        else:
            render.print_whole(_rows_table(["column", "value"], list(row.items())))

    app.command(tables)


def _put(answer: Answer, output: Output, file: Path | None, limit: int) -> None:
    if output == "parquet":
        assert file is not None
        answer.write_parquet(file)
        render.ERRORS.print(f"wrote {file}", markup=False)
    elif output == "json" and file is not None:
        with file.open("w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in answer.json_lines())
    elif output == "json":
        for line in answer.json_lines():
            render.OUT.print(escape_json(line), markup=False)
    else:
        rows = answer.take(limit + 1)
        render.print_whole(_rows_table(answer.columns, rows[:limit]))
        if len(rows) > limit:
            render.ERRORS.print(
                f"… and more: --limit, or --output json; {limit} rows are shown", markup=False
            )


def _rows_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(Text(visible(name)), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(visible(_shown(value))) for value in row))
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


def _plain(value: Any) -> Any:
    """Values of types that JSON does not have."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
