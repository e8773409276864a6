"""Shows what the API answered: a table, one thing, or JSON; once, or again and again.

Rules: JSON is one document: `{"items": [...]}` for a list, in the API's own words for the rest.
Rows are printed page by page, and nothing before the first one came: a list that fails at once
prints nothing, one that fails later is cut short. On a terminal `--watch` redraws the screen; in a
pipe it prints one answer after the other, and JSON is one line each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.console import Group
from rich.text import Text

from onelog.base.errors import ConfigError
from onelog.cli import render
from onelog.cli.printable import json_text
from onelog.cli.tables import Column, TableWriter, lines_of, print_one

WATCH_S: Final = 2.0
WATCH_MIN_S: Final = 0.2

Json = dict[str, Any]
Rows = Iterator[list[Json]]
"""Pages of rows."""

AsJson = Annotated[
    bool,
    Parameter(name="--json", negative=(), show_default=False, help="Print JSON, for programs."),
]
Watch = Annotated[
    float | None,
    Parameter(
        name="--watch",
        show_default=False,
        help="Show it again every so many seconds (2), until Ctrl-C.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OneShown:
    """How one thing is shown."""

    json: AsJson = False
    watch: Watch = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ListShown:
    """How a list is shown, and which part of it."""

    json: AsJson = False
    watch: Watch = None
    search: Annotated[
        str,
        Parameter(
            name="--filter", show_default=False, help="Only rows with this part, in any case."
        ),
    ] = ""
    limit: Annotated[
        int | None,
        Parameter(name=["--limit", "-n"], show_default=False, help="So many rows, at most."),
    ] = None

    def check(self) -> None:
        """Refuse what makes no sense. Raises ConfigError."""
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit {self.limit}: at least 1")
        check_watch(self.watch)


ONCE, WHOLE = OneShown(), ListShown()


def check_watch(watch: float | None) -> None:
    """Refuse an interval that would only heat the server. Raises ConfigError."""
    if watch is not None and not watch >= WATCH_MIN_S:
        raise ConfigError(f"--watch {watch}: at least {WATCH_MIN_S} seconds")


def show_list(
    fetch: Callable[[], Rows],
    columns: Sequence[Column],
    shown: ListShown,
    empty: str = "",
    words: Callable[[Json], Json] = lambda row: row,
) -> None:
    """Print a list as the options say; `words` gives a row's values as people say them."""
    shown.check()

    def rows() -> Rows:
        return chosen(fetch(), shown)

    def read() -> Rows:
        return ([words(row) for row in page] for page in rows())

    if shown.json:
        _repeat(shown.watch, lambda: _print_json_list(rows(), one_line=shown.watch is not None))
    elif shown.watch is not None and render.OUT.is_terminal:
        _redraw(shown.watch, lambda: _list_lines(read(), columns, empty))
    else:
        _repeat(shown.watch, lambda: print_table(read(), columns, empty))


def show_one(fetch: Callable[[], Mapping[str, Any]], shown: OneShown) -> None:
    """Print one thing as the options say."""
    check_watch(shown.watch)
    if shown.json:
        _repeat(shown.watch, lambda: _print_line(json_text(fetch())))
    elif shown.watch is not None and render.OUT.is_terminal:
        _redraw(shown.watch, lambda: lines_of(fetch(), render.OUT))
    else:
        _repeat(shown.watch, lambda: print_one(fetch()))


def chosen(pages: Rows, shown: ListShown) -> Rows:
    """The rows that were asked for, of those that came."""
    left = shown.limit
    part = shown.search.casefold()
    for page in pages:
        rows = [row for row in page if not part or _has(row, part)]
        if left is not None:
            rows = rows[:left]
            left -= len(rows)
        yield rows
        if left == 0:
            return


def _has(value: Any, part: str) -> bool:
    if isinstance(value, dict):
        return any(_has(item, part) for item in value.values())
    if isinstance(value, list):
        return any(_has(item, part) for item in value)
    return part in str(value).casefold()


# -- printing


def print_table(pages: Rows, columns: Sequence[Column], empty: str) -> None:
    """Print rows, or the line for none."""
    writer, count = TableWriter(columns), 0
    with counting() as count_to:
        for rows in pages:
            if rows:
                writer.write(rows)
            count += len(rows)
            count_to(count)
    if not count and empty:
        render.OUT.print(Text(empty))
    if writer.left_out:
        names = ", ".join(writer.left_out)
        render.ERRORS.print(
            Text(f"left out: {names} (a wider terminal or --json shows them)", "dim")
        )


def _print_json_list(pages: Rows, *, one_line: bool) -> None:
    out, between = sys.stdout, "" if one_line else "\n"
    begin = before = '{"items":[' + between
    with counting() as count_to:
        count = 0
        for rows in pages:
            for row in rows:
                out.write(before + json_text(row))
                before = "," + between
            count += len(rows)
            count_to(count)
    out.write((between if count else begin) + "]}\n")
    out.flush()


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _list_lines(pages: Rows, columns: Sequence[Column], empty: str) -> list[Text]:
    writer = TableWriter(columns)
    lines: list[Text] = []
    room = max(3, render.OUT.height - 2)
    count = 0
    for rows in pages:
        count += len(rows)
        if rows and len(lines) <= room:
            lines += writer.lines(rows)
    if not count:
        return [Text(empty or "nothing")]
    if len(lines) > room:
        more = count - room + 1
        lines = [*lines[:room], Text(f"… and {more:,} more", "dim")]
    return lines


# -- again and again


def _repeat(watch: float | None, once: Callable[[], None]) -> None:
    once()
    while watch is not None:
        time.sleep(watch)
        once()


def _redraw(watch: float, lines: Callable[[], list[Text]]) -> None:
    from rich.live import Live  # noqa: PLC0415 - only for this

    with Live(console=render.OUT, screen=True, auto_refresh=False) as live:
        while True:
            now = time.strftime("%H:%M:%S")
            head = Text(f"{now}  every {watch:g} s, Ctrl-C ends", "dim")
            live.update(Group(head, *_unwrapped(lines())), refresh=True)
            time.sleep(watch)


def _unwrapped(lines: Iterable[Text]) -> list[Text]:
    """Lines that end at the edge of the screen, so that each is one line."""
    found = []
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
        found.append(line)
    return found


@contextmanager
def counting() -> Iterator[Callable[[int], None]]:
    """Show how many rows came, while the output goes elsewhere and somebody looks."""
    if render.OUT.is_terminal or not render.ERRORS.is_terminal:
        yield lambda _count: None
        return
    with render.ERRORS.status("asking the server …") as status:
        yield lambda count: status.update(f"{count:,} rows …")
