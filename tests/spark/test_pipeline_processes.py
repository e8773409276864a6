"""Do the commands do it as processes: killed, stopped, on a cluster, and as the example?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.kafka_brokers import unique
from tests.spark.pipelines import send
from tests.spark.processes import DEADLINE_S, Cluster, Pipelines, asked, done
from tests.spark.topics import make_topic
from tests.support.kafka_txn_clients import read

pytestmark = pytest.mark.spark_slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "iot-pipeline"
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


@pytest.fixture
def pipelines(tmp_path, broker) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path, broker)
    yield made
    made.close()


def test_one_that_is_killed_goes_on_exactly_and_one_that_is_told_ends_in_order(
    broker, tmp_path, pipelines
):
    source, sink = make_topic(broker, unique("in")), unique("out")
    file = tmp_path / "copy.toml"
    file.write_text(COPY.format(name="copy", source=source, sink=sink))
    values = [f"v{n}" for n in range(2000)]
    send(broker, source, *values[:1000])
    killed = pipelines.run(file)
    killed.wait_for(50)
    killed.kill()
    name = ("copy", *pipelines.where)
    assert json.loads(asked("pipeline", "status", "--json", *name))["phase"] == "killed"
    send(broker, source, *values[1000:])
    asked("pipeline", "run", str(file), "--once", *pipelines.where)
    assert sorted(read(broker.port, sink)) == sorted(values)
    send(broker, source, "last")
    going = pipelines.run(file)
    going.wait_for(1)
    assert "running" in asked("pipeline", "list", *pipelines.where)
    refused = done("pipeline", "run", str(file), *pipelines.where)
    assert refused.returncode == 1
    assert "runs already" in refused.stderr
    assert "stopped" in asked("pipeline", "stop", *name)
    assert going.end() == 0
    assert "does not run" in asked("pipeline", "stop", *name)
    assert sorted(read(broker.port, sink)) == sorted([*values, "last"])


def test_sql_prints_json_and_writes_parquet(broker, tmp_path, pipelines):
    topic = make_topic(broker, unique("asked"))
    send(broker, topic, {"n": 1}, {"n": 2})
    query = f"SELECT value.n AS n FROM topic('{topic}', decode => 'json') ORDER BY n"
    assert asked("sql", query, "--output", "json", *pipelines.where) == '{"n":1}\n{"n":2}\n'
    made = tmp_path / "made"
    asked("sql", query, "--output", "parquet", "--file", str(made), *pipelines.where)
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
