"""The live table: what each part of the example sees, and at the end whether it was the same."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import NamedTuple

from plan import Said
from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from tally import Tally

COLOURS = {"MQTT": "magenta", "Kafka": "cyan", "AMQP": "yellow"}
BAR_WIDTH = 10
NOTES_WIDTH = 104
"""A terminal as wide as this has room for a word beside each row."""
RATE_S = 1.0


class Row(NamedTuple):
    """One part of the example."""

    name: str
    protocol: str
    reads: str
    tally: Tally
    kinds: tuple[str, ...]
    """Which messages are for it."""


class Claim(NamedTuple):
    """Something that has to be equal at the end."""

    text: str
    want: int
    got: int
    holds: bool


def claim(text: str, want: Counter[Said], got: Counter[Said]) -> Claim:
    """That exactly these messages were seen, each once."""
    return Claim(text, want.total(), got.total(), want == got)


class Board:
    """Draws the rows; it remembers the counts of the last second to tell the rate."""

    def __init__(self, sent: Tally, rows: list[Row]) -> None:
        self._sent = sent
        self._rows = rows
        self._marks: dict[Tally, deque[tuple[float, int]]] = {}

    def draw(self, phase: str, width: int) -> RenderableType:
        sent = Counter(said.kind for said in self._sent.seen.elements())
        table = _table(phase)
        table.add_column("who", no_wrap=True)
        table.add_column("via", no_wrap=True)
        table.add_column("reads or writes", style="dim", no_wrap=True, min_width=27)
        table.add_column("messages", justify="right", no_wrap=True)
        table.add_column("/s", justify="right", no_wrap=True, min_width=4)
        table.add_column("has", no_wrap=True, min_width=BAR_WIDTH)
        with_notes = width >= NOTES_WIDTH
        if with_notes:
            table.add_column("", style="dim", no_wrap=True, min_width=22)
        for row in self._rows:
            count = row.tally.count
            expected = sum(sent[kind] for kind in row.kinds)
            colour = COLOURS[row.protocol]
            cells: list[RenderableType] = [
                row.name,
                Text(row.protocol, colour),
                row.reads,
                f"{count:,}" if count else "",
                f"{self._rate(row, count):,.0f}" if count else "",
                ProgressBar(
                    max(expected, 1), min(count, expected), BAR_WIDTH, complete_style=colour
                )
                if count
                else "",
            ]
            table.add_row(*cells, *([row.tally.note] if with_notes else []))
        return table

    def _rate(self, row: Row, count: int) -> float:
        """Messages a second, over the last second or so."""
        now = time.monotonic()
        marks = self._marks.setdefault(row.tally, deque())
        marks.append((now, count))
        while now - marks[0][0] > RATE_S and len(marks) > 2:
            marks.popleft()
        since, before = marks[0]
        return (count - before) / (now - since) if now > since else 0.0


def _table(title: str) -> Table:
    return Table(
        box=box.SIMPLE_HEAD, title=title, title_style="bold", title_justify="left",
        padding=(0, 1, 0, 0),
    )  # fmt: skip


def draw_claims(claims: list[Claim]) -> RenderableType:
    table = _table("The proof")
    table.add_column("what has to be equal")
    table.add_column("sent", justify="right")
    table.add_column("seen", justify="right")
    table.add_column("")
    for row in claims:
        mark = Text("equal", "bold green") if row.holds else Text("NOT EQUAL", "bold red")
        table.add_row(row.text, f"{row.want:,}", f"{row.got:,}", mark)
    all_hold = all(row.holds for row in claims)
    line = (
        Text("Every view saw exactly what was sent: one log, written once.", "bold green")
        if all_hold
        else Text("Something is missing or came twice.", "bold red")
    )
    return Group(table, line)
