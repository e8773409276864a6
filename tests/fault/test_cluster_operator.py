"""Does `onelog cluster` say what is wrong with three real nodes, and mend it?"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.ports import free_ports

pytestmark = [needs_etcd, pytest.mark.fault]

WAIT_S = 60.0


class Machines:
    """Three nodes, each a process."""

    def __init__(self, folder: Path, etcd: EtcdCluster) -> None:
        self._folder = folder
        self._admin = dict(zip((1, 2, 3), free_ports(3), strict=True))
        self._keys = (
            'cluster.mode="etcd"',
            f'cluster.etcd.endpoints=["{etcd.urls[0]}"]',
            "cluster.node_ttl_ms=2000",
            "cluster.lag_ms=1000",
            "internal.partitions=2",
            *(f"listeners.{name}.port=0" for name in ("mqtt", "kafka", "amqp")),
        )
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *numbers: int) -> None:
        for n in numbers:
            keys = [*self._keys, f"node.id={n}", f"listeners.admin.port={self._admin[n]}"]
            chosen = [word for key in keys for word in ("--set", key)]
            data = self._folder / f"n{n}"
            words = [sys.executable, "-m", "onelog", "serve", "--data", str(data), *chosen]
            with (self._folder / f"n{n}.log").open("ab") as log:
                self._running[n] = subprocess.Popen(words, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WAIT_S)
            process.kill()
            process.wait()

    def onelog(self, *words: str, at: int = 1) -> tuple[int, str]:
        """A command, its code, and what it prints."""
        url = f"http://127.0.0.1:{self._admin[at]}"
        done = subprocess.run(
            [sys.executable, "-m", "onelog", "cluster", *words, "--url", url],
            capture_output=True, text=True, timeout=2 * WAIT_S, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def partition(self, name: str) -> dict[str, Any]:
        code, text = self.onelog("partitions", "--filter", name, "--json")
        assert code == 0, text
        return next(row for row in json.loads(text)["items"] if row["name"] == name)

    def until(self, name: str, holds) -> None:
        end = time.monotonic() + WAIT_S
        while not holds(found := self.partition(name)):
            assert time.monotonic() < end, found
            time.sleep(0.2)

    def read(self, path: str, at: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admin[at]}{path}") as answer:
            return answer.read().decode()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    etcd = EtcdCluster(tmp_path)
    with contextlib.ExitStack() as closing:
        closing.callback(etcd.close)
        made = Machines(tmp_path, etcd.start())
        closing.callback(made.stop)
        yield made


def test_an_operator_moves_loses_and_recovers_a_partition(machines: Machines) -> None:
    machines.start(1, 2, 3)
    code, text = machines.onelog("wait-healthy", "--timeout", str(WAIT_S))
    assert code == 0, text
    assert "healthy: 3 nodes" in text
    assert machines.onelog("reassign", "main/0", "--to", "2,3")[0] == 0
    machines.until("main/0", lambda row: row["replicas"] == row["isr"] == [2, 3])

    machines.kill(3)
    machines.until("main/0", lambda row: row["isr"] == [2] and row["leader"] == 2)
    code, text = machines.onelog("status")
    assert code == 0
    assert text.splitlines()[0].startswith("summary"), text
    assert "under-replicated (start node 3)" in text.splitlines()[0]
    code, text = machines.onelog("wait-healthy", "--timeout", "0.5")
    assert code == 1
    assert "start node 3" in text

    # Node 2 alone has the last records, and goes.
    machines.kill(2)
    machines.start(3)
    machines.until("main/0", lambda row: row["state"] == "offline")
    end = time.monotonic() + WAIT_S
    while (found := machines.onelog("recover", "main/0", "--from", "3", "--accept-loss"))[0]:
        assert "not registered" in found[1], found  # it is starting
        assert time.monotonic() < end
    machines.until("main/0", lambda row: row["leader"] == 3)
    assert machines.onelog("recover", "main/0", "--from", "3", "--accept-loss")[0] == 1
    while "onelog_cluster_recoveries_total 1.0" not in machines.read("/metrics", 3):
        assert time.monotonic() < end
        time.sleep(0.2)

    machines.start(2)
    code, text = machines.onelog("wait-healthy", "--timeout", str(WAIT_S))
    assert code == 0, text
    assert machines.onelog("remove", "3")[0] == 1
    code, text = machines.onelog("join")
    assert code == 0
    assert "id = 4" in text
