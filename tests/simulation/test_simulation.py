"""Five thousand lives of a broker whose disk forgets what was not synced (I1, I3, I4, I5).

A failure names its seed; `ONELOG_SEED=… pytest tests/simulation -k one_seed` runs that one again.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from onelog.base.clock import ManualClock
from onelog.log.partition import Partition
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine
from tests.logs import KEY, make_partition, put, row
from tests.simulation.disk import Disk
from tests.simulation.life import Life, simulate

SEEDS = 5_000
SHARES = 10
"""Tests that the seeds are shared out to."""
LONG_SEEDS = 50_000
IN_MEMORY = Path("/dev/shm")
"""Where files cost no disk."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A partition that the disk stopped is told of; here that happens thousands of times."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def run_seed(seed: int) -> Life:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        disk = Path(folder) / "disk"
        disk.mkdir()
        return simulate(seed, disk)


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"ONELOG_SEED={seed}: {error}") from error


@pytest.mark.parametrize("share", range(SHARES))
def test_no_crash_takes_back_what_anybody_was_told(share):
    each = SEEDS // SHARES
    run_seeds(range(share * each, (share + 1) * each))


@pytest.mark.fault_long
def test_no_crash_of_many_takes_back_what_anybody_was_told():
    first = random.randrange(SEEDS, 1 << 40)
    run_seeds(range(first, first + LONG_SEEDS))


def test_one_seed_runs_the_same_every_time():
    seed = int(os.environ.get("ONELOG_SEED") or 4)
    one, two = run_seed(seed), run_seed(seed)
    assert one.acknowledged
    assert one.acknowledged == two.acknowledged
    assert one.settled == two.settled
    assert one.clock.monotonic() == two.clock.monotonic()


def test_the_seeds_reach_what_they_are_for():
    lives = [run_seed(seed) for seed in range(40)]
    for name in ("acknowledged", "seen", "committed", "trimmed", "made", "gone"):
        assert any(getattr(life, name) for life in lives), f"no life has {name}"
    assert any(life.settled["queue"] for life in lives)
    assert any(life.settled["session"] for life in lives)


@pytest.mark.parametrize("names", [True, False], ids=["names", "bytes"])
def test_a_disk_that_lies_about_its_syncs_is_found_out(monkeypatch, names):
    """The simulation is able to fail: the same broker on a disk that syncs nothing loses."""
    honest = Disk._fsync

    def lie(disk: Disk, fd: int) -> None:
        if isinstance(disk._open.get(fd), str) is not names:
            honest(disk, fd)

    monkeypatch.setattr(Disk, "_fsync", lie)
    monkeypatch.setattr(Disk, "_fdatasync", lie)
    with pytest.raises(AssertionError, match="ONELOG_SEED"):
        run_seeds(range(60))


class Worst(random.Random):
    """A power cut that leaves nothing but what was synced."""

    def randint(self, a: int, b: int) -> int:
        del b
        return a

    def randrange(self, *_bounds: int) -> int:
        return 0


@pytest.mark.parametrize("has_records", [False, True])
def test_a_directory_that_outlived_a_kill_is_made_durable_with_its_next_records(
    tmp_path, has_records
):
    """I4: that it is there does not say that it is durable. Found by a seed."""
    disk, clock = Disk(tmp_path, Worst()), ManualClock()

    def open_log() -> Partition:
        log = SegmentEngine(tmp_path, clock).open(KEY, LogSettings(topic_index=False))
        return make_partition(log, None, clock)  # type: ignore[arg-type]

    with disk.attached():
        first = open_log()  # its process is killed before a sync
        if has_records:
            put(first, row(b"k", b"1"))
        second = open_log()
        put(second, row(b"k", b"2"))
        second.log.sync()
        end = second.log.end_offset
        disk.cut_power()
        assert open_log().log.end_offset == end
