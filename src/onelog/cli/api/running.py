"""Runs a row of the table: asks the operation, and shows its answer.

Rules: what a person writes is checked here, before the server is asked; a wrong value is an error
of the command line (exit code 2). Options that nobody gave are not sent: the API's defaults count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import msgspec
from rich.text import Text

from onelog.base.errors import ConfigError, Conflict
from onelog.cli import render
from onelog.cli.api.rows import ApiCommand, Option
from onelog.cli.api.showing import ListShown, OneShown, Rows, print_table, show_list, show_one
from onelog.cli.client import PATIENT_S, AdminClient, path_of
from onelog.cli.places import Place, connected
from onelog.cli.printable import json_text, visible
from onelog.cli.tables import columns, show
from onelog.config.units import parse_quantity

_UNITS: Final = {"duration": "ms", "bytes": "bytes"}
_RATE: Final = "published_messages"
_SECOND_S: Final = 1.0
"""Between two questions whose answers differ by rates."""
_INCOMPLETE: Final = "not everything was looked at: ask again in a while, or more exactly"


def run_list(
    row: ApiCommand,
    names: Mapping[str, str],
    given: Mapping[str, Any],
    shown: ListShown,
    place: Place,
) -> None:
    """Ask for a list, and show it."""
    query = values_of(row, given)
    asked = shown
    if row.searches and shown.search:
        query["search"] = shown.search
        asked = ListShown(json=shown.json, watch=shown.watch, limit=shown.limit)
    if asked.limit is None and row.rows_default is not None:
        asked = ListShown(
            json=asked.json, watch=asked.watch, search=asked.search, limit=row.rows_default
        )
    with connected(place) as client:

        def fetch() -> Rows:
            return fetch_pages(client, row, names, query, asked)

        show_list(fetch, columns(row.columns_for(query)), asked, row.empty)


def fetch_pages(
    client: AdminClient,
    row: ApiCommand,
    names: Mapping[str, str],
    query: Mapping[str, Any],
    shown: ListShown,
) -> Rows:
    """The rows of a list, page by page."""
    path = path_of(row.path, names)
    if not row.page_max:
        page = client.get(path, query)
        yield page["items"]
        _note_incomplete(page)
        return
    # A page is no larger than what is wanted, unless the rows are chosen here.
    wanted = row.page_max if shown.limit is None or shown.search else shown.limit
    page = {}
    for page in client.pages(path, query, min(row.page_max, wanted)):
        yield page["items"]
    _note_incomplete(page)


def _note_incomplete(page: Mapping[str, Any]) -> None:
    if page.get("complete") is False and render.ERRORS.is_terminal:
        render.ERRORS.print(Text(_INCOMPLETE, "dim"))


def run_one(
    row: ApiCommand,
    names: Mapping[str, str],
    given: Mapping[str, Any],
    shown: OneShown,
    place: Place,
) -> None:
    """Ask for one thing, and show it."""
    query, path = values_of(row, given), path_of(row.path, names)
    with connected(place) as client:

        def read() -> Mapping[str, Any]:
            answer: Mapping[str, Any] = client.get(path, query)
            if row.second and answer.get(row.second, {}).get(_RATE) is None:
                time.sleep(_SECOND_S)
                answer = client.get(path, query)
            return answer

        show_one(read, shown)


def run_change(
    row: ApiCommand,
    names: Mapping[str, str],
    given: Mapping[str, Any],
    json: bool,
    place: Place,
) -> None:
    """Change something, and say what came of it."""
    body = values_of(row, given)
    with connected(place) as client, _waiting():
        if row.patient:
            client.answer_s = PATIENT_S
        query, sent = (None, body) if row.takes_body else (body, None)
        answer = client.call(row.method, path_of(row.path, names), query, sent)
    if json:
        render.OUT.out(json_text(answer if answer is not None else {}), highlight=False)
    elif row.rows_in:
        print_table(iter([answer[row.rows_in]]), columns(row.columns), row.empty)
    else:
        known = {**names, **(answer if isinstance(answer, dict) else {})}
        words = {name: show(value, "count") for name, value in _flat(known).items()}
        render.OUT.print(Text(row.done.format_map(words)))
    _check_rows(row, answer)


def _check_rows(row: ApiCommand, answer: Any) -> None:
    """Raise Conflict when something did not work, although the server answered."""
    if row.fails is None:
        return
    field, values = row.fails
    for value in values.split():
        bad = [found for found in answer[row.rows_in] if found[field] == value]
        if bad:
            raise Conflict(f"{len(bad)} of {len(answer[row.rows_in])} are {value}: see above")


@contextmanager
def _waiting() -> Iterator[None]:
    """Show that the server works, if it takes a while and somebody looks."""
    if not render.ERRORS.is_terminal:
        yield
        return
    with render.ERRORS.status("the server works on it …"):
        yield


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, also those of things inside, by their own names."""
    flat: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            flat = {**_flat(value), **flat}
        flat[name] = value
    return flat


# -- from words to values


def values_of(row: ApiCommand, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is sent of what was given. Raises ConfigError."""
    found: dict[str, Any] = {}
    for option in row.options:
        value = given.get(option.field)
        if value is None or value is False or value == ():
            continue
        found[option.field] = _value(option, value)
    return found


def _value(option: Option, value: Any) -> Any:
    try:
        if option.kind in _UNITS:
            return parse_quantity(value, _UNITS[option.kind])
        if option.kind == "time":
            return _number_or_time(value)
        if option.kind == "headers":
            return [_header(text) for text in value]
        if option.kind == "table":
            return dict(map(_argument, value))
        if option.kind == "off":
            return False
        if option.kind == "commas":
            return value.split(",")
        if option.kind == "texts":
            return list(value)
    except ValueError as error:
        raise ConfigError(f"--{option.name}: {visible(str(error))}") from None
    return value


def _number_or_time(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a number nor a time such as 2026-01-31T12:00:00Z"
        ) from None
    return int(at.timestamp() * 1000)  # without a zone: this machine's


def _argument(text: str) -> tuple[str, Any]:
    """A name, and a value that is JSON (a number, true, a list) or else text."""
    found = _header(text)
    try:
        return found["name"], msgspec.json.decode(found["value"])
    except msgspec.MsgspecError:
        return found["name"], found["value"]


def _header(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r}: write NAME=VALUE")
    return {"name": name, "value": value}
