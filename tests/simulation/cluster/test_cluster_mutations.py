"""The simulation of a cluster is able to fail: a seed finds each broken rule of replication."""

from __future__ import annotations

import pytest

from tests.simulation.cluster.mutations import MUTATIONS, Mutation
from tests.simulation.cluster.worlds import run_seed


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_broken_rule_of_replication_is_found_by_the_seed_that_stands_beside_it(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    # After a change of the rules another seed may be needed: `python -m
    # tests.simulation.cluster.reseed` names it.
    world, seed = MUTATIONS[mutation]
    run_seed(seed, world)  # the rule is what makes the difference
    mutation(monkeypatch)
    with pytest.raises(AssertionError, match=f"ONELOG_SEED={world.__name__}:{seed}: "):
        run_seed(seed, world)
