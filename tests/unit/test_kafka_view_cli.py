"""`onelog view` as a person meets it: with a stopped server and with a running one."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from onelog.__main__ import _run_offline
from onelog.cli import run
from tests.conformance.mqtt_brokers import Onelog
from tests.conformance.test_serve import environment
from tests.support.forks import run_onelog
from tests.unit.test_security_cli import no_server

pytestmark = pytest.mark.usefixtures("empty_place")


def view(*arguments: str) -> int:
    return run(["view", *arguments], no_server, _run_offline)


def test_views_of_a_stopped_server(capsys):
    assert view("list") == 4
    assert "there is no OneLog data in 'data'" in capsys.readouterr().err
    Path("data").mkdir()
    _run_offline(Path("data"), b'{"type": "view.list"}')  # makes the store
    capsys.readouterr()
    assert view("create", "telemetry", "sensors/+/telemetry") == 0
    assert capsys.readouterr().out == "made view telemetry of sensors/+/telemetry in data\n"
    assert view("list") == 0
    assert capsys.readouterr().out.split() == ["name", "filter", "telemetry", "sensors/+/telemetry"]
    assert view("create", "telemetry", "other/#") == 1
    assert "the view 'telemetry' exists already" in capsys.readouterr().err
    assert view("create", "bad", "a/#/b") == 1
    assert "must be the whole last level" in capsys.readouterr().err
    assert view("delete", "telemetry") == 0
    assert view("delete", "telemetry") == 4
    assert "there is no view 'telemetry'" in capsys.readouterr().err
    assert view("list") == 0
    assert "there are no named views" in capsys.readouterr().out


def test_views_of_a_running_server(tmp_path):
    def onelog(*arguments: str) -> str:
        done = run_onelog("view", *arguments, folder=tmp_path, environment=environment())
        done.check_returncode()
        return done.stdout.decode()

    server = Onelog(tmp_path).start()
    try:
        said = onelog("create", "telemetry", "sensors/+/telemetry")
        assert said == "made view telemetry of sensors/+/telemetry in the running server\n"
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}"})
        assert len(admin.list_topics(timeout=10).topics["telemetry"].partitions) == 8
        assert "telemetry" in onelog("list")
        assert onelog("delete", "telemetry") == "deleted view telemetry in the running server\n"
        assert "telemetry" not in admin.list_topics(timeout=10).topics
    finally:
        assert server.stop() == 0
    assert not server.errors()


def test_a_message_that_is_not_understood_is_refused(tmp_path):
    answer = _run_offline(tmp_path, b'{"type": "view.create"}')
    assert b"InvalidRequest" in answer
