"""Completion in the shells themselves: commands, options, choices and live names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onelog.cli import run
from onelog.cli.completing import complete
from onelog.cli.main import build
from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog
from tests.conformance.test_serve import environment
from tests.unit.test_security_cli import no_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Onelog(tmp_path_factory.mktemp("server")).start()
    server.command("stream", "create", "plant-a", "--capture", "plant/#")
    server.command("stream", "create", "plant-b", "--capture", "other/#")
    server.command("message", "publish", "sensors/d 1/t", "1")
    server.command("message", "publish", "sensors/\x1b[31m", "1")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def app():
    return build(no_server)


@pytest.fixture
def here(server, monkeypatch):
    monkeypatch.chdir(server.folder)
    monkeypatch.delenv("ONELOG_URL", raising=False)
    return server


def of(app, *words: str) -> list[str]:
    return complete(app, "fish", words)


def test_commands_options_and_choices_are_those_of_the_tree(app):
    assert {"stream", "top", "pub", "connection"} <= set(of(app, ""))
    assert of(app, "conn") == ["connection"]
    assert of(app, "connection", "") == ["kick", "list", "show"]
    assert of(app, "connection", "list", "--prot") == ["--protocol"]
    assert of(app, "connection", "list", "--protocol", "") == ["amqp", "kafka", "mqtt"]
    assert of(app, "cursor", "seek", "x", "ear") == ["earliest"]
    assert of(app, "stream", "list", "--json", "--wa") == ["--watch"]
    assert of(app, "completion", "z") == ["zsh"]
    assert of(app, "nonsense", "") == []
    assert of(app, "stream", "st") == ["start-over"]


def test_live_names_are_completed_and_those_that_do_not_print_are_not(app, here):
    assert of(app, "stream", "show", "plant") == ["plant-a", "plant-b"]
    assert of(app, "partition", "list", "plant-b") == ["plant-b"]
    assert of(app, "topic", "show", "sens") == ["sensors/d 1/t"]
    assert of(app, "tail", "sens") == ["sensors/d 1/t"]
    assert of(app, "message", "peek", "sens") == ["sensors/d 1/t"]
    assert of(app, "message", "peek", "x", "--stream", "plant-a") == ["plant-a"]
    assert of(app, "stream", "create", "plant") == []


def test_without_a_server_there_are_no_names_and_no_error(app, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONELOG_LISTENERS_ADMIN_PORT", "1")
    assert of(app, "stream", "show", "") == []
    assert run(["__complete", "fish", "stream", "show", ""], no_server) == 0
    assert capsys.readouterr() == ("", "")


def test_files_are_completed_where_a_file_is_meant(app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("one.toml").touch()
    Path("folder").mkdir()
    assert of(app, "serve", "--config", "o") == ["one.toml"]
    assert of(app, "serve", "--data", "fo") == ["folder/"]


# -- in the shells


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(shell, capsys, tmp_path):
    assert run(["completion", shell], no_server) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", str(tmp_path / "script")], check=False).returncode == 0


@pytest.fixture
def place(here, tmp_path) -> dict[str, str]:
    """An environment in which `onelog` is a command."""
    binary = tmp_path / "bin" / "onelog"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m onelog "$@"\n')
    binary.chmod(0o755)
    paths = f"{binary.parent}{os.pathsep}{os.environ['PATH']}"
    return {**environment(), "PATH": paths, "HOME": str(tmp_path)}


def ran(words: list[str], folder: Path, place: dict[str, str]) -> list[str]:
    done = subprocess.run(
        words,
        cwd=folder,
        env=place,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stderr == "", done.stderr
    return done.stdout.splitlines()


def bash(line: str, server, place) -> list[str]:
    script = f"""
source <(onelog completion bash)
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=(onelog)
_onelog 2>/dev/null; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return ran(["bash", "-c", script], server.folder, place)


def test_bash_completes(here, place):
    assert bash("onelog conn", here, place) == ["connection"]
    assert bash("onelog stream show plant-", here, place) == ["plant-a", "plant-b"]
    assert bash("onelog topic show sens", here, place) == [r"sensors/d\ 1/t"]
    assert bash("onelog topic show 'sens", here, place) == ["sensors/d 1/t"]
    assert bash("onelog connection list --protocol=k", here, place) == ["kafka"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed (tools/provision)")
def test_zsh_completes(here, place):
    script = """
autoload -Uz compinit; compinit -u -D
source <(onelog completion zsh)
compadd() { shift; print -l -- "$@" }
words=(onelog stream show plant-); CURRENT=4; _onelog
words=(onelog conn); CURRENT=2; _onelog
"""
    found = ran(["zsh", "-f", "-c", script], here.folder, place)
    assert found == ["plant-a", "plant-b", "connection"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed (tools/provision)")
def test_fish_completes(here, place):
    script = """
onelog completion fish | source
complete --do-complete 'onelog stream show plant-'
complete --do-complete 'onelog conn'
"""
    found = ran(["fish", "--no-config", "-c", script], here.folder, place)
    assert [line.split("\t")[0] for line in found] == ["plant-a", "plant-b", "connection"]
