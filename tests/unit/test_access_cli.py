"""`onelog acl` as a person meets it, and the commands of its guide."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onelog.__main__ import _run_offline
from onelog.cli import run
from tests.conformance.test_serve import environment, serving

pytestmark = pytest.mark.usefixtures("empty_place")

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guide" / "access.md").read_text()


def no_server(_loaded, _on_ready) -> None:
    raise AssertionError("the server was not asked for")


def onelog(*arguments: str) -> int:
    try:
        return run(list(arguments), no_server, _run_offline)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


def acl(*arguments: str) -> int:
    return onelog("acl", *arguments)


def test_rules_of_a_stopped_server(capsys):
    assert acl("add", "allow", "user:alice", "publish", "topic:a/%u") == 0
    said = "added rule 1 in data: allow user:alice publish topic:a/%u\n"
    assert capsys.readouterr().out == said
    assert acl("test", "user:alice", "publish", "topic:a/alice") == 0
    assert "rule 1 says so" in capsys.readouterr().out
    assert acl("test", "user:alice", "publish", "topic:a/bob", "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"allowed": False, "rule": None}
    assert acl("add", "deny", "everyone", "all", "topic:#", "--name", "shut", "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == "shut"
    assert acl("test", "user:alice", "publish", "topic:a/alice") == 1
    assert "no: rule shut says so" in capsys.readouterr().out
    assert acl("list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["items"]
    assert [(row["id"], row["resource"]) for row in rows] == [
        ("1", "topic:a/%u"),
        ("shut", "topic:#"),
    ]
    assert acl("list", "--filter", "EVERYONE", "--limit", "1", "--json") == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)["items"]] == ["shut"]
    assert acl("list", "--limit", "0") == 2
    capsys.readouterr()
    assert acl("remove", "1", "shut") == 0
    capsys.readouterr()
    assert acl("list") == 0
    assert "everybody who is let in may do everything" in " ".join(capsys.readouterr().out.split())


def test_the_tester_knows_the_groups_of_a_user(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("pencil-1\n"))
    assert onelog("user", "add", "alice", "--password-stdin") == 0
    assert acl("add", "allow", "group:ops", "publish", "topic:#") == 0
    assert acl("test", "user:alice", "publish", "topic:a") == 1
    assert onelog("user", "groups", "alice", "ops", "lab") == 0
    assert "user alice is in ops, lab" in capsys.readouterr().out
    assert acl("test", "user:alice", "publish", "topic:a") == 0
    assert onelog("user", "groups", "alice") == 0
    assert acl("test", "user:alice", "publish", "topic:a") == 1
    assert onelog("user", "groups", "alice", "no group") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "allow", "bob", "publish", "topic:a"), "names no principal"),
        (("remove", "7"), "there is no rule '7'"),
        (("test", "group:ops", "publish", "topic:a"), "names nobody who could ask"),
        (("test", "user:bob", "publish", "prefix:a"), "only rules have prefixes"),
        (("test", "user:bob", "all", "topic:a"), "no action on a topic"),
        (("test", "user:bob", "publish", "topic:a/#/b"), "whole last level"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(capsys, arguments, says):
    assert acl("add", "allow", "everyone", "all", "topic:#") == 0
    assert acl(*arguments) == (4 if "there is no" in says else 1)
    assert says in " ".join(capsys.readouterr().err.split())


def test_the_commands_of_the_guide_do_what_it_says(tmp_path):
    """On a running server, in one shell, one after the other, as a reader would."""
    with serving(tmp_path):
        binary = tmp_path / ".venv" / "bin" / "onelog"
        binary.parent.mkdir(parents=True)
        binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m onelog "$@"\n')
        binary.chmod(0o755)
        for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL):
            for line in block.splitlines():
                command, _, said = line.partition("  # ")
                done = subprocess.run(
                    ["sh", "-c", command],
                    check=False,
                    cwd=tmp_path,
                    env=environment() | {"PATH": "/usr/bin:/bin"},
                    capture_output=True,
                    timeout=60,
                )
                assert done.returncode == 0, (command, done.stderr)
                told = done.stdout.decode()
                if said.startswith(("yes", "no")) and "--json" not in command:
                    assert told.startswith(said.strip()), command
                    assert "in the running server" in " ".join(told.split())
