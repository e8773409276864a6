"""Is it known who runs a pipeline, how far it is and how it ended, also after a kill?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onelog.base.errors import Conflict, NotFound
from onelog.pipelines import Progress, State, Status, known_pipelines
from onelog.pipelines.attempts import new_status
from onelog.pipelines.failures import is_passing, told
from onelog.pipelines.progress import advance

STATUS = Status(name="p", file="p.toml", master="local[*]", mode="triggered", pid=1, started="now")

HOLDER = """
import signal, sys, time
from pathlib import Path
from onelog.pipelines import State, Status
import os
state = State(Path(sys.argv[1]))
with state.held():
    state.save(Status(name="p", file="f", master="m", mode="continuous", pid=os.getpid(),
                      started="now", phase="running"))
    print("held", flush=True)
    signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that runs the pipeline."""
    program = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n" + HOLDER
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "pipelines" / "p")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_pipeline_runs_once_and_is_stopped_by_name(tmp_path, holder):
    state = State(tmp_path / "pipelines" / "p")
    with pytest.raises(Conflict, match="runs already"), state.held():
        pass
    assert state.status().phase == "running"
    assert state.stop(30.0)
    assert holder.wait(30) == 0
    assert not state.stop(30.0)
    with state.held():
        pass


def test_one_that_was_killed_is_known_as_such(tmp_path, holder):
    holder.kill()
    holder.wait()
    (status,) = known_pipelines(tmp_path)
    assert status.phase == "killed"
    assert not State(tmp_path / "pipelines" / status.name).stop(1.0)


def test_one_that_never_ran_is_not_known(tmp_path):
    with pytest.raises(NotFound, match="'q' has run in this data directory"):
        State(tmp_path / "pipelines" / "q").status()


def test_a_write_that_broke_is_done_again_under_its_number_and_the_next_one_is_new(tmp_path):
    state = State(tmp_path / "pipelines" / "p")
    first = state.next_job("t")
    assert state.next_job("t") == first
    state.job_done("t", first)
    second = state.next_job("t")
    assert (second.query, second.number) == (first.query, first.number + 1)
    assert state.next_job("u").query != first.query


def test_a_token_in_the_address_of_spark_is_not_written_down():
    status = new_status("p", Path("p.toml"), "sc://localhost:1/;token=secret", "triggered")
    assert status.master == "sc://localhost:1/"


def report(batch: int, rows: int, at: str) -> dict:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "timestamp": at,
        "processedRowsPerSecond": rows * 2.0,
        "durationMs": {"triggerExecution": 7},
        "sources": [{"latestOffset": {"t": {"0": 50}}, "endOffset": {"t": {"0": 40}}}],
    }


def test_rows_are_counted_once_however_often_a_report_is_seen():
    reports = [report(0, 5, "t0"), report(1, 6, "t1")]
    known = advance(advance(Progress(), reports), [*reports, report(2, 0, "t2")])
    assert (known.rows, known.batch, known.lag, known.batch_ms) == (11, 2, 10, 7)
    assert known.rows_per_s == 12.0


def test_a_report_by_connect_has_numbers_for_each_source_and_offsets_as_text():
    source = {"latestOffset": '{"t": {"0": 50}}', "endOffset": '{"t": {"0": 40}}'}
    source |= {"numInputRows": 3, "processedRowsPerSecond": 1.5}
    told = {"batchId": 4, "timestamp": "t", "durationMs": {}, "sources": [source, source]}
    known = advance(Progress(), [told])
    assert (known.rows, known.rows_per_s, known.lag) == (6, 3.0, 20)


def test_of_pages_of_java_the_line_that_says_it_is_told():
    text = """[STREAM_FAILED] Query terminated with exception: Job aborted
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "x.py", line 3, in f
onelog.base.errors.TopicNotFound: option subscribe: topic 'x' is not there
\tat org.apache.spark.Foo"""
    assert told(RuntimeError(text)) == "option subscribe: topic 'x' is not there"
    assert told(RuntimeError("a\n  ValueError: no\n\tat java")) == "ValueError: no"
    assert told(RuntimeError("first line\nmore")) == "first line"
    java = "An error occurred while calling o1.start.\n: java.lang.Oh: no\n\tat x.Y"
    assert told(RuntimeError(java)) == "no"
    grpc = '<_InactiveRpcError:\n\tstatus = X\n\tdetails = "Invalid token"\n>'
    assert told(RuntimeError(grpc)) == "Invalid token"


class Wrapped(Exception):
    """As PySpark's: what it came from is beside it."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._cause = cause


@pytest.mark.parametrize(
    ("error", "passes", "line"),
    [
        (Wrapped("Task not serializable", Wrapped("java.lang.IllegalStateException: Illegal size 5"
         " of collection, expected 6")), True, "Task not serializable"),
        (Wrapped("x\nPython worker failed to connect back."), True, "x"),
        (Wrapped("Writing job failed.", Wrapped("org.apache.spark.SparkException: Writing job"
         " failed.", Wrapped("java.io.IOException: Stream closed"))), False,
         "a Python process of Spark died: it was killed, or there was no memory left. What was"
         " committed stays, and the next run goes on behind it"),
        (Wrapped("[A] org.x.Y: no"), False, "[A] org.x.Y: no"),
        (Wrapped("org.x.Y: no"), False, "no"),
    ],
)  # fmt: skip
def test_what_spark_wraps_is_unwrapped(error, passes, line):
    assert is_passing(error) is passes
    assert told(error) == line
