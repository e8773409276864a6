"""Draws the board of `onelog top` for a screen of any size, from 80 by 24 on.

Rules: text from outside is printed by `visible` only. The tables at the bottom share the rows that
are left; names are cut at the edge, because a live view has no other place for them.
"""

from __future__ import annotations

import time
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onelog.cli.printable import visible
from onelog.cli.tables import size, span
from onelog.cli.top.board import Board

WIDE: Final = 130
"""From this width on, cursors and topics stand side by side."""
ALARMS_SHOWN: Final = 3
_STYLES: Final = {"ok": "bold green", "degraded": "bold yellow", "failing": "bold red"}
_BAR: Final = 16
_ALL: Final = 10_000


def picture(board: Board, width: int, height: int | None) -> RenderableType:
    """Everything, in so many columns and lines; without a number of lines: all there is."""
    head = [*_head(board, width), _protocols(board)]
    alarms = _alarms(board)
    protocols = len((board.rates.get("rates") or {}).get("protocols", {})) + 1
    used = len(head) - 1 + protocols + len(alarms) + 2  # an empty line, and the keys
    room = _ALL if height is None else max(4, height - used)
    if width >= WIDE:
        both = Table.grid(expand=True, padding=(0, 2))
        both.add_column(ratio=3)
        both.add_column(ratio=2)
        both.add_row(_cursors(board, room), _topics(board, room))
        bottom: list[RenderableType] = [both]
    else:
        upper = (room + 1) // 2
        bottom = [_cursors(board, upper), _topics(board, room - upper)]
    keys = [] if height is None else [_keys(board)]
    return Group(*head, *alarms, Text(), *bottom, *keys)


def _head(board: Board, width: int) -> list[RenderableType]:
    server = board.overview.get("server") or {}
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"OneLog {visible(server.get('version', ''))} ", "bold")
    line.append(visible(server.get("node_name", board.url)))
    line.append("  ")
    line.append(board.status, _STYLES.get(board.status, ""))
    if server:
        line.append(f"  up {span(server['uptime_s'] * 1000)}")
    line.append(f"  {time.strftime('%H:%M:%S')}", "dim")
    if board.paused:
        line.append("  paused", "bold yellow")
    lines: list[RenderableType] = [line]
    if board.trouble:
        lines.append(Text(visible(board.trouble)[:width], "bold red", no_wrap=True))
    lines += [_flow(board), _disk(board)]
    return lines


def _flow(board: Board) -> Text:
    rates = board.rates.get("rates") or {}
    counts = board.overview.get("counts") or {}
    parts = [
        f"published {_rate(rates.get('published_messages'))}/s",
        f"fsync {_rate(rates.get('syncs'))}/s",
        f"connections {_connections(board):,}",
    ]
    known = [name for name in ("streams", "cursors", "sessions") if name in counts]
    parts += [f"{name} {counts[name]:,}" for name in known]
    if loop := board.overview.get("loop"):
        parts.append(f"loop lag {loop['lag_p99_ms']:g} ms")
    stopped = counts.get("stopped_partitions", 0)
    line = Text("  ".join(parts), no_wrap=True, overflow="ellipsis")
    return line.append(f"  {stopped} partitions stopped", "bold red") if stopped else line


def _connections(board: Board) -> int:
    protocols = (board.rates.get("totals") or {}).get("protocols", {})
    return sum(row["connections"] for row in protocols.values())


def _disk(board: Board) -> Text:
    line = Text("disk ", no_wrap=True, overflow="ellipsis")
    disk = board.overview.get("disk")
    if not disk:
        return line.append("-")
    used = 1 - disk["free_bytes"] / max(1, disk["total_bytes"])
    style = "bold red" if disk["full"] or used > 0.95 else "yellow" if used > 0.85 else "green"
    full = round(used * _BAR)
    line.append("█" * full, style).append("░" * (_BAR - full), "dim")
    line.append(f" {size(disk['free_bytes'])} free of {size(disk['total_bytes'])}")
    line.append(f"  log {size(board.overview['size_bytes'])}")
    return line.append("  full: writes are refused", "bold red") if disk["full"] else line


def _protocols(board: Board) -> Table:
    table = _table("protocol", "connections", "in msg/s", "out msg/s", "in/s", "out/s")
    totals = (board.rates.get("totals") or {}).get("protocols", {})
    for name, row in ((board.rates.get("rates") or {}).get("protocols", {})).items():
        table.add_row(
            visible(name),
            f"{totals.get(name, {}).get('connections', 0):,}",
            _rate(row["received_messages"]),
            _rate(row["sent_messages"]),
            _bytes(row["received_bytes"]),
            _bytes(row["sent_bytes"]),
        )
    return table


def _alarms(board: Board) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for row in board.alarms[:ALARMS_SHOWN]:
        told = f"! {row['kind']} at {row['place']}: {row['error']}"
        lines.append(Text(visible(told), "red", no_wrap=True, overflow="ellipsis"))
    if len(board.alarms) > ALARMS_SHOWN:
        lines[-1] = Text(f"! and {len(board.alarms) - ALARMS_SHOWN + 1} more alarms", "red")
    return lines


def _filled(table: Table, lines: int) -> RenderableType:
    """A table that takes so many lines, so that what is below does not jump."""
    missing = 0 if lines == _ALL else max(0, lines - 1 - table.row_count)
    return Group(table, *(Text() for _ in range(missing)))


def _cursors(board: Board, lines: int) -> RenderableType:
    more = ", of the first ones" if board.cursors_capped else ""
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="bold")
    table.add_column(f"cursor (by {board.cursor_sort}{more})", no_wrap=True, ratio=3)
    table.add_column("kind", no_wrap=True)
    for title in ("lag", "pending", "readers"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("filter", no_wrap=True, ratio=2)
    rows = board.sorted_cursors()
    for row in rows[: max(0, lines - 1)]:
        table.add_row(
            Text(visible(row["name"])),
            visible(row["kind"]),
            f"{row['lag']:,}",
            f"{row['pending']:,}",
            f"{row['connected']:,}",
            Text(visible(row["filter"])),
            style="yellow" if row["lag"] else "",
        )
    if not rows:
        table.add_row(Text("nobody reads with a cursor", "dim"))
    return _filled(table, lines)


def _topics(board: Board, lines: int) -> RenderableType:
    how = ", of a sample" if board.sampled else ""
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="bold")
    table.add_column(f"topic (by {board.topic_sort}{how})", no_wrap=True, ratio=1)
    table.add_column("msg/s", justify="right", no_wrap=True)
    rows = board.topics()
    for topic, rate in rows[: max(0, lines - 1)]:
        table.add_row(Text(visible(topic)), f"{rate:,.1f}")
    if not rows:
        table.add_row(Text(visible(board.topics_trouble) or "no message came", "dim"))
    return _filled(table, lines)


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True, min_width=10)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True, min_width=9)
    return table


def _keys(board: Board) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for key, does in (("q", "quit"), ("s", "sort cursors"), ("t", "sort topics")):
        line.append(f" {key} ", "reverse").append(f" {does}  ", "dim")
    line.append(" p ", "reverse").append(" go on" if board.paused else " pause", "dim")
    return line


def _rate(value: Any) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _bytes(value: Any) -> str:
    return "-" if value is None else size(value)
