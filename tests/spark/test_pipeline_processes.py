"""Do the commands do it as processes: killed, stopped, on a cluster, and as the example?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from pyspark import __file__ as pyspark_file

from onelog.spark import java_home
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.spark.pipelines import send
from tests.spark.topics import make_topic, servers
from tests.support.kafka_txn_clients import read

pytestmark = pytest.mark.spark_slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "iot-pipeline"
DEADLINE_S = 400
COPY = """
name = "{name}"
[sources.rows]
topics = ["{source}"]
decode = "string"
rows_per_trigger = 50
[transforms.copied]
sql = "SELECT key, value FROM rows"
[targets.copy]
from = "copied"
topic = "{sink}"
"""


def onelog(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "onelog", *arguments]


def asked(*arguments: str) -> str:
    done = subprocess.run(
        onelog(*arguments), capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Pipelines:
    """The command on one data directory and one broker."""

    def __init__(self, folder: Path, broker: KafkaOnelog) -> None:
        self.folder = folder
        self.where = ["--data", str(folder / "data"), "--servers", servers(broker)]

    def start(self, file: Path) -> subprocess.Popen[str]:
        """Run it until it has done some rows."""
        process = subprocess.Popen(
            onelog("pipeline", "run", str(file), *self.where), stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if re.match(r"copy: batch \d+, [1-9]\d* rows", line):
                return process
        raise AssertionError("".join(said))


def test_one_that_is_killed_goes_on_exactly_and_one_that_is_told_ends_in_order(broker, tmp_path):
    source, sink = make_topic(broker, unique("in")), unique("out")
    file = tmp_path / "copy.toml"
    file.write_text(COPY.format(name="copy", source=source, sink=sink))
    pipelines = Pipelines(tmp_path, broker)
    values = [f"v{n}" for n in range(2000)]
    send(broker, source, *values[:1000])
    killed = pipelines.start(file)
    killed.kill()
    killed.communicate()
    name = ("copy", *pipelines.where)
    assert json.loads(asked("pipeline", "status", "--json", *name))["phase"] == "killed"
    send(broker, source, *values[1000:])
    asked("pipeline", "run", str(file), "--once", *pipelines.where)
    assert sorted(read(broker.port, sink)) == sorted(values)
    send(broker, source, "last")
    going = pipelines.start(file)
    assert "running" in asked("pipeline", "list", *pipelines.where)
    refused = subprocess.run(
        onelog("pipeline", "run", str(file), *pipelines.where),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert refused.returncode == 1
    assert "runs already" in refused.stderr
    assert "stopped" in asked("pipeline", "stop", *name)
    going.communicate()
    assert going.returncode == 0
    assert "does not run" in asked("pipeline", "stop", *name)
    assert sorted(read(broker.port, sink)) == sorted([*values, "last"])


def test_sql_prints_json_and_writes_parquet(broker, tmp_path):
    topic = make_topic(broker, unique("asked"))
    send(broker, topic, {"n": 1}, {"n": 2})
    where = Pipelines(tmp_path, broker).where
    query = f"SELECT value.n AS n FROM topic('{topic}', decode => 'json') ORDER BY n"
    assert asked("sql", query, "--output", "json", *where) == '{"n":1}\n{"n":2}\n'
    made = tmp_path / "made"
    asked("sql", query, "--output", "parquet", "--file", str(made), *where)
    assert list(made.glob("*.parquet"))


# -- the example


def run_example(folder: Path, master: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), str(folder), "--master", master],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_example(said: str, folder: Path) -> None:
    assert "devices sent 605 readings" in said
    counts = re.findall(r"has (\d+) windows, (\d+) of them|read (\d+) alerts", said)
    (windows, wanted, _), *read_back = counts
    assert int(windows) == 5 * 12
    assert int(wanted) == 3
    assert [one[2] for one in read_back] == [wanted, wanted]
    assert said.count("kitchen: spike") == 2  # one window of heat, read by both
    assert (folder / "windows.svg").read_text().count('<circle cx="') == int(wanted) + 1


def test_the_example_runs_by_one_command(tmp_path):
    check_example(run_example(tmp_path, "local[2]"), tmp_path)


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

    def stop(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, 15)
            process.wait(60)
        for rest in self._rests:
            rest.join(60)


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made.start(2)
    finally:
        made.stop()


def test_the_example_runs_unchanged_on_a_cluster_of_two_workers(cluster, tmp_path):
    folder = tmp_path / "iot"
    check_example(run_example(folder, cluster.master), folder)
    used = {file.parts[-3] for file in tmp_path.glob("worker*/app-*/*")}
    assert used == {"worker0", "worker1"}
