"""`onelog bench`: real brokers of each protocol, a throw-away one, and every kind of trouble."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import trustme

from onelog.base.errors import Timeout
from onelog.cli import failures, run
from onelog.cli.bench import load, targets
from onelog.cli.bench.cases import chosen_cases, cpu_s
from onelog.cli.bench.load import Measured, Pair, drive, stamp, stamps
from tests.support.listening import write_tls_files
from tests.support.served import Served

PROTOCOLS = ("mqtt", "kafka", "amqp")
FIELDS = {"name", "value", "unit", "bar", "holds", "low", "peer", "peer_value"}
PAIRS = ("--pairs", "3")
QUICK = ("--seconds", "0.2", *PAIRS)
each = pytest.mark.parametrize("protocol", PROTOCOLS)


def ran(capsys, *words):
    code = run(["bench", *words], lambda *_given: None)
    said = capsys.readouterr()
    # A broker in a thread of the test logs to the same output.
    out = "".join(line for line in said.out.splitlines(True) if " area=" not in line)
    return code, out, said.err


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("served")) as server:
        yield server


@each
def test_every_case_of_a_running_broker_has_a_rate_and_times(served, capsys, protocol):
    words = (protocol, "--port", str(served.ports[protocol]), *PAIRS, "--json")
    names = [f"{protocol}, {case.name}" for case in chosen_cases(3, "")]
    for seconds in ("0.2", "2", "20"):  # a busy machine may hand nothing out in the first of them
        code, out, err = ran(capsys, *words, "--seconds", seconds)
        assert (code, err) == (failures.EXIT_OK, "")
        rows = json.loads(out)
        assert all(set(row) == FIELDS for row in rows)
        found = {row["name"]: row["value"] for row in rows}
        if all(found[f"{name}: received"] > 0 for name in names):
            break
    for name in names:
        assert found[f"{name}: received"] > 0
        assert 0 < found[f"{name}: p50"] <= found[f"{name}: p90"] <= found[f"{name}: p99"]
        assert 0 < found[f"{name}: generator"] <= 200
        assert found[f"{name}: generator alone"] > found[f"{name}: received"] / 2
        assert f"{name}: broker" not in found  # its process is not ours


def test_the_table_says_how_much_the_generator_took(served, capsys):
    port = str(served.ports["mqtt"])
    words = ("mqtt", "--port", port, *QUICK, "--qos", "0", "--case", "full", "--size", "64")
    code, out, _err = ran(capsys, *words)
    assert code == failures.EXIT_OK
    assert "payloads of 64 B" in out
    assert "1 to 1, full speed" in out
    assert "one at a time" not in out
    assert "how much of a core it used" in out


def test_a_throw_away_broker_is_said_to_be_one_and_leaves_nothing(capsys, tmp_path, monkeypatch):
    started = []
    begin = targets.Server._start

    def start(self, folder):
        started.append((begin(self, folder), folder))
        return started[0][0]

    monkeypatch.setattr(targets.Server, "_start", start)
    monkeypatch.setenv("ONELOG_LISTENERS_AMQP_PORT", "1")  # not for a broker that is thrown away
    words = ("amqp", *QUICK, "--case", "window of 100", "--folder", str(tmp_path))
    code, out, _err = ran(capsys, *words)
    assert code == failures.EXIT_OK
    assert "a throw-away broker (fsync) at 127.0.0.1:" in out
    assert "broker us/msg" in out
    ((process, folder),) = started
    assert folder.parent == tmp_path
    assert process.poll() == 0
    assert not list(tmp_path.iterdir())


def test_a_throw_away_broker_that_cannot_start_is_an_error_and_leaves_nothing(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(targets.sys, "executable", "/bin/false")
    code, _out, err = ran(capsys, "mqtt", *QUICK, "--folder", str(tmp_path))
    assert code == failures.EXIT_FAILED
    assert "did not start" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("mqtt", "--qos", "2"),
        ("mqtt", "--seconds", "0"),
        ("kafka", "--size", "8"),
        ("amqp", "--pairs", "0"),
        ("amqp", "--case", "nothing has this"),
        ("mqtt", "--user", "anna"),
        ("mqtt", "--folder", "/there/is/no/such/folder"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_command_line(capsys, words):
    code, _out, err = ran(capsys, *words)
    assert code == failures.EXIT_USAGE
    assert words[1].strip("-") in err


@each
def test_a_port_where_nobody_listens_is_unreachable(capsys, protocol):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        code, _out, err = ran(capsys, protocol, "--port", str(probe.getsockname()[1]), *QUICK)
    assert code == failures.EXIT_UNREACHABLE
    assert err.count("\n") == 1


@each
def test_a_wrong_password_is_forbidden(served, tmp_path, capsys, protocol):
    (tmp_path / "password").write_text("wrong\n")
    words = ("--user", "anna", "--password-file", str(tmp_path / "password"))
    code, _out, err = ran(capsys, protocol, "--port", str(served.ports[protocol]), *words, *QUICK)
    assert code == failures.EXIT_FORBIDDEN
    assert "anna" in err


@each
def test_tls_is_spoken(tmp_path, capsys, protocol):
    write_tls_files(tmp_path, trustme.CA())
    settings = (
        f"listeners.{protocol}_tls.enabled=true",
        f"listeners.{protocol}_tls.port=0",
        f'listeners.{protocol}_tls.tls.cert_file="{tmp_path}/cert.pem"',
        f'listeners.{protocol}_tls.tls.key_file="{tmp_path}/key.pem"',
    )
    with Served(tmp_path / "data", *settings) as server:
        port = str(server.ports[f"{protocol}_tls"])
        words = ("--port", port, "--tls", "--ca-file", str(tmp_path / "ca.pem"), "--json")
        code, out, err = ran(capsys, protocol, *words, *QUICK, "--case", "full")
    assert code == failures.EXIT_OK, err
    assert all(row["value"] > 0 for row in json.loads(out) if row["unit"] == "msg/s")


def test_a_payload_that_fills_no_frame_of_amqp_is_refused(served, capsys):
    port = str(served.ports["amqp"])
    code, _out, err = ran(capsys, "amqp", "--port", port, "--size", "1000000", *QUICK)
    assert code == failures.EXIT_USAGE
    assert "--size" in err


# -- the load itself


@pytest.mark.parametrize("count", [1, 2, 300])
def test_the_time_of_a_burst_is_found_in_every_message_of_it(count):
    block = bytearray(b"head" + bytes(20)) * count
    stamp(block, 4, 24, 123_456_789_012)
    assert stamps(bytes(block), 4, 24) == Counter({123_456_789_012: count})
    assert bytes(block[:4]) == b"head"


def test_quantiles_are_those_of_messages_not_of_bursts():
    found = Measured(waits=Counter({1_000: 90, 5_000: 9, 80_000: 1}))
    assert [found.quantile_us(share) for share in (0.5, 0.9, 0.99, 1.0)] == [1.0, 1.0, 5.0, 80.0]
    assert Measured().quantile_us(0.5) == 0.0


class Deaf:
    """A pair whose messages never arrive."""

    burst_max = 10
    sample = b""

    def __init__(self):
        self.here, self.there = socket.socketpair()

    def fileno(self):
        return self.here.fileno()

    def room(self):
        return 10

    def encode(self, count, now_ns):
        return b"x" * count

    def send(self, data, count):
        self.there.sendall(b"noise")

    def take(self):
        self.here.recv(100)
        return Counter()

    take_answers = take

    def close(self):
        self.here.close()
        self.there.close()


def test_messages_that_do_not_arrive_are_an_error_and_not_a_rate_of_nothing(monkeypatch):
    monkeypatch.setattr(load, "STALLED_S", 0.2)
    pair = Pair(Deaf(), Deaf(), 5)
    with pytest.raises(Timeout, match="no message arrived"):
        drive([pair], 0.1, 30.0, lambda _at: None)
    assert pair.under_way == 5
    pair.close()


def test_the_cpu_of_a_process_grows_with_its_work():
    before, ends = cpu_s(os.getpid()), time.monotonic() + 0.2
    worker = threading.Thread(target=lambda: sum(range(5_000_000)))
    worker.start()
    while time.monotonic() < ends:
        pass
    worker.join()
    assert cpu_s(os.getpid()) > before


def test_a_folder_in_memory_is_known_as_one(tmp_path):
    if Path("/dev/shm").is_mount():
        assert targets.in_memory(Path("/dev/shm"))
    assert not targets.in_memory(Path("/proc/self"))
