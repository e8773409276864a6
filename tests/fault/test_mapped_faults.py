"""A page of a mapped file that cannot be read stops its partition, and ends no process."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onelog.base.errors import CorruptBatch, PartitionStopped
from onelog.kernel import COMPILED, bus_faults, scan_batches
from onelog.storage.engine import LogSettings, PartitionKey, PartitionLog, in_place
from onelog.storage.segment import SegmentEngine
from tests.batches import append, make_batch

pytestmark = pytest.mark.skipif(not COMPILED, reason="the interpreted kernel has no handler")

SETTINGS = LogSettings(segment_bytes=256 * 1024)
OTHER = PartitionKey("s-2", 0)


def filled(engine: SegmentEngine, key: PartitionKey) -> PartitionLog:
    log = engine.open(key, SETTINGS)
    for base in range(20):
        append(log, make_batch(base, size=32 * 1024))
    return log


def test_bytes_that_went_under_a_reader_are_zeros_and_the_partition_stops(tmp_path: Path):
    engine = SegmentEngine(tmp_path)
    log, other = filled(engine, PartitionKey("s-1", 0)), filled(engine, OTHER)
    view = in_place(log, lambda: log.read(0, 1 << 20, log.end_offset))
    before = bus_faults()
    os.truncate(min(tmp_path.rglob("s-1*/**/*.log")), 4096)
    with pytest.raises(CorruptBatch):
        scan_batches(view)  # without the handler: SIGBUS
    assert bus_faults() > before
    with pytest.raises(PartitionStopped, match="could not be read"):
        log.read(10, 1, log.end_offset)
    assert len(other.read(10, 1, other.end_offset)) > 0
    engine.close()


def test_an_index_that_went_under_a_reader_leads_to_no_answer(tmp_path: Path):
    engine = SegmentEngine(tmp_path)
    log = filled(engine, PartitionKey("s-1", 0))
    assert len(log.read(0, 1, log.end_offset)) > 0
    os.truncate(min(tmp_path.rglob("*.index")), 0)
    with pytest.raises(PartitionStopped, match="could not be read"):
        log.read(3, 1, log.end_offset)
    engine.close()


def test_maps_that_are_gone_are_looked_after_no_more(tmp_path: Path):
    """Their addresses may belong to another map, whose faults are not ours to hide."""
    engine = SegmentEngine(tmp_path)
    log = filled(engine, PartitionKey("s-1", 0))
    assert len(log.read(0, 1, log.end_offset)) > 0
    engine.close()
    del log, engine
    script = f"""
import mmap, os, sys
sys.path[:0] = {sys.path!r}
from onelog.storage.residence import Map
path = {str(tmp_path / "file")!r}
open(path, "wb").write(bytes({2 * mmap.PAGESIZE}))
with open(path, "rb") as file:
    ours = Map(file.fileno(), {2 * mmap.PAGESIZE}, access=mmap.ACCESS_READ)
    ours.locate()
    del ours
    strange = mmap.mmap(file.fileno(), {2 * mmap.PAGESIZE}, access=mmap.ACCESS_READ)
os.truncate(path, 0)
strange[0]
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == -signal.SIGBUS
