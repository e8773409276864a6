"""`onelog quota` and `onelog ban` as a person meets them, with a stopped server."""

from __future__ import annotations

import json

import pytest

from onelog.__main__ import _run_offline
from onelog.cli import run

pytestmark = pytest.mark.usefixtures("empty_place")


def no_server(_loaded, _on_ready) -> None:
    raise AssertionError("the server was not asked for")


def onelog(*arguments: str) -> int:
    return run(arguments, no_server, _run_offline)


def test_quotas_of_a_stopped_server(capsys):
    assert onelog("quota", "set", "user:ann", "publish_bytes=1.5MB", "connections=3") == 0
    assert capsys.readouterr().out == (
        "the quota of user:ann in data: connections=3, publish_bytes=1500kB\n"
    )
    assert onelog("quota", "set", "user:ann", "publish_bytes=unlimited", "requests=0.5") == 0
    capsys.readouterr()
    assert onelog("quota", "list", "--json") == 0
    printed = capsys.readouterr().out
    row = {"entity": "user:ann", "limits": {"connections": 3.0, "requests": 0.5}}
    assert json.loads(printed) == {"items": [row]}
    assert onelog("quota", "list") == 0
    assert "connections=3, requests=0.5" in capsys.readouterr().out
    assert onelog("quota", "set", "user:ann", "connections=unlimited", "requests=unlimited") == 0
    assert capsys.readouterr().out == "user:ann has no quota in data now\n"
    assert onelog("quota", "list") == 0
    assert "there are no quotas" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("set", "user:ann", "requests"), "NAME=VALUE"),
        (("set", "user:ann", "requests=many"), "requests=many"),
        (("set", "user:ann", "publish_bytes=1parsec"), "unknown unit"),
        (("set", "ann", "requests=1"), "user:NAME"),
        (("set", "ip", "requests=1"), "use connects"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(capsys, words, error):
    assert onelog("quota", *words) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert error in told


def test_a_stopped_server_has_no_bans(capsys):
    assert onelog("quota", "set", "user", "requests=1") == 0
    assert onelog("quota", "remove", "user") == 0
    assert onelog("quota", "remove", "user") == 4
    capsys.readouterr()
    for words in (("list",), ("lift", "192.0.2.1")):
        assert onelog("ban", *words) == 3
        assert "nobody is banned there" in " ".join(capsys.readouterr().err.split())
