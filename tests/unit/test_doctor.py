"""`onelog doctor`: each finding comes up when it should, says what to do, and never otherwise."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import socket
from pathlib import Path

import pytest

from onelog.admin.contract import ServerInfo, TroubleInfo
from onelog.cli import run
from onelog.cli.client import HealthAnswer, Status
from onelog.cli.doctor import broker, data, examine, listeners, machine
from onelog.config import load
from onelog.config.listeners import AdminListener
from onelog.kernel.condition import missing

pytestmark = pytest.mark.usefixtures("empty_place")
MIB = 1024 * 1024
GB = 1000**3


def no_server(_loaded, _on_ready) -> None:
    raise AssertionError("the server was not asked for")


@pytest.fixture
def free(monkeypatch):
    """Every listener on a port that nobody has."""
    for name in ("ADMIN", "MQTT", "KAFKA", "AMQP"):
        monkeypatch.setenv(f"ONELOG_LISTENERS_{name}_PORT", "0")


def levels(found) -> set[tuple[str, str]]:
    return {(row.level, row.area) for row in found}


# -- the command


@pytest.mark.usefixtures("free")
def test_it_looks_at_everything_changes_nothing_and_prints_what_it_saw(capsys):
    before = sorted(Path.cwd().rglob("*"))
    assert run(["doctor"], no_server) == 0
    out = capsys.readouterr().out
    for area in ("config", "data", "disk", "ports", "broker", "kernel", "limits", "clock"):
        assert f" {area} " in out, out
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.usefixtures("free")
def test_json_is_one_array_of_findings(capsys):
    assert run(["doctor", "--json"], no_server) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {tuple(row) for row in rows} == {("level", "area", "text", "do")}


def test_an_error_is_exit_code_1_and_its_finding_says_what_to_do(capsys, free):
    Path("data").write_text("not a directory")
    assert run(["doctor"], no_server) == 1
    shown = capsys.readouterr()
    assert "is a file" in shown.out
    assert "--data DIR" in shown.out
    assert "a broker would fail here" in shown.err


def test_a_wrong_configuration_is_a_finding_for_each_error_and_the_machine_is_still_looked_at():
    Path("onelog.toml").write_text("[log]\nlevel = 1\nformat = 2\n")
    found = examine(None, None, ())
    wrong = [row for row in found if row.area == "config"]
    assert [row.level for row in wrong] == ["error", "error"]
    assert "onelog.toml:2" in wrong[0].text
    assert any(row.area == "clock" for row in found)


@pytest.mark.usefixtures("free")
def test_a_file_that_the_configuration_names_and_that_is_gone_is_an_error():
    Path("onelog.toml").write_text("[security.tokens]\njwks_file = 'gone.json'\n")
    (row,) = [row for row in examine(None, None, ()) if row.area == "config"]
    assert row.level == "error"
    assert "gone.json" in row.text


def test_every_finding_that_is_not_well_says_what_to_do():
    """Over every finding that the tests of this module make, by the functions that make them."""
    rows = [
        machine.judge_kernel(missing("gone")),
        *machine.judge_loop(has_uvloop=False),
        machine.judge_open_files(1024),
        machine.judge_memory(64 * MIB),
        machine.judge_clock(0, synchronised=True),
        *machine.judge_faults("x"),
        *data.judge_file_system(Path("d"), "tmpfs"),
        data.judge_room(1, GB, -1),
        *data.judge_inodes(1, 1000),
        data.judge_syncs(1.0),
        *listeners.judge_port("mqtt", "h", 1, errno.EACCES, None),
        *listeners.judge_exposure("mqtt", "0.0.0.0", "always", has_tls=False),
        *listeners.judge_advertised("kafka", "no.such.name.invalid:1"),
    ]
    assert all(row.level != "ok" and row.do for row in rows)


# -- the machine


def test_a_missing_kernel_is_a_warning_with_the_way_to_compile_it():
    row = machine.judge_kernel(missing("No module named crc"))
    assert row.level == "warning"
    assert "compile it" in row.do
    assert machine.judge_kernel("the interpreted kernel runs: ONELOG_PURE=1 asks for it").do
    assert machine.judge_kernel("").level == "ok"


def test_a_missing_loop_is_a_warning():
    assert machine.judge_loop(has_uvloop=False)[0].level == "warning"
    assert not machine.judge_loop(has_uvloop=True)


def test_few_open_files_are_a_warning_and_no_limit_is_well():
    assert machine.judge_open_files(1024).level == "warning"
    assert machine.judge_open_files(machine.OPEN_FILES_MIN).level == "ok"
    assert "unlimited" in machine.judge_open_files(resource.RLIM_INFINITY).text


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("memory.max", "268435456\n", 256 * MIB),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "1073741824\n", 1024 * MIB),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        ("other", "1", None),
    ],
)
def test_the_memory_of_a_container_is_read_as_both_kinds_of_cgroup_say_it(
    tmp_path, name, text, wanted
):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert machine.memory_limit_bytes(tmp_path) == wanted


def test_little_memory_is_a_warning():
    assert machine.judge_memory(256 * MIB).level == "warning"
    assert machine.judge_memory(2048 * MIB).level == "ok"


def test_a_clock_that_was_never_set_is_an_error_and_one_that_drifts_a_warning():
    assert machine.judge_clock(1000.0, synchronised=True).level == "error"
    assert machine.judge_clock(2e9, synchronised=False).level == "warning"
    assert machine.judge_clock(2e9, synchronised=True).level == "ok"
    assert machine.judge_clock(2e9, synchronised=None).level == "ok"


def test_the_system_says_whether_its_clock_is_synchronised_and_nothing_is_set_by_asking():
    assert machine.is_clock_synchronised() in (True, False, None)


def test_faults_of_a_test_in_the_environment_are_an_error():
    assert machine.judge_faults("fsync:1")[0].level == "error"
    assert not machine.judge_faults("")


# -- data


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    place = data.existing(tmp_path / "file" / "deep" / "data")
    assert data.judge_access(tmp_path / "file" / "deep" / "data", place)[0].level == "error"
    assert data.existing(tmp_path / "new" / "data") == tmp_path
    assert not data.judge_access(tmp_path / "new", tmp_path)


def test_a_directory_of_somebody_else_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    (row,) = data.judge_access(tmp_path, tmp_path)
    assert row.level == "error"
    assert "may not write" in row.text


MOUNTS = (
    "overlay / overlay rw 0 0\n"
    "/dev/vda1 /data ext4 rw 0 0\n"
    "tmpfs /data/fast tmpfs rw 0 0\n"
    "server:/x /with\\040space nfs4 rw 0 0\n"
)


@pytest.mark.parametrize(
    ("place", "kind", "level"),
    [
        ("/data/onelog", "ext4", "ok"),
        ("/data/fast/onelog", "tmpfs", "warning"),
        ("/database", "overlay", "warning"),
        ("/with space/x", "nfs4", "warning"),
    ],
)
def test_the_file_system_under_the_data_is_found_and_judged(place, kind, level):
    assert data.file_system_of(Path(place), MOUNTS) == kind
    (row,) = data.judge_file_system(Path(place), kind)
    assert row.level == level
    assert kind in row.text


def test_little_room_is_a_warning_and_no_room_an_error():
    assert data.judge_room(10 * MIB, 100 * GB, -1).level == "error"
    assert data.judge_room(5 * GB, 100 * GB, -1).level == "warning"
    assert data.judge_room(50 * GB, 100 * GB, -1).level == "ok"


def test_a_retention_beyond_the_disk_is_a_warning():
    row = data.judge_room(50 * GB, 100 * GB, 200 * GB)
    assert row.level == "warning"
    assert "main.retention_bytes" in row.text


def test_few_inodes_are_a_warning_where_they_are_counted():
    assert data.judge_inodes(10, 1_000_000)[0].level == "warning"
    assert not data.judge_inodes(500_000, 1_000_000)
    assert not data.judge_inodes(0, 0)


def test_data_from_the_future_is_an_error(tmp_path):
    (tmp_path / "metadata.db").write_bytes(b"")
    os.utime(tmp_path / "metadata.db", (5000, 5000))
    assert data.judge_times(tmp_path, 1000.0)[0].level == "error"
    assert not data.judge_times(tmp_path, 5000.0)
    assert not data.judge_times(tmp_path / "gone", 1000.0)


def test_a_slow_disk_is_a_warning_and_the_look_leaves_no_file(tmp_path):
    assert data.sync_seconds(tmp_path) > 0
    assert not list(tmp_path.iterdir())
    assert data.judge_syncs(0.05).level == "warning"
    assert data.judge_syncs(0.002).level == "ok"


def test_the_process_that_holds_the_data_is_found_without_touching_its_lock(tmp_path):
    assert data.holder_of(tmp_path) is None
    with (tmp_path / "lock").open("w") as file:
        assert data.holder_of(tmp_path) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert data.holder_of(tmp_path) == os.getpid()


# -- ports


def test_a_port_in_use_is_an_error_that_names_the_program():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        wrong = listeners.bind_error("127.0.0.1", port)
        (row,) = listeners.judge_port("mqtt", "127.0.0.1", port, wrong, None)
        assert row.level == "error"
        assert f"(pid {os.getpid()})" in row.text
        # A broker that holds the data directory may have its own port.
        (row,) = listeners.judge_port("mqtt", "127.0.0.1", port, wrong, os.getpid())
        assert row.level == "ok"
        # Another process than the broker has it: the broker does not.
        (row,) = listeners.judge_port("mqtt", "127.0.0.1", port, wrong, 1)
        assert row.level == "error"
    assert listeners.bind_error("127.0.0.1", port) == 0


def test_a_port_that_was_looked_at_is_free_for_the_broker():
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    assert listeners.bind_error("127.0.0.1", port) == 0
    with socket.create_server(("127.0.0.1", port)):
        assert listeners.bind_error("127.0.0.1", port) == errno.EADDRINUSE


def test_an_address_of_another_machine_is_an_error():
    wrong = listeners.bind_error("192.0.2.1", 1883)
    (row,) = listeners.judge_port("mqtt", "192.0.2.1", 1883, wrong, None)
    assert (row.level, wrong) == ("error", errno.EADDRNOTAVAIL)
    assert listeners.bind_error("no.such.name.invalid", 1) == errno.EADDRNOTAVAIL


def test_a_port_of_root_is_an_error():
    (row,) = listeners.judge_port("mqtt", "127.0.0.1", 80, errno.EACCES, None)
    assert row.level == "error"
    assert "1023" in row.do


def test_a_listener_for_other_machines_without_tls_or_logins_is_a_warning():
    both = listeners.judge_exposure("mqtt", "0.0.0.0", "always", has_tls=False)
    assert levels(both) == {("warning", "security")}
    assert len(both) == 2
    assert len(listeners.judge_exposure("mqtt", "0.0.0.0", "loopback", has_tls=False)) == 1
    assert not listeners.judge_exposure("mqtt_tls", "0.0.0.0", "loopback", has_tls=True)
    assert not listeners.judge_exposure("mqtt", "127.0.0.1", "always", has_tls=False)


def test_a_name_that_kafka_clients_are_sent_to_and_that_nobody_knows_is_a_warning():
    assert listeners.judge_advertised("kafka", "no.such.name.invalid:9092")[0].level == "warning"
    assert not listeners.judge_advertised("kafka", "localhost:9092")
    assert not listeners.judge_advertised("kafka", "[::1]:9092")
    assert not listeners.judge_advertised("kafka", "")


def test_only_listeners_that_start_are_looked_at():
    config = load(None, {}, ("listeners.amqp.enabled=false",)).config
    assert [name for name, _row in listeners.enabled(config.listeners)] == [
        "admin", "mqtt", "kafka",
    ]  # fmt: skip


def test_the_listener_for_other_nodes_is_looked_at_where_there_are_other_nodes():
    inner = load(None, {}, ("listeners.inner.port=9095",)).config.listeners
    assert "inner" not in dict(listeners.enabled(inner))
    assert "inner" in dict(listeners.enabled(inner, is_clustered=True))
    path = load(None, {}, ("listeners.inner.socket=inner.sock",)).config.listeners
    assert "inner" not in dict(listeners.enabled(path, is_clustered=True))
    assert not listeners.judge_advertised("inner", "unix:/run/onelog/inner.sock")


# -- the broker


def status(health: HealthAnswer, kernel_warning: str = "") -> Status:
    info = ServerInfo(
        version="1", node_id=0, node_name="n", pid=7, python="3", event_loop="x",
        kernel="compiled", data_dir="d", config_file=None, started_ms=0, uptime_s=5.0,
        listeners=(), kernel_warning=kernel_warning,
    )  # fmt: skip
    return Status(info, health, [], False)


def trouble(*, standing: bool) -> TroubleInfo:
    return TroubleInfo(
        kind="audit", place="main/1", error="no", count=1, first_ms=1, last_ms=1, standing=standing
    )


def test_a_broker_that_is_not_ready_is_an_error_and_a_trouble_that_lasts_a_warning():
    fine = HealthAnswer("ok", {"state": "ok"}, [trouble(standing=False)])
    assert levels(broker.judge(status(fine), 7)) == {("ok", "broker")}
    failing = HealthAnswer("failing", {"state": "ok", "partitions": "stopped: main/3"}, [])
    (row,) = broker.judge(status(failing), 7)
    assert row.level == "error"
    assert "main/3" in row.text
    degraded = HealthAnswer("degraded", {"state": "ok"}, [trouble(standing=True)])
    assert levels(broker.judge(status(degraded), 7)) == {("warning", "broker")}


def test_a_broker_without_its_kernel_and_another_broker_on_the_port_are_told():
    fine = HealthAnswer("ok", {"state": "ok"}, [])
    (row,) = broker.judge(status(fine, missing("gone")), 7)
    assert row.level == "warning"
    (row,) = broker.judge(status(fine), 8)
    assert row.level == "error"
    assert "process 7" in row.text


def test_a_broker_that_holds_its_data_and_does_not_answer_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    (row,) = broker.look(AdminListener(port=port), Path("data"), 7)
    assert row.level == "error"
    (row,) = broker.look(AdminListener(port=port, enabled=False), Path("data"), 7)
    assert row.level == "ok"
    (row,) = broker.look(AdminListener(port=port), Path("data"), None)
    assert row.level == "ok"
