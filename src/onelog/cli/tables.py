"""Tables for people: rows of the admin API in columns that fit the terminal.

Rules: a name is never broken or cut, so that it can be copied. On a terminal that is too narrow,
texts are cut first, then the last columns are left out, and a line on standard error names them. In
a pipe nothing is cut or left out. A table is printed page by page: memory is bounded by a page.
Text from outside is printed by `visible` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from onelog.cli import render
from onelog.cli.printable import visible

ColumnKind = Literal["name", "text", "count", "bytes", "time", "duration", "length"]
GAP: Final = "  "
TEXT_MIN: Final = 12
"""So much of a text stays when the terminal is narrow."""
_UNITS: Final = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_NO_BOUND: Final = 2**63 - 1
"""How Kafka writes that there is none; elsewhere that is -1."""
_EARLIEST_MS: Final = 10**11
_RIGHT: Final = frozenset({"count", "bytes", "length"})


@dataclass(frozen=True)
class Column:
    """A column: a field of the rows, by its dotted name, and how it is shown."""

    field: str
    kind: ColumnKind
    title: str

    def cell(self, row: Mapping[str, Any]) -> str:
        """What the column shows of a row."""
        value: Any = row
        for part in self.field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return show(value, self.kind)


def columns(text: str) -> tuple[Column, ...]:
    """Columns written as `field` or `field:kind`; the first one names the row."""
    found = []
    for number, word in enumerate(text.split()):
        field, _, given = word.partition(":")
        kind = cast("ColumnKind", given) if given else _kind(field, number)
        found.append(Column(field, kind, _title(field)))
    return tuple(found)


def _kind(field: str, number: int) -> ColumnKind:
    if field.endswith("_bytes"):
        return "bytes"
    if field.endswith("_ms"):
        return "time"
    return "name" if number == 0 else "text"


def _title(field: str) -> str:
    words = field.replace(".", "_").removesuffix("_ms")
    return words.removesuffix("_bytes").replace("_", " ")


def show(value: Any, kind: str = "text") -> str:
    """A value as people read it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind == "length" and isinstance(value, list | tuple | dict):
        return f"{len(value):,}"
    if isinstance(value, list | tuple):
        return ", ".join(show(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{visible(str(name))}={show(item)}" for name, item in value.items())
    if isinstance(value, int | float) and kind in _NUMBERS:
        return _NUMBERS[kind](value)
    return visible(str(value))


def size(value: float) -> str:
    """Bytes, in the largest unit that fits."""
    if value < 0 or value >= _NO_BOUND:
        return "unlimited"
    for unit, length in _UNITS:
        if abs(value) >= length:
            return f"{value / length:.1f} {unit}"
    return f"{value:.0f} B"


def moment(stamp_ms: float) -> str:
    """A point in time, on this machine's clock; a number that is too small for one is a length."""
    if stamp_ms < _EARLIEST_MS:
        return span(stamp_ms)
    try:
        at = datetime.fromtimestamp(stamp_ms / 1000, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(stamp_ms)
    return at.strftime("%Y-%m-%d %H:%M:%S")


def span(length_ms: float) -> str:
    """A length of time, in the largest unit that fits."""
    if length_ms < 0 or length_ms >= _NO_BOUND:
        return "unlimited"
    for unit, length in _SPANS:
        if length_ms >= length:
            return f"{length_ms / length:.1f}".removesuffix(".0") + unit
    return f"{length_ms:.0f}ms"


def count(value: float) -> str:
    """A number with its thousands apart."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


_NUMBERS: Final[dict[str, Callable[[float], str]]] = {
    "bytes": size,
    "time": moment,
    "duration": span,
    "count": count,
}


class TableWriter:
    """Prints the pages of one table, in columns that stay where they are as far as possible."""

    def __init__(self, shown: Sequence[Column], console: Console = render.OUT) -> None:
        self._columns = list(shown)
        self._console = console
        self._widths: dict[str, int] = {}
        self._begun = False
        self.left_out: list[str] = []
        """Titles of columns that had no room."""

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Print a page."""
        begun = self._begun
        lines = self._plain(rows)
        if not begun:
            self._console.print(Text(self._heading(), "bold"), soft_wrap=True)
        # Not line by line through rich: a list may have a hundred thousand rows.
        self._console.file.write("".join(f"{line}\n" for line in lines))

    def lines(self, rows: Iterable[Mapping[str, Any]]) -> list[Text]:
        """The lines of a page; before the first one, the titles."""
        begun = self._begun
        lines = [Text(line) for line in self._plain(rows)]
        return lines if begun else [Text(self._heading(), "bold"), *lines]

    def _heading(self) -> str:
        return self._line([column.title for column in self._columns])

    def _plain(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        cells = [[column.cell(row) for column in self._columns] for row in rows]
        for number, column in enumerate(self._columns):
            widest = max((cell_len(line[number]) for line in cells), default=0)
            known = self._widths.get(column.title, cell_len(column.title))
            self._widths[column.title] = max(known, widest)
        if not self._begun and self._console.is_terminal:
            self._fit(cells)
        self._begun = True
        return [self._line(line) for line in cells]

    def _fit(self, cells: list[list[str]]) -> None:
        """Cut texts, then leave out the last columns, until a line fits."""
        room = self._console.width
        while self._total() > room:
            over = self._total() - room
            wide = [
                column.title
                for column in self._columns
                if column.kind == "text" and self._widths[column.title] > TEXT_MIN
            ]
            if wide:
                widest = max(wide, key=self._widths.__getitem__)
                self._widths[widest] = max(TEXT_MIN, self._widths[widest] - over)
            elif len(self._columns) > 1:
                gone = self._columns.pop()
                self.left_out.insert(0, gone.title)
                for line in cells:
                    line.pop()
            else:
                return
        if self.left_out:
            self._give_back(room - self._total(), cells)

    def _give_back(self, spare: int, cells: list[list[str]]) -> None:
        """Texts that were cut get the room of columns that went."""
        for number, column in enumerate(self._columns):
            if column.kind == "text":
                wanted = max([cell_len(column.title), *(cell_len(line[number]) for line in cells)])
                more = min(spare, max(0, wanted - self._widths[column.title]))
                self._widths[column.title] += more
                spare -= more

    def _total(self) -> int:
        return sum(self._widths[c.title] for c in self._columns) + len(GAP) * (
            len(self._columns) - 1
        )

    def _line(self, cells: Sequence[str]) -> str:
        parts = []
        for column, cell in zip(self._columns, cells, strict=True):
            width, needed = self._widths[column.title], cell_len(cell)
            if needed > width and column.kind == "text" and self._console.is_terminal:
                parts.append(set_cell_size(cell, width - 1) + "…")
            elif column.kind in _RIGHT:
                parts.append(" " * (width - needed) + cell)
            else:
                parts.append(cell + " " * (width - needed))
        return GAP.join(parts).rstrip()


def print_one(found: Mapping[str, Any], console: Console = render.OUT) -> None:
    """One thing: its values, a line each, then its lists as tables."""
    for line in lines_of(found, console):
        console.print(line, soft_wrap=True)


def lines_of(found: Mapping[str, Any], console: Console) -> list[Text]:
    """The lines of one thing."""
    plain, lists = _parts(found)
    width = max((cell_len(name) for name, _value in plain), default=0)
    lines = []
    for name, value in plain:
        line = Text(name + " " * (width - cell_len(name)) + GAP, "dim")
        lines.append(line.append(value, "not dim"))
    for name, rows in lists:
        shown = [
            Column(field, _inner_kind(field, rows[0][field], number), _title(field))
            for number, field in enumerate(rows[0])
        ]
        lines += [Text(), Text(name, "bold"), *TableWriter(shown, console).lines(rows)]
    return lines


def _inner_kind(field: str, value: Any, number: int) -> ColumnKind:
    kind = _kind(field, number)
    if kind == "text" and isinstance(value, int) and not isinstance(value, bool):
        return "count"
    return kind


def _parts(
    found: Mapping[str, Any], prefix: str = ""
) -> tuple[list[tuple[str, str]], list[tuple[str, list[dict[str, Any]]]]]:
    plain: list[tuple[str, str]] = []
    lists: list[tuple[str, list[dict[str, Any]]]] = []
    for field, value in found.items():
        name = visible(prefix + field)
        if isinstance(value, dict) and value:
            inner, tables = _parts(value, f"{prefix}{field}.")
            plain += inner
            lists += tables
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lists.append((name, value))
        else:
            plain.append((_title(name) if not prefix else name, show(value, _value_kind(field))))
    return plain, lists


def _value_kind(field: str) -> str:
    kind = _kind(field, 1)
    if field.endswith(_LENGTHS):
        return "duration"
    return "count" if kind == "text" else kind


_LENGTHS: Final = ("timeout_ms", "expiry_ms", "age_ms", "lifetime_ms", "ttl_ms", "interval_ms")
