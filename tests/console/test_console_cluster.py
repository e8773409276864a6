"""The console and the API over three real nodes: what each node answers, and the page of nodes."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from onelog.admin.api.desk import AdminDesk
from onelog.admin.application import document_of
from onelog.base.clock import SystemClock
from tests.console.browsing import PHONE, Visitor
from tests.support.admin import new_desk
from tests.support.etcd import needs_etcd
from tests.support.three_nodes import ThreeNodes

pytestmark = needs_etcd

LONG_MS = 60_000
LOST_S = 30.0
ELSEWHERE = 421


@pytest.fixture(scope="module")
def cluster(built: None, tmp_path_factory) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("nodes")) as nodes:
        nodes.create("orders", 3)
        nodes.until(lambda: nodes.seen(1)["is_healthy"], LOST_S, "the cluster is not healthy")
        yield nodes


@pytest.fixture
def look(browser, cluster) -> Iterator:
    """Go to a page of a node's console; what the browser complained about is an error."""
    visitors: list[Visitor] = []

    def go(place: str, node: int = 1, **more: object) -> Visitor:
        url = f"http://127.0.0.1:{cluster.node(node).ports['admin']}"
        visitors.append(Visitor(browser, url, **more))
        visitors[-1].go(place)
        return visitors[-1]

    yield go
    complaints = [row for visitor in visitors for row in visitor.complaints]
    for visitor in visitors:
        visitor.close()
    assert not complaints


def asked(cluster: ThreeNodes, node: int, path: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    url = f"http://127.0.0.1:{cluster.node(node).ports['admin']}{path}"
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def row_of(page: Page, table: str, text: str):
    return page.get_by_role("table", name=table).locator("tbody tr").filter(has_text=text)


def whole_paths() -> list[str]:
    """Every path that is asked without a name."""
    desk: AdminDesk = new_desk()
    paths = document_of(desk, SystemClock())["paths"]
    return sorted(
        path
        for path, methods in paths.items()
        if "get" in methods and "{" not in path and not path.endswith("/events")
    )


def test_every_list_is_answered_by_every_node_or_names_the_node_that_has_it(cluster):
    no_store = ("/api/v1/store", "/api/v1/store/streams")
    for path in whole_paths():
        for node in (1, 2, 3):
            status, text = asked(cluster, node, path)
            if status == ELSEWHERE:
                owner = re.search(r"node (\d) has all queues", text)
                assert owner is not None, (path, node, text)
                assert asked(cluster, int(owner[1]), path)[0] == 200, (path, text)
            else:
                assert status == 200 or path in no_store, (path, node, text)


def test_the_page_of_nodes_shows_all_of_them_their_partitions_and_links(cluster, look):
    page = look("nodes").page
    for number in (1, 2, 3):
        expect(page.get_by_role("table", name="Nodes")).to_contain_text(f"r{number}")
    expect(page.locator(".stats")).to_contain_text("healthy", timeout=LONG_MS)
    expect(page.locator(".stats")).to_contain_text("3 of 3")
    expect(row_of(page, "Nodes", "you ask this one")).to_contain_text("r1")
    page.get_by_role("link", name="Partitions").click()
    expect(row_of(page, "Partitions", "orders/2")).to_contain_text("healthy")
    page.get_by_role("link", name="Links and etcd").click()
    expect(page.get_by_role("table", name="Links").locator("tbody tr")).to_have_count(6)
    expect(page.get_by_role("table", name="Members of etcd")).to_contain_text("answers")
    page.get_by_role("link", name="This node").click()
    expect(page.get_by_role("table", name="Listeners")).to_contain_text("mqtt://")
    page.get_by_label("Search keys").fill("node_ttl_ms")
    expect(page.get_by_role("table", name="Configuration")).to_contain_text("2 s")


def test_the_overview_of_each_node_shows_the_cluster(look):
    for node in (1, 2, 3):
        page = look("overview", node).page
        expect(page.locator("main")).to_contain_text("Cluster of 3 nodes")
        expect(page.locator("main")).to_contain_text("of this node")
        assert page.locator(".problem").count() == 0


@pytest.mark.parametrize("place", ["nodes", "nodes?tab=partitions", "nodes?tab=links", "overview"])
def test_it_fits_a_phone(look, place):
    visitor = look(place, viewport=PHONE)
    expect(visitor.page.locator("main")).not_to_contain_text("Loading…")
    assert visitor.overflows() <= 0


def test_a_node_is_marked_and_the_mark_is_taken_away(look):
    page = look("nodes").page
    for button, verb, state in (
        ("Mark as draining…", "Mark it", "draining"),
        ("Take the mark away…", "Take it away", "running"),
    ):
        row_of(page, "Nodes", "r2").click()
        page.get_by_role("button", name=button).click()
        page.locator("dialog").get_by_role("button", name=verb, exact=True).click()
        expect(row_of(page, "Nodes", "r2")).to_contain_text(state)


def test_a_partition_is_moved_to_another_order_and_its_preferred_leader_is_elected(cluster, look):
    before = cluster.rows("orders")[0]
    wanted = [*before.replicas[1:], before.replicas[0]]
    page = look("nodes?tab=partitions").page
    row_of(page, "Partitions", "orders/0").click()
    page.get_by_role("button", name="Move…").click()
    page.get_by_label("To the nodes").fill(" ".join(map(str, wanted)).replace(" ", ", "))
    page.locator("dialog").get_by_role("button", name="Move", exact=True).click()
    cluster.until(lambda: cluster.rows("orders")[0].replicas == wanted, 20, "it did not move")
    page.get_by_role("button", name="Elect all preferred…").click()
    page.locator("dialog").get_by_role("button", name="Elect", exact=True).click()
    cluster.until(lambda: cluster.rows("orders")[0].leader == wanted[0], 20, "it does not lead")
    page.get_by_role("button", name="Refresh").click()
    expect(row_of(page, "Partitions", "orders/0")).to_contain_text(", ".join(map(str, wanted)))


def test_a_node_that_is_lost_is_shown_and_what_to_do(cluster, look):
    cluster.node(3).kill()
    page = look("nodes").page
    expect(row_of(page, "Nodes", "r3")).to_contain_text("down", timeout=LONG_MS)
    expect(page.locator(".banner[role=status]")).to_contain_text("start node 3", timeout=LONG_MS)
    expect(page.locator(".stats")).to_contain_text("2 of 3")
    page.goto(page.url.split("#")[0] + "#/overview")
    expect(page.locator("main")).to_contain_text("2 of 3 nodes run")
    page.goto(page.url.split("#")[0] + "#/nodes?tab=partitions")
    expect(row_of(page, "Partitions", "orders/1")).to_contain_text("under-replicated")
