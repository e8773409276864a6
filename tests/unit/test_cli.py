"""The command line: exit codes, one-line errors, and configuration from flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onelog
from onelog.admin.contract import ListenerInfo, ServerInfo, TroubleInfo
from onelog.base.errors import DataDirLocked
from onelog.cli import run
from onelog.cli.client import HealthAnswer, Status
from onelog.cli.example import example_toml
from onelog.cli.render import print_status
from onelog.config import Config, Loaded, load

pytestmark = pytest.mark.usefixtures("empty_place")


def no_server(_loaded, _on_ready) -> None:
    raise AssertionError("the server was not asked for")


def test_version_prints_the_version(capsys):
    assert run(["version"], no_server) == 0
    assert capsys.readouterr().out.strip() == onelog.__version__


def test_serve_hands_over_the_configuration_of_its_flags():
    seen: list[Loaded] = []
    assert (
        run(
            ["serve", "--data", "1", "--set", "log.level=debug", "--set", "node.id=7"],
            lambda loaded, _on_ready: seen.append(loaded),
        )
        == 0
    )
    config = seen[0].config
    assert (config.data_dir, config.log.level, config.node.id) == ("1", "debug", 7)


def test_a_configuration_error_is_one_line_and_exit_code_2(capsys):
    assert run(["serve", "--set", "log.levl=debug"], no_server) == 2
    errors = capsys.readouterr().err.strip()
    assert errors == "onelog: --set: unknown key log.levl (did you mean log.level?)"


def test_any_other_error_of_ours_is_one_line_and_exit_code_1(capsys):
    def locked(_loaded, _on_ready) -> None:
        raise DataDirLocked("in use by process 5")

    assert run(["serve"], locked) == 1
    assert capsys.readouterr().err.strip() == "onelog: in use by process 5"


def test_an_unknown_flag_is_exit_code_2(capsys):
    assert run(["serve", "--port", "1"], no_server) == 2
    assert "--port" in capsys.readouterr().err


def test_status_without_a_server_says_how_to_start_one(capsys):
    assert run(["status", "--set", "listeners.admin.port=1"], no_server) == 3
    assert "onelog serve" in capsys.readouterr().err


def test_config_show_names_the_source_of_each_value(capsys, monkeypatch):
    monkeypatch.setenv("ONELOG_NODE_NAME", "blue")
    assert run(["config", "show", "--set", "main.retention_bytes=2GiB"], no_server) == 0
    out = capsys.readouterr().out
    assert re.search(r'node\.name +"blue" +ONELOG_NODE_NAME', out)
    assert re.search(r'main\.retention_bytes +"2GiB" +--set', out)
    assert re.search(r'data_dir +"\./data" +default', out)


def test_config_check_accepts_what_config_init_wrote(capsys):
    assert run(["config", "init"], no_server) == 0
    assert run(["config", "check"], no_server) == 0
    assert "configuration ok: onelog.toml" in capsys.readouterr().out


def test_config_check_tells_every_error_on_a_line_of_its_own(capsys):
    Path("onelog.toml").write_text("[log]\nlevel = 1\nformat = 2\n[nood]\n")
    assert run(["config", "check"], no_server) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[:2] for line in lines] == [
        ["onelog:", "onelog.toml:2:"], ["onelog:", "onelog.toml:3:"], ["onelog:", "onelog.toml:4:"],
    ]  # fmt: skip


def test_config_check_opens_the_files_that_are_named(capsys):
    Path("onelog.toml").write_text("[security.tokens]\njwks_file = 'gone.json'\n")
    assert run(["config", "check"], no_server) == 2
    assert "onelog.toml:2: security.tokens.jwks_file" in capsys.readouterr().err


def test_config_init_leaves_an_existing_file_alone(capsys):
    Path("onelog.toml").write_text("# mine\n")
    assert run(["config", "init"], no_server) == 2
    assert Path("onelog.toml").read_text() == "# mine\n"
    assert "exists already" in capsys.readouterr().err


def test_the_example_file_with_every_key_switched_on_is_the_default_configuration(tmp_path):
    file = tmp_path / "example.toml"
    file.write_text(re.sub(r"^#(?=\w+ = )", "", example_toml(), flags=re.MULTILINE))
    loaded = load(file)
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {str(file)}


def test_status_shows_what_lasts_first_and_where_the_server_listens(capsys):
    info = ServerInfo(
        version="1", node_id=0, node_name="n", pid=1, python="3", event_loop="x",
        kernel="compiled", data_dir="d", config_file=None, started_ms=0, uptime_s=5.0,
        listeners=(
            ListenerInfo(name="mqtt", address="127.0.0.1:1883", url="mqtt://here:1883"),
            ListenerInfo(name="amqp_tls", address="127.0.0.1:5671", url="amqps://here:5671"),
        ),
    )  # fmt: skip
    rows = [
        TroubleInfo(kind="live-listener", place="main/1", error="ValueError: x\ny", count=1_200,
                    first_ms=1, last_ms=9_000, standing=False,
                    facts={"offset": 7, "topic": "a/b"}),
        TroubleInfo(kind="disk-full", place="main/3", error="no space", count=1, first_ms=5,
                    last_ms=5, standing=True),
    ]  # fmt: skip
    rows.append(
        TroubleInfo(kind="protocol", place="amqp", error="it did not start", count=1, first_ms=4,
                    last_ms=4, standing=True)
    )  # fmt: skip
    health = HealthAnswer("failing", {"state": "ok", "troubles": "disk-full"}, rows)
    print_status(Status(info, health, [], False))
    lines = capsys.readouterr().out.splitlines()
    assert "not ready, up 5s, pid 1" in lines[0]
    assert lines[1] == "  troubles: disk-full"
    assert lines[2].startswith("  disk-full at main/3: no space (since 1970-01-0")
    assert lines[3].startswith("  protocol at amqp: it did not start (since")
    assert "  live-listener at main/1: ValueError: x y (offset 7, topic a/b, last at" in lines[4]
    assert lines[4].endswith(", 1,200 times)")
    assert lines[-2].split() == ["mqtt", "listening", "127.0.0.1:1883", "mqtt://here:1883"]
    assert lines[-1].split()[:3] == ["amqp_tls", "in", "trouble"]
