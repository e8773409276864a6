"""The table of commands is total over the admin API, and says what the API takes."""

from __future__ import annotations

import inspect
import typing

import msgspec
import pytest

from onelog.admin.api.declaring import NOTHING
from onelog.admin.api.logins import LoginSessions
from onelog.admin.api.table import event_streams, operations
from onelog.base.clock import SystemClock
from onelog.cli.api.rows import PAGING
from onelog.cli.api.table import COMMANDS, LIVE, NOUNS
from onelog.cli.main import build
from tests.support.admin import new_desk

ROWS = {row.asks: row for row in COMMANDS}


def declared():
    desk, clock = new_desk(), SystemClock()
    return operations(desk, LoginSessions(clock), clock)


OPERATIONS = {f"{row.method} {row.path}": row for row in declared()}
EVENTS = {f"GET {row.path}" for row in event_streams(new_desk(), SystemClock())}


def test_every_operation_of_the_api_has_a_command_and_every_row_an_operation():
    known = OPERATIONS.keys() | EVENTS
    assert not known - ROWS.keys(), "add a row to src/onelog/cli/api/table.py (or protocol_rows.py)"
    assert not ROWS.keys() - known, "no operation is behind these rows"


def test_no_two_rows_are_the_same_command():
    assert len({row.words for row in COMMANDS}) == len(COMMANDS)


@pytest.fixture(scope="module")
def app():
    return build(lambda _loaded, _on_ready: None)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.words)
def test_a_row_is_a_command_that_can_be_run(app, row):
    node = app
    for word in row.words.split():
        assert word in node, f"`onelog {row.words}` is not a command"
        node = node[word]
    assert node.default_command is not None


@pytest.mark.parametrize(
    "row", [row for row in COMMANDS if not row.by_hand], ids=lambda row: row.words
)
def test_the_options_of_a_row_are_what_its_operation_takes(row):
    operation = OPERATIONS[row.asks]
    body = () if operation.body is NOTHING else operation.body.__struct_fields__
    query = set(operation.query.__struct_fields__)
    assert {option.field for option in row.options} == {*body, *(query - PAGING)}
    if row.is_list:
        assert row.searches == ("search" in query)
        assert bool(row.page_max) == ("limit" in query)
    for option in row.options:
        kind = operation.body if option.field in body else operation.query
        field = next(one for one in msgspec.structs.fields(kind) if one.name == option.field)
        assert option.required == field.required, option.field
        if option.choices:
            assert set(option.choices) <= set(_choices(field.type)), option.field


def _choices(hint) -> set[str]:
    found = set()
    for part in (hint, *typing.get_args(hint)):
        if typing.get_origin(part) is typing.Literal:
            found |= set(typing.get_args(part))
        elif inspect.isclass(part) and hasattr(part, "__members__"):
            found |= {member.value for member in part}
    return found


@pytest.mark.parametrize("row", [row for row in COMMANDS if row.is_list], ids=lambda row: row.words)
def test_the_columns_of_a_list_are_fields_of_its_rows(row):
    items = msgspec.structs.fields(OPERATIONS[row.asks].answer)[0].type
    known = _paths(typing.get_args(items)[0])
    for word in row.columns.split():
        assert word.partition(":")[0] in known


def _paths(kind, prefix: str = "") -> set[str]:
    found = set()
    for field in msgspec.structs.fields(kind):
        found.add(prefix + field.name)
        for part in (field.type, *typing.get_args(field.type)):
            if inspect.isclass(part) and issubclass(part, msgspec.Struct):
                found |= _paths(part, f"{prefix}{field.name}.")
    return found


def test_every_noun_and_every_list_of_live_names_is_in_the_table():
    words = {row.words for row in COMMANDS}
    used = {row.words.split()[0] for row in COMMANDS if " " in row.words}
    assert used == NOUNS.keys()
    assert set(LIVE.values()) <= words
