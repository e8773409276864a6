"""The real `onelog serve` as a user meets it: a process, a port, signals, exit codes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DEADLINE_S = 60.0
SOURCES = Path(__file__).resolve().parents[2] / "src"


class Served:
    """A running server and what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], printed: str) -> None:
        self.process = process
        self.printed = printed
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", printed)
        assert found, printed
        self.port = int(found.group(1))

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def environment() -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("ONELOG_")}
    keep = {name: os.environ[name] for name in ("ONELOG_PURE",) if name in os.environ}
    paths = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
    free = {f"ONELOG_LISTENERS_{name}_PORT": "0" for name in ("MQTT", "MQTT_WS", "KAFKA", "AMQP")}
    return clean | keep | free | {"PYTHONPATH": paths}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "onelog", *arguments]


def run_onelog(cwd: Path, *arguments: str, env: dict[str, str] | None = None):
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment() | (env or {}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@contextlib.contextmanager
def serving(cwd: Path, *arguments: str) -> Iterator[Served]:
    with (cwd / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command("serve", "--set", "listeners.admin.port=0", *arguments),
            cwd=cwd,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield Served(process, read_until(process, b"kernel"))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()


def read_until(process: subprocess.Popen[bytes], word: bytes) -> str:
    """What the process printed up to `word`; it must come before the deadline."""
    assert process.stdout is not None
    deadline = time.monotonic() + DEADLINE_S
    printed = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while word not in printed:
            assert selector.select(deadline - time.monotonic()), f"too late: {printed!r}"
            chunk = os.read(process.stdout.fileno(), 65536)
            assert chunk, f"ended with {process.wait(DEADLINE_S)} after printing {printed!r}"
            printed += chunk
    return printed.decode()


def test_serve_prints_what_listens_where_answers_probes_and_stops_cleanly(tmp_path):
    with serving(tmp_path) as server:
        assert str(tmp_path / "data") in server.printed
        assert server.get("/health/live") == (200, b'{"status":"ok","checks":{}}')
        status, body = server.get("/health/ready")
        assert status == 200, body
        status, text = server.get("/metrics")
        assert status == 200
        assert b"onelog_build_info{" in text
        info = json.loads(server.get("/api/v1/info")[1])
        assert info["pid"] == server.process.pid
        assert (tmp_path / "data" / "lock").read_text().strip() == str(server.process.pid)
        assert server.stop() == 0
        with pytest.raises(ConnectionRefusedError):
            server.get("/health/live")


def test_ctrl_c_stops_as_cleanly_as_sigterm(tmp_path):
    with serving(tmp_path) as server:
        assert server.stop(signal.SIGINT) == 0


def test_the_built_in_stream_is_shown_by_the_api_and_by_status(tmp_path):
    with serving(tmp_path) as server:
        status, body = server.get("/api/v1/streams/main")
        assert status == 200, body
        main = json.loads(body)["stream"]
        assert (main["captures"], main["partitions"]) == (["#"], 8)
        page = json.loads(server.get("/api/v1/streams/main/partitions")[1])
        assert [item["partition"] for item in page["items"]] == list(range(8))
        assert {item["state"] for item in page["items"]} == {"running"}
        assert json.loads(server.get("/api/v1/cursors")[1])["next_cursor"] is None
        assert server.get("/api/v1/streams/missing")[0] == 404
        shown = run_onelog(tmp_path, "status", "--set", f"listeners.admin.port={server.port}")
        assert shown.returncode == 0, shown.stderr
        assert re.search(r"main +8 ", shown.stdout)
        assert server.stop() == 0


def test_a_restart_on_the_same_directory_is_ready_again(tmp_path):
    for _ in range(2):
        with serving(tmp_path) as server:
            assert server.get("/health/ready")[0] == 200
            assert server.stop() == 0


def test_after_kill_9_the_directory_is_free_and_opens_again(tmp_path):
    """The lock dies with its process, whatever the lock file says."""
    with serving(tmp_path) as server:
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with serving(tmp_path) as server:
        assert server.get("/health/ready")[0] == 200
        assert server.stop() == 0


def test_a_second_server_on_the_same_directory_is_refused_with_the_first_ones_pid(tmp_path):
    with serving(tmp_path) as server:
        second = run_onelog(tmp_path, "serve", "--set", "listeners.admin.port=0")
        assert second.returncode == 1
        assert f"in use by OneLog process {server.process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        assert server.get("/health/ready")[0] == 200


def test_a_taken_port_is_one_clear_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_onelog(tmp_path, "serve", "--set", f"listeners.admin.port={port}")
    assert result.returncode == 1
    assert f"port {port} is taken" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_unknown_key_in_the_file_names_the_file_the_key_and_the_nearest_one(tmp_path):
    (tmp_path / "onelog.toml").write_text("[listeners.admin]\nprot = 1\n")
    result = run_onelog(tmp_path, "serve")
    assert result.returncode == 2
    assert result.stderr.strip() == (
        "onelog: onelog.toml:2: unknown key listeners.admin.prot"
        " (did you mean listeners.admin.port?)"
    )


def test_the_admin_listener_off_loopback_is_refused_at_start(tmp_path):
    result = run_onelog(tmp_path, "serve", env={"ONELOG_LISTENERS_ADMIN_HOST": "0.0.0.0"})
    assert result.returncode == 2
    assert "listeners.admin.tls.cert_file" in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    result = run_onelog(tmp_path, "serve", "--data", "file/below")
    assert result.returncode == 2
    assert "data_dir" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_without_admin_listener_the_server_runs_and_stops(tmp_path):
    process = subprocess.Popen(
        command("serve", "--set", "listeners.admin.enabled=false"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            printed = read_until(process, b"kernel")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    assert "http://" not in printed
    assert re.search(r"mqtt +mqtt://127\.0\.0\.1:\d+ *\n", printed)
    assert "ws://" not in printed
