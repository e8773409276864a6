"""Thousands of clusters whose nodes, disks, links and leases fail: no promise is broken.

What is checked: no loss (C1), one history (C2), no phantom (C3), what was seen stays seen (C5),
refused means that nothing happened (C7), and progress after the last fault (C12). A failure names
its seed; `ONELOG_SEED=StormWorld:12 pytest tests/simulation/cluster -k one_seed` runs it again.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.simulation.cluster.faults import KINDS
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.cluster.worlds import (
    ApartWorld,
    FullWorld,
    StormWorld,
    SuccessionWorld,
    WaningWorld,
    WatchedWorld,
    run_seed,
)

WORLDS = (ClusterWorld, StormWorld, SuccessionWorld)
NARROW = (ApartWorld, WaningWorld, FullWorld, WatchedWorld)
"""Worlds for one class of mistakes each: a few seeds are enough."""
SEEDS = 1_200
EACH = 200
"""Seeds of one test, so that cores can share them."""
SEEDS_LONG = 10_000


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("first", range(0, SEEDS, EACH))
def test_no_fault_of_a_cluster_takes_back_what_anybody_was_told(first, world):
    for seed in range(first, first + EACH):
        run_seed(seed, world)


def test_nobody_is_elected_before_what_its_start_found_gone_is_known():
    for seed in range(EACH):
        run_seed(seed, ApartWorld)


def test_no_member_leaves_because_of_where_a_segment_begins():
    for seed in range(EACH):
        run_seed(seed, WaningWorld)


def test_a_leader_whose_disk_is_full_takes_nothing_back_when_another_leads():
    for seed in range(EACH):
        run_seed(seed, FullWorld)


def test_who_observes_for_a_while_sees_one_history_and_counts_for_nothing():
    for seed in range(EACH // 2):
        run_seed(seed, WatchedWorld)


@pytest.mark.fault_long
@pytest.mark.parametrize("world", [*WORLDS, *NARROW])
def test_no_fault_of_many_clusters_takes_back_what_anybody_was_told(world):
    first = random.randrange(SEEDS, 1 << 40)
    for seed in range(first, first + SEEDS_LONG):
        run_seed(seed, world)


def test_one_seed_of_a_cluster_runs_the_same_every_time():
    name, _, number = os.environ.get("ONELOG_SEED", "").rpartition(":")
    world = {one.__name__: one for one in (*WORLDS, *NARROW)}.get(name, ClusterWorld)
    one, two = run_seed(int(number or 7), world), run_seed(int(number or 7), world)
    assert one.now == two.now
    assert one.checker.count == two.checker.count
    assert one.checker.known == two.checker.known


REACHED = ("answered", "refused", "unknown", "cuts", "copied anew", "offline", "recovered",
           "accepted", "ambushed", "empty", "wane", "full", *KINDS)  # fmt: skip


def test_the_seeds_of_clusters_reach_what_they_are_for():
    found: Counter[str] = Counter()
    for world in WORLDS:
        for seed in range(100):
            found += run_seed(seed, world).checker.count
    for world in NARROW:
        for seed in range(10):
            found += run_seed(seed, world).checker.count
    missing = [name for name in REACHED if not found[name]]
    assert not missing
    assert found["answered"] > found["attempted"] // 3, "many calls succeed"
