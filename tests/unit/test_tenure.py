"""When does a leader that does not reach the metadata store stop showing what it leads?"""

from __future__ import annotations

import pytest

from onelog.cluster.tenure import Tenure

TTL_S = 6.0
NOW = 100.0
LATELY, LONG_AGO, NEVER = 95.0, 93.0, float("-inf")


class Leader:
    """A leader as `Tenure` looks at it."""

    def __init__(self, rivals: set[int], fed: set[int]) -> None:
        self.rivals = rivals
        self._fed = fed

    def feeds(self, node: int) -> bool:
        return node in self._fed


@pytest.mark.parametrize(
    ("kept_at", "rivals", "fed", "answered_at", "holds"),
    [
        pytest.param(LATELY, {2, 3}, set(), {}, True, id="it is registered"),
        pytest.param(LONG_AGO, {2, 3}, {2, 3}, {2: LATELY, 3: LATELY}, True, id="etcd is away"),
        pytest.param(LONG_AGO, {2, 3}, {2}, {2: LATELY, 3: LATELY}, False, id="one has no feed"),
        pytest.param(
            LONG_AGO, {2, 3}, {2, 3}, {2: LATELY, 3: LONG_AGO}, False, id="one is silent"
        ),
        pytest.param(LONG_AGO, {2, 3}, {2, 3}, {2: LATELY}, False, id="there is no link to one"),
        pytest.param(LONG_AGO, {2}, {2, 3}, {2: LATELY}, True, id="who is not in sync is no rival"),
        pytest.param(LONG_AGO, set(), set(), {}, True, id="nobody can follow it"),
        pytest.param(NEVER, {2}, set(), {}, False, id="it was never registered"),
    ],
)  # fmt: skip
def test_reads_stop_when_another_may_have_led_for_longer_than_a_registration_lasts(
    kept_at, rivals, fed, answered_at, holds
):
    tenure = Tenure(TTL_S, lambda: NOW, lambda: kept_at, lambda node: answered_at.get(node, NEVER))
    assert tenure.holds(Leader(rivals, fed)) is holds


def test_a_node_that_stood_still_trusts_nothing_from_before():
    now = [NOW]
    tenure = Tenure(TTL_S, lambda: now[0], lambda: NOW, lambda _node: NOW)
    assert tenure.holds(Leader({2}, {2}))
    now[0] += TTL_S + 0.1
    assert not tenure.holds(Leader({2}, {2}))
