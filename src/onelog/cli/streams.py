"""`onelog stream …`: makes, changes, shows and deletes streams in a running server.

Rules: modules that only these commands need are imported when one of them runs, so that other
commands start faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from onelog.base.errors import ConfigError
from onelog.cli import render
from onelog.cli.api.table import NOUNS
from onelog.cli.places import Place
from onelog.cli.printable import json_text, visible
from onelog.cli.reaching import RunOffline, reach
from onelog.cli.render import say
from onelog.cli.users import DEFAULT_DATA, DataOptions
from onelog.config.units import format_quantity, parse_quantity

if TYPE_CHECKING:
    from onelog.broker.stream_commands import StreamAnswer, StreamChoice, StreamCommand

Json = Annotated[
    bool,
    Parameter(name="--json", negative=(), show_default=False, help="Print JSON, for programs."),
]
Capture = Annotated[
    tuple[str, ...],
    Parameter(
        name=["--capture"],
        negative=(),
        show_default=False,
        help="A topic or filter that the stream captures from now on. Repeatable.",
    ),
]
Release = Annotated[
    tuple[str, ...],
    Parameter(
        name=["--release"],
        negative=(),
        show_default=False,
        help="A filter that the stream no longer captures; its records stay readable. Repeatable.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Choice:
    """The settings of a stream."""

    partitions: Annotated[int | None, Parameter(help="Number of partitions; it can only grow.")] = (
        None
    )
    durability: Annotated[
        Literal["memory", "os", "fsync"] | None, Parameter(help="When a publish is answered.")
    ] = None
    replicas: Annotated[
        int | None,
        Parameter(help="On a cluster: nodes that hold each partition; 0: as the cluster gives."),
    ] = None
    min_insync: Annotated[
        int | None,
        Parameter(
            help="On a cluster: replicas that must have a record before it is answered; 0: as the"
            " cluster gives."
        ),
    ] = None
    retention: Annotated[
        str | None, Parameter(help="How long records are kept: 7d, 12h, unlimited.")
    ] = None
    retention_bytes: Annotated[
        str | None, Parameter(help="How many bytes are kept: 10GB, unlimited.")
    ] = None
    cleanup: Annotated[
        Literal["delete", "compact", "compact,delete"] | None,
        Parameter(help="Delete old records, or all but the last of each key (compact)."),
    ] = None
    tier: Annotated[
        str | None,
        Parameter(
            help="How history goes to the object store: log, iceberg, delta, none, or the"
            " broker's store.url (as log)."
        ),
    ] = None
    tier_copy: Annotated[
        bool | None,
        Parameter(
            negative="--no-tier-copy",
            help="Whether sealed segments are copied; if not, copies stay readable.",
        ),
    ] = None
    tier_delete_when_off: Annotated[
        bool | None,
        Parameter(
            negative="--no-tier-delete-when-off",
            help="Whether the copies go when the tier becomes none.",
        ),
    ] = None
    local_age: Annotated[
        str | None,
        Parameter(
            help="With a tier: how long copied records stay on the disk: 6h, unlimited, or"
            " retention (as --retention)."
        ),
    ] = None
    local_bytes: Annotated[
        str | None,
        Parameter(
            help="With a tier: bytes of copied records that stay on the disk: 10GB, unlimited,"
            " or retention (as --retention-bytes)."
        ),
    ] = None
    tier_commit: Annotated[
        str | None, Parameter(help="How often a table gets new rows at most: 5m.")
    ] = None
    tier_columns: Annotated[
        str | None, Parameter(help="Typed columns of a table: 'json: temp double'.")
    ] = None
    tier_table: Annotated[str | None, Parameter(help="Name of the table.")] = None
    tier_catalog: Annotated[str | None, Parameter(help="Catalog of the table.")] = None
    tier_snapshot_age: Annotated[
        str | None, Parameter(help="How long snapshots of a table stay: 1d, unlimited.")
    ] = None
    tier_table_age: Annotated[
        str | None,
        Parameter(help="How long a table keeps rows: 365d, unlimited, or retention."),
    ] = None

    def as_choice(self, engine: str | None = None) -> StreamChoice:
        """The same for the server."""
        from onelog.broker import Cleanup, Durability  # noqa: PLC0415
        from onelog.broker.stream_commands import StreamChoice  # noqa: PLC0415

        return StreamChoice(
            partitions=self.partitions,
            engine=engine,
            durability=None if self.durability is None else Durability(self.durability),
            replicas=self.replicas,
            min_insync=self.min_insync,
            retention_age_ms=_quantity("--retention", self.retention, "ms"),
            retention_bytes=_quantity("--retention-bytes", self.retention_bytes, "bytes"),
            cleanup=None if self.cleanup is None else Cleanup(self.cleanup),
            tier=self.tier,
            tier_copy=self.tier_copy,
            tier_delete_when_off=self.tier_delete_when_off,
            local_age_ms=_quantity("--local-age", self.local_age, "ms"),
            local_bytes=_quantity("--local-bytes", self.local_bytes, "bytes"),
            tier_commit_ms=_quantity("--tier-commit", self.tier_commit, "ms"),
            tier_columns=self.tier_columns,
            tier_table=self.tier_table,
            tier_catalog=self.tier_catalog,
            tier_snapshot_age_ms=_quantity("--tier-snapshot-age", self.tier_snapshot_age, "ms"),
            tier_table_age_ms=_quantity("--tier-table-age", self.tier_table_age, "ms"),
        )


DEFAULTS = Choice()
_NO_BOUND = 2**63 - 1
"""How Kafka writes that there is none."""


def build_streams(run_offline: RunOffline | None) -> App:
    """The commands of `onelog stream`."""
    app = App(name="stream", help=NOUNS["stream"])

    def perform(options: DataOptions, command: StreamCommand) -> StreamAnswer:
        assert run_offline is not None, "the command line was built without a store"
        return _perform(run_offline, options, command)

    @app.command
    def create(
        name: str,
        /,
        *,
        capture: Capture = (),
        engine: Annotated[
            Literal["segment", "memory", "kv", "object"] | None,
            Parameter(help="Storage engine."),
        ] = None,
        chosen: Choice = DEFAULTS,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Make a stream, as in: onelog stream create plant --capture 'plant/#' --partitions 4.

        Without --capture it captures the topic of its name: orders, or plant/a for plant.a. The
        topics that it captures move there: new messages are written to it, and readers read the old
        stream first.
        """
        from onelog.broker.stream_commands import CreateStream  # noqa: PLC0415

        command = CreateStream(name=name, captures=capture or None, chosen=chosen.as_choice(engine))
        say(f"made stream {name} of {_captures(perform(options, command))}")

    @app.command
    def alter(
        name: str,
        /,
        *,
        capture: Capture = (),
        release: Release = (),
        chosen: Choice = DEFAULTS,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Change a stream while it runs."""
        from onelog.broker.stream_commands import AlterStream  # noqa: PLC0415

        command = AlterStream(
            name=name, capture=capture, release=release, chosen=chosen.as_choice()
        )
        say(f"changed stream {name} of {_captures(perform(options, command))}")

    @app.command
    def delete(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Delete a stream and every record in it."""
        from onelog.broker.stream_commands import DeleteStream  # noqa: PLC0415

        perform(options, DeleteStream(name=name))
        say(f"deleted stream {name} and its records")

    @app.command(name="start-over")
    def start_over(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Give up the records of a damaged stream; it is empty after the next start.

        Use it when the files of a stream (also of an internal one, ~…) are damaged or gone and
        there is no backup. The remaining files stay on the disk.
        """
        from onelog.broker.stream_commands import StartStreamOver  # noqa: PLC0415

        perform(options, StartStreamOver(name=name))
        say(f"stream {name} begins empty at the next start: restart the server")

    @app.command
    def show(name: str, /, *, json: Json = False, options: DataOptions = DEFAULT_DATA) -> None:
        """Show every setting of a stream and its partitions."""
        from onelog.broker.stream_commands import ShowStream  # noqa: PLC0415

        found = perform(options, ShowStream(name=name))
        if json:
            (row,), detail = found.streams, found.detail
            assert detail is not None, "the server tells what it was asked for"
            shown = {"stream": row, "settings": detail.settings, "partitions": detail.partitions}
            render.OUT.print(json_text(shown), markup=False)
        else:
            _show_one(found)

    return app


def _perform(run_offline: RunOffline, place: Place, command: StreamCommand) -> StreamAnswer:
    import msgspec  # noqa: PLC0415

    from onelog.broker.stream_commands import decode_stream_answer  # noqa: PLC0415

    answer, _where = reach(run_offline, place, msgspec.json.encode(command))
    return decode_stream_answer(answer)


def _quantity(option: str, text: str | None, unit: str) -> int | None:
    if text is None:
        return None
    try:
        return parse_quantity(text, unit)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _captures(answer: StreamAnswer) -> str:
    return ", ".join(answer.streams[0].captures) or "nothing"


def _show_one(found: StreamAnswer) -> None:
    (row,), detail = found.streams, found.detail
    assert detail is not None, "the server tells what it was asked for"
    size = format_quantity(row.size_bytes, "bytes")
    say(f"stream {row.name}: {row.partitions} partitions, {row.records:,} records, {size}")
    render.OUT.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    for name, value in detail.settings.items():
        if name != "name":
            table.add_row(name, Text(visible(_setting(name, value))))
    render.print_whole(table)
    render.OUT.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    has_cold = any(part.cold_bytes for part in detail.partitions)
    for title in ("partition", "start", *(("local",) * has_cold), "end", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    if has_cold:
        table.add_column("in the store", justify="right", no_wrap=True)
    table.add_column("state")
    for part in detail.partitions:
        size = format_quantity(part.size_bytes, "bytes")
        cells = [str(part.partition), f"{part.start_offset:,}", f"{part.end_offset:,}", size]
        if has_cold:
            cells.insert(2, f"{part.local_start_offset:,}")
            cells.append(format_quantity(part.cold_bytes, "bytes"))
        style = "" if part.state == "running" else "red"
        table.add_row(*cells, Text(visible(part.state), style=style))
    render.print_whole(table)
    if len(detail.partitions) < row.partitions:
        say(f"… and more: `onelog partition list {row.name}` shows all")


def _setting(name: str, value: Any) -> str:
    """A setting as one would write it: the unit is in its name."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    words = name.rpartition(".")[2].split("_")
    unit = next((unit for unit in ("bytes", "ms") if unit in words), None)
    if unit is not None and isinstance(value, int):
        return "unlimited" if value >= _NO_BOUND else format_quantity(value, unit)
    return str(value).lower() if isinstance(value, bool) else str(value)
