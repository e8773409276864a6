"""Pipelines and clusters of Spark as processes, to be watched, stopped and killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from pyspark import __file__ as pyspark_file

from onelog.base.errors import NotFound
from onelog.pipelines import State
from onelog.spark import java_home
from tests.conformance.kafka_brokers import KafkaOnelog
from tests.spark.topics import servers

DEADLINE_S = 400
LOOK_S = 0.1
"""How often a test looks at what other processes do."""


def onelog(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "onelog", *arguments]


def done(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that was run to its end."""
    return subprocess.run(
        onelog(*arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )


def asked(*arguments: str) -> str:
    """What a command prints that has to go well."""
    found = done(*arguments)
    assert found.returncode == 0, found.stderr
    return found.stdout


def below(*roots: int) -> dict[int, str]:
    """The processes that these ones started, and theirs, with their command lines."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(stat[1])
    found: dict[int, str] = {}
    for pid in sorted(parents):
        above = parents[pid]
        while above in parents and above not in roots:
            above = parents[above]
        if above in roots:
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# -- pipelines


class Running:
    """A pipeline that runs."""

    def __init__(self, process: subprocess.Popen[bytes], state: State, said: Path) -> None:
        self.process = process
        self._state = state
        self._said = said

    def wait_for(self, rows: int) -> None:
        """Until every target has read so many rows since it began."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < deadline, self.said()
            assert self.process.poll() is None, self.said()
            with contextlib.suppress(NotFound):  # it has not begun yet
                status = self._state.status()
                targets = status.targets.values() if status.pid == self.process.pid else ()
                if targets and all(one.rows >= rows for one in targets):
                    return
            time.sleep(LOOK_S)

    def said(self) -> str:
        """What it told so far, and the end of what Spark did."""
        log = self._state.log.read_text() if self._state.log.exists() else ""
        return self._said.read_text() + log[-3000:]

    def end(self) -> int:
        """How it ended by itself."""
        return self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        """End it in order."""
        self.process.send_signal(signal.SIGTERM)
        assert self.end() == 0, self.said()

    def kill(self) -> None:
        """The driver; its JVM lives until it notices."""
        self.process.kill()
        self.process.wait()


class Pipelines:
    """The command on one data directory and one broker."""

    def __init__(self, folder: Path, broker: KafkaOnelog) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.where = ["--data", str(self.data), "--servers", servers(broker)]
        self._runs: list[Running] = []

    def run(self, file: Path, *more: str) -> Running:
        """Start a pipeline that is named as its file."""
        told = self.folder / f"said{len(self._runs)}"
        with told.open("wb") as out:
            process = subprocess.Popen(
                onelog("pipeline", "run", str(file), *self.where, *more),
                stdout=out,
                stderr=out,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
            )
        self._runs.append(Running(process, State(self.data / "pipelines" / file.stem), told))
        return self._runs[-1]

    def close(self) -> None:
        """Nothing of a test that failed stays."""
        for run in self._runs:
            if run.process.poll() is None:
                kill_all([*below(run.process.pid), run.process.pid])
                run.process.wait()


# -- clusters


def drain(stream: IO[str]) -> None:
    with stream:
        stream.read()


class Cluster:
    """A master and workers of Spark, as processes on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._rests: list[threading.Thread] = []
        self.master = ""

    def start(self, workers: int) -> Cluster:
        said = self._run(
            "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
            until=lambda line: re.search(r"Starting Spark master at (spark://\S+)", line),
        )  # fmt: skip
        self.master = said[1]
        for number in range(workers):
            self._run(
                "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "1g",
                "-d", str(self._folder / f"worker{number}"), self.master,
                until=lambda line: re.search("Successfully registered with master", line),
            )  # fmt: skip
        return self

    def _run(
        self, name: str, *arguments: str, until: Callable[[str], re.Match[str] | None]
    ) -> re.Match[str]:
        home = Path(pyspark_file).parent
        environment = os.environ | {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._processes.append(process)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            found = until(line)
            if found is not None:
                # Nobody reads on, and a process that cannot write would stand still.
                rest = threading.Thread(target=drain, args=(process.stderr,))
                rest.start()
                self._rests.append(rest)
                return found
        raise AssertionError("".join(said))

    def executors(self) -> list[int]:
        """The JVMs that run tasks now."""
        found = below(*(process.pid for process in self._processes))
        return [pid for pid, command in found.items() if "CoarseGrainedExecutorBackend" in command]

    def kill_worker(self) -> None:
        """The last worker with all that it started, as a machine that goes away."""
        process = self._processes.pop()
        kill_all([process.pid, *below(process.pid)])
        process.wait(60)

    def stop(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
        for rest in self._rests:
            rest.join(60)
