"""Finds new seeds for planted mistakes: `python -m tests.simulation.cluster.reseed [NAME …]`.

A change of the rules changes the course of each seed: a mistake may need another one afterwards.
Rules: the first seed counts that is clean without the mistake and finds it. Only rows whose seed
finds nothing any more are searched; nothing is written: the table is for a person to edit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from onelog.base.errors import OnelogError
from tests.simulation.cluster.mutations import MUTATIONS, Mutation
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.cluster.worlds import run_seed

SEEDS_MAX = 3_000
"""A mistake that so many seeds do not find needs a world that brings it about."""


def fails(world: type[ClusterWorld], seed: int) -> bool:
    """Whether a seed violates an invariant."""
    try:
        run_seed(seed, world)
    except AssertionError:
        return True
    except OnelogError:  # a planted mistake may also meet a guard of the product
        return False
    return False


def finds(mutation: Mutation, world: type[ClusterWorld], seeds: Iterator[int]) -> int | None:
    """The first of these seeds that finds a mistake, and nothing else."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            is_found = fails(world, seed)
        if is_found and not fails(world, seed):
            return seed
    return None


def main(names: list[str]) -> None:
    """Print what has to change in the table."""
    for mutation, (world, seed) in MUTATIONS.items():
        if names and mutation.__name__ not in names:
            continue
        if finds(mutation, world, iter([seed])) is None:
            found = finds(mutation, world, iter(range(SEEDS_MAX)))
            told = f"{mutation.__name__}: {world.__name__} {seed} finds nothing, {found} does\n"
            sys.stdout.write(told)
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
