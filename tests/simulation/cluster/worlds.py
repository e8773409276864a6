"""Worlds of other chances, and the run of one seed."""

from __future__ import annotations

from onelog.log.promises import Durability
from tests.simulation.cluster.checker import Violation
from tests.simulation.cluster.world import ClusterWorld


class StormWorld(ClusterWorld):
    """Few nodes and slow disks, whose promises are as low as they can be, and many faults."""

    levels = (Durability.FSYNC, Durability.FSYNC, Durability.OS)
    sizes = (3, 3, 4)
    sync_times = (0.02, 0.1)
    min_insyncs = (1, 1, 2)
    luck = (0.1, 0.4)
    many = (10, 30)


class SuccessionWorld(ClusterWorld):
    """Elections, one close behind the other, while copies lag and enter again."""

    levels = (Durability.FSYNC, Durability.FSYNC, Durability.OS)
    sizes = (3, 3, 4, 5)
    min_insyncs = (1, 2, 2, 2, 3)
    luck = (0.03, 0.25)
    keeps = (0.02, 0.1)
    slow_links = (1.0, 20.0)
    many = (3, 8)
    kinds = (
        "succession", "succession", "ambush", "die", "pause", "cut", "store", "elect", "rot",
        "relent",
    )  # fmt: skip


class ApartWorld(StormWorld):
    """What a start found gone is heard later than the start itself, and leaders come back empty."""

    is_apart = True
    min_insyncs = (1, 2, 2)
    many = (4, 12)
    kinds = (
        "empty", "empty", "empty", "die", "pause", "cut", "lie", "control", "store", "drain",
        "elect",
    )  # fmt: skip


class WaningWorld(StormWorld):
    """Logs whose segments end behind the high watermark, and feeds that are opened again."""

    levels = (Durability.FSYNC, Durability.FSYNC, Durability.FSYNC)
    sizes = (3, 3, 3)
    min_insyncs = (2, 2, 2)
    luck = (0.03, 0.25)
    keeps = (0.02, 0.1)
    many = (3, 10)
    kinds = ("wane", "wane", "compact", "break", "pause", "cut", "elect", "lie")


class FullWorld(StormWorld):
    """Disks that are full for a while, on one node or on all, beside other faults."""

    min_insyncs = (1, 2, 2)
    luck = (0.03, 0.25)
    many = (4, 12)
    kinds = ("full", "full", "full", "die", "pause", "cut", "store", "elect", "lie", "drain")


class WatchedWorld(StormWorld):
    """Nodes that begin and end to observe, and that become replicas and observers again."""

    moves_observers = True
    sizes = (3, 4, 5)
    luck = (0.03, 0.25)
    many = (8, 20)
    kinds = (
        "observe", "observe", "observe", "observe", "reassign", "reassign", "factor", "die",
        "pause", "break", "cut", "exile", "store", "elect", "lie", "trim", "compact", "rot",
        "recover",
    )  # fmt: skip


def run_seed(seed: int, world: type[ClusterWorld] = ClusterWorld) -> ClusterWorld:
    """One seed; what fails names it."""
    made = world(seed)
    try:
        made.run()
    except Violation as error:
        raise AssertionError(f"ONELOG_SEED={world.__name__}:{seed}: {error}") from error
    return made
