"""A reader after a start does not wait for the lake process to begin, or for its libraries."""

from __future__ import annotations

import subprocess
import sys
import threading

import msgspec
import pytest

from onelog.base.ids import Offset
from onelog.kernel import scan_batches
from onelog.lake.jobs import Ask, BringJob, PingJob
from onelog.lake.process_link import LakeProcess
from tests.batches import append, make_batch
from tests.support.lake_jobs import LakeClient, lake_process, place_of
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.tiers import KEY, Owner

WAIT_S = 60.0
BRING = """
import sys
from onelog.lake.jobs import LakeSettings, ask_decoder
from onelog.lake.process import LakeJobs

url, folder = sys.argv[1:]
ask = ask_decoder.decode(sys.stdin.buffer.read())
answer = LakeJobs(LakeSettings(url=url, folder=folder)).do(ask)
assert not answer.error, answer
heavy = {"pyiceberg", "deltalake", "sqlalchemy", "pandas", "pyarrow.dataset"} & set(sys.modules)
assert not heavy, heavy
"""


def test_rows_become_batches_without_a_library_of_tables(tmp_path):
    """They take a second of a core to import, and a reader waits."""
    process = lake_process(tmp_path)
    data = b"".join(make_batch(number * 10, 10, size=200) for number in range(20))
    row = LakeClient(process, place_of(tmp_path, "delta"), tmp_path).convert(data)
    process.close()
    out = tmp_path / "run"
    job = BringJob(row=row, offset=0, size_bytes=1 << 20, path=str(out))
    subprocess.run(
        [sys.executable, "-c", BRING, f"file://{tmp_path}/store", str(tmp_path / "other")],
        input=msgspec.msgpack.encode(Ask(1, job)), check=True, timeout=WAIT_S,
    )  # fmt: skip
    assert [info.base_offset for info in scan_batches(out.read_bytes())] == list(range(0, 200, 10))


@pytest.fixture
def greeted(monkeypatch) -> threading.Event:
    """Whether the process was asked for, without a job of a reader or of a table."""
    event, ask = threading.Event(), LakeProcess.ask

    def asked(process, job, deadline_s):
        if isinstance(job, PingJob):
            event.set()
        return ask(process, job, deadline_s)

    monkeypatch.setattr(LakeProcess, "ask", asked)
    return event


def test_the_process_begins_when_a_partition_is_opened_that_has_rows(tmp_path, greeted):
    site = LakeSite(tmp_path, "delta")
    log = site.engine().open(KEY, table_settings(site.format))
    append(log, make_batch(0, 10, size=400))
    log.roll()
    log.sync()
    assert log.tier.upload(log.end_offset, Owner()) is not None
    log.tier.trim_local(Offset(10))
    assert not greeted.is_set(), "nothing was there to be read"
    site.close()
    engine = site.engine()
    engine.open(KEY, table_settings(site.format))
    assert greeted.wait(WAIT_S)
    site.close()
