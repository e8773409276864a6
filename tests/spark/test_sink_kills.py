"""Drivers, executors, workers and brokers die by kill -9: rows = distinct = expected, each time."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.conformance.kafka_brokers import KafkaOnelog
from tests.conformance.mqtt_brokers import environment
from tests.spark.topics import append, make_topic, rows, servers
from tests.support.kafka_txn_clients import read
from tests.support.kafka_txn_talk import Talk

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
EXECUTORS = Path(pyspark.__file__).parent / "work"
"""Where Spark's local cluster leaves what its executors say."""
DEADLINE_S = 300.0
ROWS = 1000
SOURCE, TARGET = "from", "to"

pytestmark = [
    pytest.mark.spark_slow,
    pytest.mark.skipif(
        pyspark.__version__.startswith("4.1."), reason="PySpark 4.1 has no limits for sources"
    ),
]


class Job:
    """A driver in a process group of its own, which is started again when it died."""

    def __init__(self, broker: KafkaOnelog, folder: Path) -> None:
        self._broker, self._folder = broker, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.faults = folder / "faults"
        self.faults.mkdir()
        make_topic(broker, SOURCE)
        for number in range(2):
            values = [str(at) for at in range(number, ROWS, 2)]
            for first in range(0, len(values), 100):
                append(broker, SOURCE, number, rows(*values[first : first + 100]))

    def start(self, master: str) -> None:
        arguments = [master, servers(self._broker), SOURCE, TARGET, str(self._folder)]
        with (self._folder / "job").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink_job", *arguments],
                cwd=ROOT,
                env=environment() | {"PYTHONPATH": PATH},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def wait(self) -> int:
        """How it ended; nothing of it is left."""
        assert self._process is not None
        try:
            return self._process.wait(DEADLINE_S)
        finally:
            self.kill()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_for_batch(self) -> None:
        """Until it has done one more, or all."""
        before, deadline = self._batches(), time.monotonic() + DEADLINE_S
        while self.is_running() and self._batches() == before:
            assert time.monotonic() < deadline, (self._folder / "job").read_text()[-3000:]
            time.sleep(0.05)

    def _batches(self) -> int:
        return len(list((self._folder / "checkpoint" / "commits").glob("[0-9]*")))

    def kill(self) -> None:
        """The driver, its JVM and their workers, as a machine that goes away."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def check(self) -> None:
        found = sorted(map(int, read(self._broker.port, TARGET)))
        assert found == list(range(ROWS))
        with Talk(self._broker.port) as talk:
            answer = talk.wire.ask(66, 0, state_filters=[], producer_id_filters=[])
        names = [row.transactional_id for row in answer.transaction_states]
        assert [name for name in names if name.startswith("~link/")] == [], "an orphan is left"


@pytest.fixture
def job(own_broker: KafkaOnelog, tmp_path: Path) -> Iterator[Job]:
    made = Job(own_broker, tmp_path)
    yield made
    made.kill()
    shutil.rmtree(EXECUTORS, ignore_errors=True)


@pytest.mark.parametrize(
    ("master", "fault"),
    [
        ("local[2,4]", "task-fails"),
        ("local[2,4]", "worker-dies"),
        ("local-cluster[2,1,1024]", "executor-dies"),
    ],
)
def test_what_spark_tries_again_itself_is_there_once(job: Job, master: str, fault: str):
    (job.faults / fault).touch()
    job.start(master)
    assert job.wait() == 0, (job.faults.parent / "job").read_text()[-3000:]
    assert not list(job.faults.iterdir()), "the fault did not come"
    job.check()


@pytest.mark.parametrize("fault", ["driver-dies-before-commit", "driver-dies-after-commit"])
def test_a_driver_that_dies_around_its_commit_goes_on_exactly(job: Job, fault: str):
    (job.faults / fault).touch()
    job.start("local[2]")
    assert job.wait() != 0
    assert not list(job.faults.iterdir()), "the fault did not come"
    job.start("local[2]")
    assert job.wait() == 0, (job.faults.parent / "job").read_text()[-3000:]
    job.check()


def test_a_broker_that_dies_in_the_middle_of_batches(job: Job, own_broker: KafkaOnelog):
    job.start("local[2]")
    moments = random.Random(os.environ.get("ONELOG_SEED"))
    for _ in range(3):
        job.wait_for_batch()
        assert job.is_running(), (job.faults.parent / "job").read_text()[-3000:]
        time.sleep(0.3 * moments.random())  # the moment of the kill is the input
        own_broker.kill()
        own_broker.start()
    assert job.wait() == 0, (job.faults.parent / "job").read_text()[-3000:]
    job.check()


def test_drivers_that_are_killed_at_any_moment(job: Job):
    moments = random.Random(os.environ.get("ONELOG_SEED"))
    for _ in range(3):
        job.start("local[2]")
        job.wait_for_batch()
        time.sleep(moments.random())  # the moment of the kill is the input
        job.kill()
    job.start("local[2]")
    assert job.wait() == 0, (job.faults.parent / "job").read_text()[-3000:]
    job.check()
