"""Real etcd for tests: one member or three, with short elections, that can be stopped and killed.

Debian's `etcd-server` has it; ETCD names another binary. Without either, tests that need one are
skipped with words.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import msgspec
import pytest

from tests.support.ports import free_ports

START_S = 20.0
HEARTBEAT_MS, ELECTION_MS = 50, 500
"""Leases of one second are possible with these."""


def find_etcd() -> str | None:
    return os.environ.get("ETCD") or shutil.which("etcd", path=f"{os.environ['PATH']}:/usr/sbin")


needs_etcd = pytest.mark.skipif(
    find_etcd() is None, reason="etcd is not here: `apt-get install etcd-server`"
)


def _end_with_parent() -> None:
    """A run of tests that is killed leaves nothing behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class EtcdMember:
    """One process of etcd."""

    def __init__(self, name: str, folder: Path, client: int, peer: int) -> None:
        self.name, self.folder = name, folder
        self.peer = peer
        self.port = client
        self.scheme = "http"
        self.extra: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self, initial: str) -> None:
        binary = find_etcd()
        assert binary is not None
        peer = f"http://127.0.0.1:{self.peer}"
        command = [
            *(binary, "--name", self.name, "--data-dir", str(self.folder / self.name)),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", initial, "--logger", "zap"),
            *("--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS)),
            *self.extra,
        ]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it takes no lock
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def is_leader(self) -> bool:
        status = self.ask("/v3/maintenance/status", {})
        return status.get("leader") == status["header"]["member_id"]

    def ask(self, path: str, request: object, timeout: float = 10.0) -> dict:
        body = msgspec.json.encode(request)
        call = urllib.request.Request(f"{self.url}{path}", body, method="POST")
        with urllib.request.urlopen(call, timeout=timeout) as answer:
            return msgspec.json.decode(answer.read())


class EtcdCluster:
    """One member or several."""

    def __init__(self, folder: Path, members: int = 1, extra: tuple[str, ...] = ()) -> None:
        ports = free_ports(2 * members)
        self.members = [
            EtcdMember(f"m{number}", folder, ports[2 * number], ports[2 * number + 1])
            for number in range(members)
        ]
        for member in self.members:
            member.extra += extra

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    @property
    def initial(self) -> str:
        return ",".join(f"{row.name}=http://127.0.0.1:{row.peer}" for row in self.members)

    def start(self) -> EtcdCluster:
        for member in self.members:
            member.start(self.initial)
        self.wait()
        return self

    def wait(self) -> None:
        """Until every member that runs has a leader."""
        end = time.monotonic() + START_S
        for member in self.members:
            while member.process is not None:
                with contextlib.suppress(OSError):
                    if int(member.ask("/v3/maintenance/status", {}).get("leader", 0)):
                        break
                if member.process.poll() is not None or time.monotonic() > end:
                    log = (member.folder / f"{member.name}.log").read_text()[-2000:]
                    if "address already in use" not in log or time.monotonic() > end:
                        raise AssertionError(f"etcd does not start:\n{log}")
                    member.start(self.initial)  # some client's end took the port while it was away
                time.sleep(0.05)

    def add_learner(self) -> EtcdMember:
        """One more member, which takes no part in decisions and answers almost nothing."""
        client, peer = free_ports(2)
        first = self.members[0]
        learner = EtcdMember("learner", first.folder, client, peer)
        urls = [f"http://127.0.0.1:{peer}"]
        first.ask("/v3/cluster/member/add", {"peerURLs": urls, "isLearner": True})
        self.members.append(learner)
        learner.extra = ["--initial-cluster-state", "existing"]
        learner.start(self.initial)
        self.wait()
        return learner

    def leader(self) -> EtcdMember:
        return next(row for row in self.members if row.process is not None and row.is_leader())

    def restart(self, member: EtcdMember) -> None:
        member.start(self.initial)

    def close(self) -> None:
        for member in self.members:
            member.kill()
