"""Tables fit the terminal, names stay whole, and nothing from outside steers a terminal."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from onelog.broker.audit_event import LOGIN_FAILED, AuditEvent
from onelog.broker.audit_reading import AuditRow
from onelog.cli import audit, messaging, render, sql
from onelog.cli.printable import json_text, visible
from onelog.cli.tables import TableWriter, columns, lines_of, moment, show, size, span

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202eb\u2028c"


def written(text: str, rows, width: int = 80, *, terminal: bool = True) -> tuple[list[str], list]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    writer = TableWriter(columns(text), console)
    writer.write(rows)
    return out.getvalue().splitlines(), writer.left_out


def test_a_name_is_never_wrapped_or_cut_however_narrow_the_terminal_is():
    name = "factory/line-7/" + "x" * 100
    lines, _ = written(
        "name filter records:count", [{"name": name, "filter": "#", "records": 1}], 40
    )
    assert lines[1].startswith(name)
    assert len(lines) == 2


def test_on_a_narrow_terminal_texts_are_cut_and_then_the_last_columns_go():
    row = {"name": "main", "filter": "f" * 60, "records": 12345, "size_bytes": 5_000_000}
    lines, left_out = written("name filter records:count size_bytes", [row], 40)
    assert all(cell_len(line) <= 40 for line in lines)
    assert "…" in lines[1]
    assert left_out == []
    lines, left_out = written("name filter records:count size_bytes", [row], 24)
    assert all(cell_len(line) <= 24 for line in lines)
    assert left_out == ["records", "size"]


def test_in_a_pipe_nothing_is_cut_or_left_out():
    row = {"name": "main", "filter": "f" * 200, "records": 1}
    lines, left_out = written("name filter records:count", [row], 40, terminal=False)
    assert lines[1].split() == ["main", "f" * 200, "1"]
    assert left_out == []


def test_pages_go_on_in_the_same_columns_and_the_titles_come_once():
    out = io.StringIO()
    writer = TableWriter(columns("name n:count"), Console(file=out, width=80))
    for page in range(3):
        writer.write([{"name": f"row-{page}-{number}", "n": number} for number in range(10)])
    lines = out.getvalue().splitlines()
    assert len(lines) == 31
    assert len({len(line) for line in lines[1:]}) == 1
    assert sum("name" in line for line in lines) == 1


def test_hostile_names_reach_the_terminal_only_as_escapes():
    lines, _ = written("name value:text", [{"name": HOSTILE, "value": {HOSTILE: [HOSTILE]}}], 500)
    assert len(lines) == 2
    assert lines[1].isprintable()
    assert r"a\x1b]0;owned\x07\x1b[2J\x0d\x0a\x9b31m\u202eb\u2028c" in lines[1]
    shown = lines_of({HOSTILE: HOSTILE, "in": {HOSTILE: 1}, "rows": [{"x": HOSTILE}]}, Console())
    assert all(line.plain.isprintable() for line in shown)


def test_rows_of_a_query_hold_what_clients_sent_and_steer_no_terminal():
    out = io.StringIO()
    table = sql._rows_table([HOSTILE], [[HOSTILE], [HOSTILE.encode()], [None]])
    Console(file=out, width=500, color_system=None).print(table)
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_failed_login_draws_no_row_of_its_own_in_the_audit_trail(monkeypatch, as_json):
    """A peer that is nobody chooses the name of its failed login."""
    out = io.StringIO()
    console = Console(file=out, width=500, color_system=None, highlight=False)
    monkeypatch.setattr(render, "OUT", console)
    event = AuditEvent(
        door="mqtt", actor=HOSTILE, action=LOGIN_FAILED, resource=HOSTILE, outcome="refused"
    )
    audit._show([AuditRow(offset=1, event=event)], as_json=as_json, heading=False)
    (line,) = out.getvalue().splitlines()
    assert line.isprintable()
    if as_json:
        assert json.loads(line)["actor"] == HOSTILE


@given(st.text())
def test_visible_text_prints_and_plain_text_stays_as_it_is(text):
    assert visible(text).isprintable()
    assert not text.isprintable() or visible(text) == text


@given(st.recursive(st.text() | st.integers(-(2**53), 2**53) | st.none(), st.lists, max_leaves=5))
def test_json_says_the_same_without_a_character_that_does_not_print(value):
    text = json_text(value)
    assert text.isprintable()
    assert json.loads(text) == value


def test_numbers_are_as_people_read_them():
    assert (size(0), size(1500), size(-1), size(2**63 - 1)) == (
        "0 B", "1.5 kB", "unlimited", "unlimited",
    )  # fmt: skip
    assert (span(0), span(1500), span(7_200_000), span(-1)) == ("0ms", "1.5s", "2h", "unlimited")
    assert moment(3_600_000) == "1h"
    assert moment(1_794_746_966_242).startswith("2026-11-1")
    assert moment(10**30) == str(10**30)
    assert (show(None), show(""), show([]), show(True), show(12345, "count")) == (
        "-", "-", "-", "yes", "12,345",
    )  # fmt: skip


def test_a_file_that_is_published_shows_how_far_it_is(monkeypatch, tmp_path):
    out = io.StringIO()
    seen = Console(file=out, force_terminal=True, width=80)
    monkeypatch.setattr(render, "ERRORS", seen)
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n" * 1000)
    with messaging._input(file) as source:
        assert list(source) == [b"one\n", b"two\n"] * 1000
    assert "publishing" in out.getvalue()
