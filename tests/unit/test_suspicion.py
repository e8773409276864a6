"""Which nodes does a node take out, given who reports whom, and who controls?"""

from __future__ import annotations

import itertools

import pytest

from onelog.cluster.rows import NOBODY
from onelog.cluster.suspicion import Suspicion, Suspicions

EPOCHS = {1: 11, 2: 12, 3: 13, 4: 14, 5: 15}
THREE = {node: EPOCHS[node] for node in (1, 2, 3)}
TWO = {node: EPOCHS[node] for node in (1, 2)}


def told(node: int, *reports: tuple[int, int]) -> Suspicions:
    """What a node knows after these reports: who, and of whom."""
    found = Suspicions(node)
    for reporter, suspect in reports:
        found.report(reporter, Suspicion(suspect, EPOCHS[suspect], "silent"))
    return found


def all_of(reporters: tuple[int, ...], suspects: tuple[int, ...]) -> list[tuple[int, int]]:
    """Each of some nodes reports each of others."""
    return list(itertools.product(reporters, suspects))


@pytest.mark.parametrize(
    ("epochs", "node", "controller", "reports", "condemned"),
    [
        pytest.param(THREE, 1, 1, [], [], id="nobody reports"),
        pytest.param(THREE, 1, 1, [(1, 3)], [], id="alone among three is not enough"),
        pytest.param(THREE, 1, 1, [(2, 3)], [], id="the controller does not suspect it"),
        pytest.param(THREE, 1, 1, [(1, 3), (2, 3)], [3], id="both others of three"),
        pytest.param(THREE, 2, 1, [(1, 3), (2, 3)], [], id="another one controls"),
        pytest.param(THREE, 2, 1, [(2, 1), (3, 1)], [1], id="the lowest replaces a controller"),
        pytest.param(THREE, 3, 1, [(2, 1), (3, 1)], [], id="only the lowest replaces it"),
        pytest.param(THREE, 2, 1, [(2, 1)], [], id="alone nobody replaces a controller"),
        pytest.param(THREE, 1, NOBODY, [(1, 3), (2, 3)], [3], id="nobody controls: the lowest"),
        pytest.param(THREE, 2, NOBODY, [(1, 3), (2, 3)], [], id="nobody controls: not the next"),
        pytest.param(THREE, 1, 9, [(1, 3), (2, 3)], [3], id="the controller is not registered"),
        pytest.param(TWO, 1, 1, [(1, 2)], [2], id="of two the controller decides alone"),
        pytest.param(TWO, 2, 1, [(2, 1)], [1], id="of two a controller is replaced alone"),
        pytest.param(EPOCHS, 1, 1, [(1, 5), (2, 5)], [], id="one of three others is not half"),
        pytest.param(EPOCHS, 1, 1, [(1, 5), (2, 5), (3, 5)], [5], id="two of three others are"),
        pytest.param(EPOCHS, 1, 1, [(1, 5), (2, 5), (5, 5)], [], id="it does not report itself"),
        pytest.param(EPOCHS, 1, 1, all_of((1, 2, 3), (4, 5)), [4, 5], id="two at once"),
        pytest.param(
            EPOCHS, 3, 1, all_of((3, 4, 5), (1, 2)), [1],
            id="a controller first, by the lowest that is not suspected",
        ),
        pytest.param(
            EPOCHS, 3, 3, all_of((3, 4, 5), (1, 2)), [1, 2], id="the rest once it is replaced"
        ),
        pytest.param(
            EPOCHS, 4, 1, all_of((3, 4, 5), (1, 2)), [], id="the next one leaves it to the lowest"
        ),
        pytest.param(TWO, 1, 1, [(1, 3), (2, 3)], [], id="it is registered no more"),
    ],
)  # fmt: skip
def test_a_node_is_taken_out_when_enough_report_it_by_the_one_that_decides(
    epochs, node, controller, reports, condemned
):
    assert told(node, *reports).condemned(epochs, controller) == condemned


@pytest.mark.parametrize("reporter", [1, 2])
def test_who_hears_a_node_again_takes_its_report_back(reporter):
    found = told(1, (1, 3), (2, 3))
    found.report(reporter, Suspicion(3, EPOCHS[3], ""))
    assert found.condemned(THREE, 1) == []
    assert found.own() == ([] if reporter == 1 else [3])


def test_a_report_that_nobody_made_can_be_taken_back():
    found = Suspicions(1)
    found.report(2, Suspicion(3, EPOCHS[3], ""))
    assert found.own() == []
    assert found.condemned(THREE, 1) == []


@pytest.mark.parametrize("reporter", [1, 2])
def test_a_report_of_an_older_registration_condemns_nobody(reporter):
    found = told(1, (1, 3), (2, 3))
    found.report(reporter, Suspicion(3, EPOCHS[3] - 1, "silent"))
    assert found.condemned(THREE, 1) == []


def test_what_was_said_of_a_node_that_registers_anew_is_forgotten():
    found = told(1, (1, 3), (2, 3))
    found.forget(3)
    anew = {**THREE, 3: 99}
    assert found.own() == []
    assert found.condemned(anew, 1) == []
    for reporter in (1, 2):
        found.report(reporter, Suspicion(3, 99, "silent"))
    assert found.condemned(anew, 1) == [3]


def test_what_a_node_said_is_forgotten_when_it_is_gone():
    found = told(1, (1, 3), (2, 3))
    found.forget(2)
    assert found.own() == [3]
    assert found.condemned(THREE, 1) == []


def test_the_same_report_twice_counts_once():
    assert told(1, (1, 5), (2, 5), (2, 5)).condemned(EPOCHS, 1) == []
