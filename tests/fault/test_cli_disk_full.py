"""What does `onelog pub` say when the disk of the broker is full? A line, soon, and exit code 1."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onelog.base import faults
from tests.conformance import mqtt_brokers
from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog, environment, onelog

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A server whose disk has no more room."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mqtt_brokers, "onelog", _onelog_on_a_full_disk)
        server = Onelog(tmp_path_factory.mktemp("full")).start()
    try:
        pub(server, "kafka", "full/kafka", "there is room", code=0)
        (server.folder / "full").touch()
        yield server
    finally:
        server.stop()


def _onelog_on_a_full_disk(*arguments: str) -> None:
    def fail() -> None:
        if Path("full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    faults.arm("segment.write", fail)
    onelog(*arguments)


def pub(server: Onelog, via: str, *arguments: str, code: int = 1) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "onelog", "pub", *arguments, "--via", via,
         "--port", str(server.ports[via])],
        cwd=server.folder, env=environment(), capture_output=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr.decode()


@pytest.mark.parametrize("via", ["mqtt", "kafka", "amqp"])
def test_who_publishes_to_a_full_disk_is_told_in_one_line_and_in_time(full, via):
    began = time.monotonic()
    said = pub(full, via, f"full/{via}", "hello", "--timeout", "3")
    assert time.monotonic() - began < 20
    assert len(said.splitlines()) == 1
    assert "space" in said or "disk" in said, said


def test_a_publisher_that_sends_much_is_told_why_the_broker_reads_no_more(full, tmp_path):
    file = tmp_path / "large"
    file.write_bytes(bytes(8_000_000))
    said = pub(full, "amqp", "full/topic", "--file", str(file), "--timeout", "3")
    assert "space" in said or "disk" in said, said


def test_a_deadline_of_nothing_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "onelog", "pub", "a", "b", "--timeout", "0"],
        cwd=Path(tmp_path), env=environment(), capture_output=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
