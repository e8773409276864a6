"""`onelog user` as a person meets it: with a stopped server and with a running one."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from onelog.__main__ import _run_offline
from onelog.cli import run, users
from onelog.cli.failures import EXIT_UNREACHABLE
from onelog.storage.lock import lock_data_dir
from tests.conformance.test_serve import DEADLINE_S, command, environment, serving
from tests.support.forks import run_onelog

pytestmark = pytest.mark.usefixtures("empty_place")


def no_server(_loaded, _on_ready) -> None:
    raise AssertionError("the server was not asked for")


def onelog(cwd: Path, *arguments: str, password: str | None = None):
    given = b"" if password is None else password.encode() + b"\n"
    done = run_onelog(*arguments, folder=cwd, environment=environment(), given=given)
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def user(*arguments: str) -> int:
    return run(["user", *arguments], no_server, _run_offline)


@pytest.fixture
def typed(monkeypatch):
    """What a person types when a password is asked for."""
    answers: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(users.getpass, "getpass", lambda _prompt: answers.pop(0))
    return answers


def test_users_of_a_stopped_server(capsys, typed):
    typed += ["pencil-1", "pencil-1"]
    assert user("add", "alice") == 0
    assert capsys.readouterr().out == "added user alice in data\n"
    assert user("list") == 0
    listed = capsys.readouterr().out
    assert "alice" in listed
    assert "enabled" in listed
    assert user("disable", "alice") == 0
    assert user("list") == 0
    assert "disabled" in capsys.readouterr().out
    assert user("enable", "alice") == 0
    capsys.readouterr()
    assert user("promote", "alice") == 0
    assert capsys.readouterr().out == "user alice is an administrator in data\n"
    assert user("list") == 0
    assert "administrator" in capsys.readouterr().out
    assert user("demote", "alice") == 0
    assert capsys.readouterr().out == "user alice is no administrator in data\n"
    assert user("list") == 0
    assert "administrator" not in capsys.readouterr().out
    assert user("promote", "bob") == 4
    typed += ["crayon-1", "crayon-1"]
    assert user("passwd", "alice") == 0
    assert user("remove", "alice") == 0
    assert "removed user alice" in capsys.readouterr().out
    assert user("list") == 0
    assert "there are no users" in capsys.readouterr().out


def test_errors_are_one_line_and_an_exit_code(capsys, typed):
    typed += ["pencil-1", "pencil-1"] * 3
    assert user("add", "alice") == 0
    assert user("add", "alice") == 1
    assert user("passwd", "bob") == 4
    assert user("remove", "bob") == 4
    errors = capsys.readouterr().err.strip().splitlines()
    assert [line.startswith("onelog: ") for line in errors] == [True] * 3
    assert "exists already" in errors[0]


def test_a_weak_password_is_refused_and_changes_nothing(capsys, typed):
    typed += ["seven77", "seven77", "pencil-1", "pencil-1", "LongName", "LongName"]
    assert user("add", "longname") == 1
    assert "at least 8 characters" in capsys.readouterr().err
    assert user("add", "longname") == 0
    assert user("passwd", "longname") == 1
    assert "the password is the user's name" in capsys.readouterr().err


def test_two_different_passwords_change_nothing(capsys, typed):
    typed += ["pencil-1", "pencli-1"]
    assert user("add", "alice") == 1
    assert "not the same" in capsys.readouterr().err
    assert not Path("data").exists()


def test_giving_up_at_the_prompt_changes_nothing(capsys, monkeypatch, typed):
    def interrupted(_prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(users.getpass, "getpass", interrupted)
    assert user("add", "alice") == 1
    assert "nothing was changed" in capsys.readouterr().err


def test_a_password_is_never_taken_from_the_command_line(capsys):
    assert user("add", "alice", "--password", "pencil-1") == 2
    assert user("add", "alice", "pencil-1") == 2
    assert not Path("data").exists()


def test_without_a_directory_there_is_nothing_to_list_and_none_is_made(capsys):
    assert user("list", "--data", "tpyo") == 4
    assert "tpyo" in capsys.readouterr().err
    assert not Path("tpyo").exists()


def test_a_locked_directory_without_a_server_that_listens_says_so(tmp_path, capsys, typed):
    typed += ["pencil-1", "pencil-1"]
    with lock_data_dir(tmp_path / "data"):
        assert user("add", "alice") == 1
    assert "takes no commands" in capsys.readouterr().err


def test_the_prompt_does_not_show_the_password(tmp_path):
    """On a real terminal: what is typed does not come back."""
    terminal, child = pty.openpty()
    process = subprocess.Popen(
        command("user", "add", "alice"),
        cwd=tmp_path,
        env=environment(),
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    os.close(child)
    shown = b""
    for ask in (b"Password for alice: ", b"The same again: "):
        while ask not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"pencil-1\n")
    while b"added user alice" not in shown:
        shown += os.read(terminal, 4096)
    assert process.wait(DEADLINE_S) == 0
    os.close(terminal)
    assert b"pencil-1" not in shown


def test_users_of_a_running_server_and_after_its_restart(tmp_path):
    with serving(tmp_path) as server:
        added = onelog(tmp_path, "user", "add", "alice", "--password-stdin", password="pencil-1")
        assert (added.returncode, added.stderr) == (0, "")
        assert added.stdout == "added user alice in the running server\n"
        again = onelog(tmp_path, "user", "add", "alice", "--password-stdin", password="crayon-1")
        assert again.returncode == 1
        assert "exists already" in again.stderr
        assert "alice" in onelog(tmp_path, "user", "list").stdout
        assert b"onelog_users 1.0" in server.get("/metrics")[1]
        changed = onelog(
            tmp_path, "user", "passwd", "alice", "--password-stdin", password="crayon-2"
        )
        assert changed.returncode == 0
        assert server.stop() == 0
    assert not (tmp_path / "data" / "control.sock").exists()
    assert "alice" in onelog(tmp_path, "user", "list").stdout
    with serving(tmp_path) as server:
        removed = onelog(tmp_path, "user", "remove", "alice")
        assert removed.stdout == "removed user alice in the running server\n"
        assert b"onelog_users 0.0" in server.get("/metrics")[1]
        assert server.stop() == 0


def test_without_a_terminal_the_password_must_come_from_standard_input(tmp_path):
    asked = onelog(tmp_path, "user", "add", "alice")
    assert asked.returncode == 2
    assert "--password-stdin" in asked.stderr
    empty = onelog(tmp_path, "user", "add", "alice", "--password-stdin")
    assert empty.returncode == 2
    assert "empty" in empty.stderr


ELSEWHERE = (
    ('cluster.mode="etcd"', 'cluster.etcd.endpoints=["http://127.0.0.1:1"]'),
    ('metadata.url="store"', 'defaults.stream.engine="object"', 'store.url="s3://bucket"'),
)


@pytest.mark.parametrize("chosen", ELSEWHERE)
def test_a_user_is_not_made_where_the_node_would_not_look(chosen, tmp_path, capsys, typed):
    """The first start would not find it: no store is made, and the answer says what works."""
    typed += ["pencil-1", "pencil-1"]
    where = [word for text in chosen for word in ("--set", text)] + ["--data", str(tmp_path / "d")]
    assert user("add", "alice", *where) == EXIT_UNREACHABLE
    said = capsys.readouterr().err
    assert "onelog serve" in said
    assert not (tmp_path / "d").exists()
    assert user("list", *where) == EXIT_UNREACHABLE


def test_the_users_of_a_stopped_node_of_a_cluster_are_asked_of_its_server(tmp_path, capsys):
    (tmp_path / "node.json").write_text("{}")
    assert user("list", "--data", str(tmp_path)) == EXIT_UNREACHABLE
    assert "cluster.mode = 'etcd'" in capsys.readouterr().err
