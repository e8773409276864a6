"""Does a broker that dies while it moves segments into a table leave each record once?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.batches import append, make_batch, read_all
from tests.support.lakehouses import LakeSite, adopted, table_settings
from tests.support.tiers import KEY, Owner

DEADLINE_S = 120.0
DIED = 137


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.parametrize(
    ("place", "point"),
    [("disk", "tier.manifest"), ("disk", "tier.local"), ("store", "tier.manifest"),
     ("store", "tier.local"), ("store", "chain.put")],
)  # fmt: skip
@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_each_record_is_a_row_once_and_the_lake_process_ends(tmp_path, table_format, place, point):
    """A broker without a disk goes on with another directory."""
    words = [str(tmp_path), table_format, point, place]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.lakehouse_child", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == DIED, done.stderr.decode()
    ends = time.monotonic() + DEADLINE_S
    while not gone(int(done.stdout)):
        assert time.monotonic() < ends
        time.sleep(0.05)
    site = LakeSite(tmp_path, table_format, has_disk=place == "disk")
    try:
        log = site.engine("other" if place == "store" else "data").open(
            KEY, table_settings(table_format)
        )
        if point == "chain.put":  # before the table heard of anything
            log.roll()
            assert log.tier.upload(log.end_offset, Owner()).end == 30
        assert site.offsets() == list(range(30))
        before = read_all(log)
        append(log, make_batch(log.end_offset, 10, size=400))
        log.roll()
        log.sync()
        assert log.tier.upload(log.end_offset, Owner()).end == 40
        assert site.offsets() == list(range(40))
        log.tier.trim_local(log.end_offset)
        assert read_all(log)[: len(before)] == before
    finally:
        site.close()


@pytest.mark.parametrize("point", ["tier.manifest", "tier.local"])
@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_broker_that_dies_while_it_takes_rewritten_rows_over_leaves_each_once(
    tmp_path, table_format, point
):
    site = LakeSite(tmp_path, table_format)
    try:
        log = site.engine().open(KEY, table_settings(table_format))
        for _ in range(3):
            append(log, make_batch(log.end_offset, 10, size=400))
        log.roll()
        log.sync()
        before = read_all(log)
        log.tier.upload(log.end_offset, Owner())
        log.tier.trim_local(log.end_offset)
        site.rewrite()
        site.vacuum()
        foreign = site.paths()
    finally:
        site.close()
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.adoption_child", str(tmp_path), table_format, point],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == DIED, done.stderr.decode()
    try:
        assert not site.paths() & foreign
        assert site.offsets() == list(range(30))
        log = site.engine().open(KEY, table_settings(table_format))
        assert adopted(log) == 0  # the manifest learns of the new files, and nothing is left to do
        assert read_all(log) == before
        assert site.offsets() == list(range(30))
    finally:
        site.close()
