"""How seeds are run: on a fresh disk in memory, and what fails names its seed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from tests.simulation.world import World, simulate

IN_MEMORY = Path("/dev/shm")
"""Where files cost no disk."""

W = TypeVar("W", bound=World)


def run_seed(world: type[W], seed: int) -> W:
    """One seed of a world."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        disk = Path(folder) / "disk"
        disk.mkdir()
        return simulate(world, seed, disk)


def run_seeds(world: type[World], seeds: Iterable[int]) -> None:
    """Many seeds of a world; the first that fails is named."""
    for seed in seeds:
        try:
            run_seed(world, seed)
        except Exception as error:
            raise AssertionError(f"ONELOG_SEED={world.__name__}:{seed}: {error}") from error
