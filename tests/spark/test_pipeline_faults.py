"""Is every row in every target once, whatever dies while a pipeline runs?"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from onelog.pipelines import Workspace, load_pipeline
from onelog.pipelines.options import target_options
from tests.conformance.kafka_brokers import KafkaOnelog
from tests.spark.pipelines import send, table_rows
from tests.spark.processes import LOOK_S, Pipelines, Running, below, kill_all
from tests.spark.topics import make_topic, servers
from tests.support.kafka_txn_clients import read

pytestmark = [
    pytest.mark.spark_slow,
    pytest.mark.skipif(
        pyspark.__version__.startswith("4.1."), reason="PySpark 4.1 has no limits for sources"
    ),
]

SOURCE, SINK = "in", "out"
COPY = f"""
name = "copy"
[sources.rows]
topics = ["{SOURCE}"]
decode = "string"
rows_per_trigger = 50
[sources.rows.options]
timeoutMs = 120000
[transforms.copied]
sql = "SELECT value FROM rows"
[targets.topic]
from = "copied"
topic = "{SINK}"
[targets.iceberg]
from = "copied"
iceberg = "db.copy"
[targets.delta]
from = "copied"
delta = "copy"
"""


class Copy:
    """A pipeline from one topic into every kind of target."""

    def __init__(self, folder: Path, broker: KafkaOnelog) -> None:
        self._broker = broker
        self._file = folder / "copy.toml"
        self._file.write_text(COPY)
        self._pipelines = Pipelines(folder, broker)
        self._place = Workspace(folder / "data", servers(broker), folder)
        self._sent = 0
        make_topic(broker, SOURCE)

    def send(self, count: int) -> None:
        send(self._broker, SOURCE, *(f"v{self._sent + at}" for at in range(count)))
        self._sent += count

    def run(self, *more: str) -> Running:
        return self._pipelines.run(self._file, *more)

    def finish(self) -> None:
        """What is left, by a run that ends by itself."""
        last = self.run("--once")
        assert last.end() == 0, last.said()

    def check(self) -> None:
        """Rows = distinct = expected."""
        expected = sorted(f"v{at}" for at in range(self._sent))
        assert sorted(read(self._broker.port, SINK)) == expected
        pipeline = load_pipeline(self._file)
        for name in ("iceberg", "delta"):
            rows = table_rows(target_options(pipeline, name, self._place)[1])
            assert sorted(row["value"] for row in rows) == expected, name

    def close(self) -> None:
        self._pipelines.close()


@pytest.fixture
def copy(tmp_path, own_broker) -> Iterator[Copy]:
    made = Copy(tmp_path, own_broker)
    yield made
    made.close()


def test_a_broker_that_is_restarted_and_killed_while_batches_run(copy, own_broker):
    copy.send(300)
    going = copy.run()
    for number, expected in ((signal.SIGTERM, 60), (signal.SIGKILL, 360), (signal.SIGKILL, 660)):
        going.wait_for(expected)
        own_broker.stop(number)
        own_broker.start()
        copy.send(300)
    going.wait_for(1200)
    going.stop()
    copy.check()


def test_python_processes_that_are_killed_are_told_and_the_next_run_goes_on(copy):
    """`local[2]` tries a task once: the run ends with a line that says so."""
    copy.send(600)
    for _ in range(2):
        going = copy.run("--master", "local[2]")
        going.wait_for(20)
        workers = [
            pid for pid, line in below(going.process.pid).items() if "pyspark.daemon" in line
        ]
        assert workers
        kill_all(workers)
        assert going.end() == 1, going.said()
        (told,) = [line for line in going.said().splitlines() if line.startswith("onelog: ")]
        assert re.fullmatch(r"onelog: targets\.\w+: a Python process of Spark died: .*", told)
    copy.finish()
    copy.check()


def test_drivers_that_are_killed_at_any_moment(copy):
    """A JVM outlives its driver for a moment: two may write at once."""
    moments = random.Random(os.environ.get("ONELOG_SEED"))
    copy.send(500)
    for _ in range(3):
        going = copy.run()
        going.wait_for(1)
        time.sleep(3 * moments.random())  # the moment of the kill is the input
        going.kill()
        copy.send(50)
    copy.finish()
    copy.check()


def test_executors_and_a_worker_of_a_cluster_that_are_killed(copy, cluster):
    copy.send(300)
    going = copy.run("--master", cluster.master)
    going.wait_for(20)
    first = cluster.executors()
    assert len(first) == 2
    kill_all(first[:1])
    copy.send(300)
    going.wait_for(340)
    while len(cluster.executors()) < 2:
        assert going.process.poll() is None, going.said()
        time.sleep(LOOK_S)
    cluster.kill_worker()
    copy.send(300)
    going.wait_for(900)
    going.stop()
    copy.check()
