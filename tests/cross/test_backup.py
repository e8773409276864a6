"""A backup under the load of three protocols, then kill -9, then a restore; and by the commands."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.conformance import mqtt_brokers
from tests.conformance.mqtt_brokers import Onelog, environment
from tests.support.backups import flip, sent_files
from tests.support.forks import run_onelog
from tests.support.history import Deed, History
from tests.support.mixed import SETTINGS, MixedRun


def onelog(*words: str, folder: Path) -> tuple[int, str, str]:
    done = run_onelog(*words, folder=folder, environment=environment(), timeout_s=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def restored_start(server: Onelog, url: str):
    """Start as after the loss of the machine: from a backup."""
    begin = server.start

    def start() -> Onelog:
        shutil.move(server.folder / "data", server.folder / "lost")
        code, said, wrong = onelog("restore", url, "--data-dir", "data", folder=server.folder)
        assert code == 0, said + wrong
        return begin()

    return start


def history_upto(old: History, count: int) -> History:
    """What was promised when `count` lines were written; what was tried later may be there.

    The point of the backup is somewhat later. A view may have taken a message in between: whether
    the message comes to it again is open.
    """
    kept, later = old.events[:count], old.events[count:]
    tried = [row for row in later if row.deed is Deed.ATTEMPTED]
    taken = {row.text for row in later if row.deed is Deed.SEEN}
    made = History()
    made.known = {row.text for row in kept if row.deed is Deed.ACKNOWLEDGED}
    made.events = [
        row for row in kept if row.deed is not Deed.ACKNOWLEDGED or row.text not in taken
    ] + tried
    for row in old.events:
        if row.deed is Deed.SEEN:
            made.seen_by[row.who].add(row.text)
    return made


@pytest.mark.fault
def test_nothing_that_was_acknowledged_before_the_point_is_missing_after_the_restore(tmp_path):
    server, url = Onelog(tmp_path, *SETTINGS).start(), str(tmp_path / "store")
    run = MixedRun(server)
    try:
        run.prepare()
        run.begin(write=True)
        run.written(1000)
        server.command("backup", "create", url)
        run.written(300)
        # The second one is the one that counts: it uses what the first one sent.
        count, committed, began_s = len(run.history.events), dict(run.committed), time.monotonic()
        server.command("backup", "create", url)
        run.written(100)
        server.start = restored_start(server, url)
        run.kill()
        run.history = history_upto(run.history, count)
        run.history.broken(at_s=began_s)
        run.committed, run.commits_lost = committed, []
        run.catch_up()
        assert not run.findings()
        for view in ("late queue", "late wildcard"):
            assert not run.history.known - run.history.seen_by[view], f"{view}: records are lost"
        assert server.stop() == 0
        assert not server.errors()
    finally:
        server.kill()


def test_the_commands_make_list_check_prune_and_restore_backups(tmp_path):
    server, url = Onelog(tmp_path).start(), str(tmp_path / "store")
    try:
        server.command("pub", "a/1", "hello", "--port", str(server.ports["mqtt"]))
        first = json.loads(server.command("backup", "create", url, "--json").splitlines()[-1])
        assert (first["state"], first["url"]) == ("done", url)
        second = json.loads(server.command("backup", "create", url, "--json").splitlines()[-1])
        # Only what noted the first one is new: the audit trail.
        assert 0 < second["new_bytes"] < first["new_bytes"]
        assert first["id"] in server.command("backup", "status")
        again = json.loads(server.get("/api/v1/backups"))["items"]
        assert [row["state"] for row in again] == ["done", "done"]
        listed = json.loads(server.command("backup", "list", url, "--json"))["items"]
        assert [row["id"] for row in listed] == [first["id"], second["id"]]
        assert first["id"] not in server.command("backup", "list", url, "--filter", second["id"])
        assert second["id"] not in server.command("backup", "list", url, "--limit", "1")
        assert "2 backups are whole" in server.command("backup", "verify", url)
        assert "deleted 1 backups" in server.command("backup", "prune", url)
        assert server.stop() == 0
    finally:
        server.kill()
    code, _, wrong = onelog("backup", "create", url, folder=tmp_path)
    assert (code, "no server runs" in wrong) == (3, True)
    code, _, wrong = onelog("restore", url, "--data-dir", "data", folder=tmp_path)
    assert (code, "not empty" in wrong) == (1, True)
    code, said, wrong = onelog("restore", url, "--data-dir", "again", folder=tmp_path)
    assert code == 0, wrong
    assert "every checksum is right" in said
    code, said, _ = onelog("restore", url, "--data-dir", "more", "--json", folder=tmp_path)
    assert json.loads(said.splitlines()[-1])["data_dir"] == "more"
    store = tmp_path / "store"
    for name, size in sent_files(store).items():
        if name.startswith("objects/"):
            flip(store / name, size // 2)
    code, _, wrong = onelog("backup", "verify", url, folder=tmp_path)
    assert (code, "is damaged" in wrong) == (1, True)
    code, _, wrong = onelog("restore", url, "--data-dir", "never", folder=tmp_path)
    assert (code, "is damaged" in wrong) == (1, True)
    code, _, wrong = onelog("restore", url, "--data-dir", "n", "--to", "12:00", folder=tmp_path)
    assert (code, "with its zone" in wrong) == (2, True)
    code, _, wrong = onelog("backup", "list", "", folder=tmp_path)
    assert (code, "is empty" in wrong) == (2, True)
    code, _, wrong = onelog("backup", "verify", "nowhere", folder=tmp_path)
    assert (code, "nothing was checked" in wrong) == (4, True)


def test_a_broker_that_dies_while_it_makes_links_starts_again_and_has_no_lock(
    tmp_path, monkeypatch
):
    faults = {"ONELOG_FAULTS": "segment.freeze=exit:1"}
    monkeypatch.setattr(mqtt_brokers, "environment", lambda: environment() | faults)
    server, url = Onelog(tmp_path).start(), str(tmp_path / "store")
    try:
        for topic in ("a", "b", "c"):
            server.command("pub", topic, "hello", "--port", str(server.ports["mqtt"]))
        code, _, _ = onelog("backup", "create", url, folder=tmp_path)
        assert code != 0
        server.process.wait(30)
        server.kill()
        assert (tmp_path / "data/backup.tmp").exists()
        faults.clear()
        server.start()
        assert not (tmp_path / "data/backup.tmp").exists()
        server.command("backup", "create", url)
        assert "1 backups are whole" in server.command("backup", "verify", url)
        assert server.stop() == 0
    finally:
        server.kill()
