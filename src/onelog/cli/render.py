"""The output of the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onelog.admin.contract import ServerInfo, StreamInfo, TroubleInfo
from onelog.cli.client import Status
from onelog.cli.example import toml_value
from onelog.cli.printable import visible
from onelog.config import Loaded
from onelog.config.keys import known_keys
from onelog.config.units import format_quantity


class PipeConsole(Console):
    """A console whose reader may go at any time: `run` decides what comes of that."""

    def on_broken_pipe(self) -> None:
        """Nobody reads any more."""
        raise BrokenPipeError


OUT = PipeConsole(soft_wrap=True, highlight=False)
ERRORS = PipeConsole(stderr=True, soft_wrap=True, highlight=False)

TROUBLES_SHOWN: Final = 20

_ABOUT = {"admin": "  (web console, health, metrics, admin API)"}


def print_error(message: str) -> None:
    """One line on stderr: the name of the program, and the error."""
    line = Text("onelog: ", style="bold red")
    line.append(visible(" ".join(message.split())), style="not bold default")
    ERRORS.print(line)


def print_warning(message: str, where: Console = ERRORS) -> None:
    """One line about what works, and should be otherwise; nothing when it is empty."""
    if message:
        line = Text("onelog: warning: ", style="bold yellow")
        line.append(visible(message), style="not bold default")
        where.print(line)


def say(line: str) -> None:
    """One line for people."""
    OUT.print(Text(visible(line)))


def print_whole(table: Table) -> None:
    """Print a table as wide as it is: a path that is broken or cut cannot be copied."""
    table.width = OUT.measure(table, options=OUT.options.update(max_width=10_000)).maximum
    OUT.print(table)


def print_ready(info: ServerInfo) -> None:
    """The text that `serve` prints once it is ready for work."""
    table = Table.grid(padding=(0, 2))
    for row in _rows(info):
        table.add_row("", *row)
    OUT.print(f"\n[bold]OneLog {info.version}[/] is running. Stop it with Ctrl-C.\n")
    print_whole(table)
    OUT.print()
    print_warning(info.kernel_warning, OUT)  # stderr is the log's


def _rows(info: ServerInfo) -> list[tuple[Text, Text]]:
    rows = [("data", str(Path(info.data_dir).resolve()))]
    rows.append(("config", info.config_file or "defaults (no onelog.toml)"))
    rows += [(item.name, item.url + _ABOUT.get(item.name, "")) for item in info.listeners]
    rows.append(("kernel", f"{info.kernel}, Python {info.python}, {info.event_loop}"))
    return [(Text(name, style="dim"), Text(value)) for name, value in rows]


def print_config(loaded: Loaded) -> None:
    """Every key, its value as one would write it, and its source."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("key", "value", "source"):
        table.add_column(title, no_wrap=True)
    for path, key in known_keys().items():
        value: object = loaded.config
        for name in path.split("."):
            value = getattr(value, name)
        source = loaded.sources[path]
        style = "dim" if source == "default" else ""
        table.add_row(path, Text(toml_value(key, value)), Text(source), style=style)
    print_whole(table)


_STATES = {
    "ok": "[green]ready[/]",
    "degraded": "[yellow]ready, with troubles[/]",
    "failing": "[red]not ready[/]",
}


def print_status(status: Status) -> None:
    """A running server at a glance: its state, troubles, listeners and streams."""
    info, health = status.info, status.health
    OUT.print(
        f"[bold]OneLog {info.version}[/] {info.node_name}: "
        f"{_STATES.get(health.status, health.status)}, up {_duration(info.uptime_s)},"
        f" pid {info.pid}"
    )
    print_warning(info.kernel_warning)
    for name, outcome in health.checks.items():
        if outcome != "ok":
            OUT.print(Text(f"  {name}: {outcome}", style="red"))
    _print_troubles(health.troubles)
    OUT.print()
    _print_listeners(info, {row.place for row in health.troubles if row.standing})
    if status.streams:
        OUT.print()
        _print_streams(status.streams)
    if status.more_streams:
        OUT.print("… and more: `onelog stream list` shows all")


def _print_troubles(troubles: list[TroubleInfo]) -> None:
    """Standing troubles first, then incidents, the newest first."""
    rows = sorted(troubles, key=lambda row: (not row.standing, -row.last_ms))
    for row in rows[:TROUBLES_SHOWN]:
        times = "" if row.count == 1 else f", {row.count:,} times"
        at_ms = row.first_ms if row.standing else row.last_ms
        at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone()
        when = f"{'since' if row.standing else 'last at'} {at:%Y-%m-%d %H:%M:%S}{times}"
        line = Text(f"  {row.kind} at {row.place}", style="red" if row.standing else "yellow")
        facts = "".join(f"{name} {value}, " for name, value in row.facts.items())
        told = visible(" ".join(f"{row.error} ({facts}{when})".split()))
        line.append(f": {told}", style="default")
        OUT.print(line)
    if rows[TROUBLES_SHOWN:]:
        OUT.print(f"  … and {len(rows) - TROUBLES_SHOWN} more: see /health")


def _print_listeners(info: ServerInfo, troubled: set[str]) -> None:
    """Where it listens; a protocol that could not start is a trouble at its name."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("listener", "state", "address", "clients write"):
        table.add_column(title)
    for row in info.listeners:
        is_well = row.name.partition("_")[0] not in troubled
        state = Text("listening", "green") if is_well else Text("in trouble", "red")
        table.add_row(visible(row.name), state, Text(row.address), Text(visible(row.url)))
    print_whole(table)


def _print_streams(streams: list[StreamInfo]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("stream")
    for title in ("partitions", "records", "size"):
        table.add_column(title, justify="right")
    table.add_column("engine")
    table.add_column("durability")
    for stream in streams:
        table.add_row(
            Text(visible(stream.name)),
            str(stream.partitions),
            str(stream.records),
            _size(stream.size_bytes),
            stream.engine,
            stream.durability,
        )
    print_whole(table)


def _duration(seconds: float) -> str:
    whole = int(seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= length:
            return f"{whole / length:.1f}{unit}"
    return f"{whole}s"


def _size(size_bytes: int) -> str:
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return format_quantity(size_bytes, "bytes")
