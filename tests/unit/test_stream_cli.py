"""`onelog stream` as a person meets it: without a server, and with a running one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onelog.__main__ import _run_offline
from onelog.cli import run
from tests.conformance.mqtt_brokers import Onelog
from tests.conformance.test_serve import environment
from tests.support.forks import run_onelog
from tests.unit.test_security_cli import no_server

pytestmark = pytest.mark.usefixtures("empty_place")


def stream(*arguments: str) -> int:
    return run(["stream", *arguments], no_server, _run_offline)


def test_without_a_server_it_says_what_to_do(capsys):
    assert stream("list", "--set", "listeners.admin.port=1") == 3
    assert "start one with `onelog serve`" in capsys.readouterr().err
    assert stream("show", "main") == 4
    assert "there is no OneLog data in 'data'" in capsys.readouterr().err
    Path("data").mkdir()
    _run_offline(Path("data"), b'{"type": "view.list"}')  # makes the store
    assert stream("create", "plant", "--capture", "plant/#") == 3
    assert "start it with `onelog serve`" in capsys.readouterr().err


def test_a_quantity_that_is_none_is_refused_before_anything_is_asked(capsys):
    assert stream("create", "plant", "--capture", "plant/#", "--retention", "long") == 2
    assert "--retention: 'long' is not a duration" in capsys.readouterr().err


def test_streams_of_a_running_server(tmp_path):
    def onelog(*arguments: str) -> tuple[int, str]:
        done = run_onelog("stream", *arguments, folder=tmp_path, environment=environment())
        return done.returncode, (done.stdout + done.stderr).decode()

    server = Onelog(tmp_path).start()
    try:
        made = ("create", "plant", "--capture", "plant/#", "--capture", "p", "--partitions", "3")
        chosen = ("--durability", "os", "--retention", "2h", "--retention-bytes", "5MB")
        assert onelog(*made, *chosen) == (0, "made stream plant of plant/#, p\n")
        assert onelog(*made)[0] == 1
        info = server.get("/api/v1/streams/plant")
        for part in ('"partitions":3', '"durability":"os"', '"age_ms":7200000', '"bytes":5000000'):
            assert part in info
        said = onelog("alter", "plant", "--release", "p", "--capture", "q", "--partitions", "4")
        assert said == (0, "changed stream plant of plant/#, q\n")
        rows = [line.split() for line in onelog("list")[1].splitlines()]
        assert ["plant", "plant/#,", "q", "4", "0", "0", "B"] in [row[:7] for row in rows]
        assert [row[:3] for row in rows if row[0] == "main"] == [["main", "#", "8"]]
        found = json.loads(onelog("show", "plant", "--json")[1])
        assert (found["stream"]["name"], found["settings"]["durability"]) == ("plant", "os")
        assert [row["partition"] for row in found["partitions"]] == [0, 1, 2, 3]
        said = onelog("show", "plant")[1]
        assert said.startswith("stream plant: 4 partitions, 0 records, 0B\n\n")
        shown = " ".join(said.split())
        for part in (
            "stream plant: 4 partitions, 0 records, 0B", "captures plant/#, q", "durability os",
            "retention.age_ms 2h", "retention.bytes 5MB", "message_ttl_ms unlimited",
            "segment_bytes 256MiB", "cleanup delete", "3 0 0 0B running",
        ):  # fmt: skip
            assert part in shown
        assert "captures none" in " ".join(onelog("show", "~cursors")[1].split())
        assert onelog("show", "nobody")[0] == 4
        for wrong, why in (
            (("alter", "plant", "--release", "p"), "does not capture 'p'"),
            (("alter", "plant", "--partitions", "1"), "cannot shrink"),
            (("alter", "main", "--release", "#"), "captures every topic that no other"),
            (("create", "own", "--capture", "$SYS/#"), "belong to the broker"),
            (("create", "own", "--capture", "plant/#"), "captured by stream plant already"),
            (("alter", "~cursors", "--partitions", "2"), "belongs to the broker"),
            (("start-over", "plant"), "only a damaged one can start over"),
            (("delete", "main"), "and stays"),
            (("delete", "nobody"), "there is no stream 'nobody'"),
        ):
            code, text = onelog(*wrong)
            assert code == 4 if "there is no" in why else code in (1, 5)
            assert why in " ".join(text.split())
        assert onelog("delete", "plant") == (0, "deleted stream plant and its records\n")
        assert "plant" not in onelog("list")[1]
    finally:
        assert server.stop() == 0
    assert not server.errors()
