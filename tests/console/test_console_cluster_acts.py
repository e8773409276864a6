"""What an administrator does on the page of a cluster: the call that each button makes, its words.

Rules: one broker serves the console; the browser answers in the place of three nodes, with values
of the contract. What the calls do to real nodes, the tests of the cluster show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import msgspec
import pytest
from playwright.sync_api import Page, Route, expect

from onelog.admin.api.cluster import (
    DrainWanted,
    ElectionWanted,
    MoveWanted,
    RecoveryWanted,
    VersionWanted,
)
from onelog.admin.api.paging import Page as ApiPage
from onelog.cluster.seen import PartitionState, SeenCluster, SeenNode, SeenPartition

Calls = list[tuple[str, str, object]]
ANSWERS = {"empty": {"moved": 2}, "elect": {"changed": 1}, "finalize": {"version": 3}}
BODIES = {
    "drain": DrainWanted,
    "elect": ElectionWanted,
    "finalize": VersionWanted,
    "reassign": MoveWanted,
    "recover": RecoveryWanted,
}


def node(number: int, *, up: bool = True, draining: bool = False, replicas: int = 2) -> SeenNode:
    return SeenNode(
        id=number, name=f"r{number}", rack="", roles=("broker",), version="0.1.0",
        epoch=number if up else 0, draining=draining, is_clean=True, is_owner=False,
        inner_versions=(1, 3), leads=1, replicas=replicas, elections=0, listeners={},
    )  # fmt: skip


def partition(
    number: int, state: PartitionState, leader: int, adding: tuple[int, ...] = ()
) -> SeenPartition:
    return SeenPartition(
        name=f"orders/{number}", stream="orders", partition=number, state=state, leader=leader,
        epoch=1, replicas=(1, 2), isr=(1, 2) if leader > 0 else (), elr=(), adding=adding,
        removing=(), min_insync=1, lags=(),
    )  # fmt: skip


CLUSTER = SeenCluster(
    summary="healthy", mode="etcd", name="plant", node=1, epoch=1, controller=1, version=2,
    nodes=(node(1), node(2, draining=True), node(3, up=False, replicas=0)),
)  # fmt: skip
PARTITIONS = ApiPage(
    items=[
        partition(0, "healthy", 2),
        partition(1, "moving", 1, adding=(3,)),
        partition(2, "offline", -1),
    ],
    next_cursor=None,
)


@pytest.fixture
def acts(empty, visit) -> Iterator[tuple[Callable[[str], Page], Calls]]:
    """Go to a page of the cluster; what was asked of it is noted."""
    visitor, calls = visit(empty), []

    def answer(route: Route) -> None:
        request = route.request
        path = request.url.partition("/api/v1/cluster")[2].partition("?")[0]
        if request.method == "GET":
            found = PARTITIONS if path == "/partitions" else CLUSTER
            route.fulfill(body=msgspec.json.encode(found), content_type="application/json")
            return
        last = path.rpartition("/")[2]
        kind = BODIES.get(last)
        sent = None if kind is None else msgspec.json.decode(request.post_data or "", type=kind)
        calls.append((request.method, path, sent))
        if last in ANSWERS:
            route.fulfill(body=json.dumps(ANSWERS[last]), content_type="application/json")
        else:
            route.fulfill(status=204)

    visitor.page.route("**/api/v1/cluster**", answer)
    visitor.page.route("**/api/v1/cluster/**", answer)
    yield visitor.go, calls


def act(page: Page, verb: str, words: str) -> None:
    page.locator("dialog").get_by_role("button", name=verb, exact=True).click()
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator(".toast")).to_contain_text(words)


def row_of(page: Page, table: str, text: str):
    return page.get_by_role("table", name=table).locator("tbody tr").filter(has_text=text)


@pytest.mark.parametrize(
    ("name", "button", "verb", "words", "call"),
    [
        ("r1", "Mark as draining…", "Mark it", "Node 1 is marked",
         ("POST", "/nodes/1/drain", DrainWanted())),
        ("r2", "Take the mark away…", "Take it away", "Node 2 takes part again",
         ("POST", "/nodes/2/drain", DrainWanted(undo=True))),
        ("r2", "Empty…", "Empty it", "2 partitions on the way", ("POST", "/nodes/2/empty", None)),
        ("r3", "Remove…", "Remove", "Node 3 is no longer", ("DELETE", "/nodes/3", None)),
    ],
)  # fmt: skip
def test_a_node_is_marked_emptied_and_removed(acts, name, button, verb, words, call):
    go, calls = acts
    page = go("nodes")
    row_of(page, "Nodes", name).click()
    page.get_by_role("button", name=button).click()
    act(page, verb, words)
    assert calls == [call]


def test_a_node_offers_only_what_can_be_done_with_it(acts):
    page = acts[0]("nodes")
    for name, offered in (
        ("r1", ["Mark as draining…", "Empty…"]),
        ("r2", ["Take the mark away…", "Empty…"]),
        ("r3", ["Mark as draining…", "Remove…"]),
    ):
        row_of(page, "Nodes", name).click()
        buttons = page.locator("dialog .form-end button")
        expect(buttons).to_have_text(offered)
        page.keyboard.press("Escape")


@pytest.mark.parametrize(
    ("name", "button", "verb", "words", "call"),
    [
        ("orders/0", "Elect the preferred…", "Elect", "It leads now",
         ("POST", "/elect", ElectionWanted(partition="orders/0"))),
        ("orders/1", "Stop the move…", "Stop it", "It stays where it was",
         ("POST", "/partitions/orders%2F1/reassign", MoveWanted(cancel=True))),
        ("orders/2", "Recover…", "Accept the loss and recover", "Node 1 leads with what it has",
         ("POST", "/partitions/orders%2F2/recover", RecoveryWanted(node=1, accept_loss=True))),
    ],
)  # fmt: skip
def test_a_partition_is_elected_recovered_and_its_move_stopped(
    acts, name, button, verb, words, call
):
    go, calls = acts
    page = go("nodes?tab=partitions")
    row_of(page, "Partitions", name).click()
    page.get_by_role("button", name=button).click()
    act(page, verb, words)
    assert calls == [call]


def test_a_partition_is_moved_to_the_nodes_that_are_named(acts):
    go, calls = acts
    page = go("nodes?tab=partitions")
    row_of(page, "Partitions", "orders/0").click()
    page.get_by_role("button", name="Move…").click()
    page.get_by_label("To the nodes").fill("3, 1")
    act(page, "Move", "on its way")
    assert calls == [("POST", "/partitions/orders%2F0/reassign", MoveWanted(to=(3, 1)))]


def test_a_version_that_every_node_speaks_is_finalised(acts):
    go, calls = acts
    page = go("nodes")
    page.get_by_role("button", name="Finalise version 3…").click()
    act(page, "Finalise", "Version 3 is finalised")
    assert calls == [("POST", "/finalize", VersionWanted())]
