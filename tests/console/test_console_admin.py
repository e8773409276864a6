"""Every page and tab as an administrator sees it, on a phone and in the dark; and each action once.

One broker with users, rules and a token, things of every protocol, and nobody who changes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pika
import pytest
from confluent_kafka import Consumer, TopicPartition
from playwright.sync_api import Browser, Locator, Page, expect

from tests.console.browsing import PHONE, WIDE, Visitor
from tests.console.scene import Scene

PAGES = Path(__file__).resolve().parents[2] / "console" / "src" / "pages.ts"
PATIENCE_MS = 30_000
BOSS, PASSWORD = "ada", "a long password"
CONTRAST_MIN = 4.5
"""WCAG 2.2, 1.4.3: text on what lies behind it."""

FAINT = """() => {
  const channel = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const read = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = read(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim() !== "");
    if (!own || !node.checkVisibility() || node.closest("[disabled], svg")) continue;
    const [a, b] = [light(read(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < MIN) faint.push(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(faint)];
}""".replace("MIN", str(CONTRAST_MIN))


@pytest.fixture(scope="module")
def staffed(built: None, tmp_path_factory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("staffed"))
    try:
        scene.ask("POST", "/streams", {"name": "orders", "captures": ["orders"], "partitions": 1})
        for number in range(3):
            scene.ask("POST", "/messages", {"topic": "orders", "text": str(number)})
        away = scene.mqtt("night-shift", "orders", clean=False)
        away.disconnect()
        away.loop_stop()
        scene._clients.remove(away)
        scene.mqtt("dashboard", "orders")
        _queue_and_group(scene)
        scene.people(BOSS, PASSWORD)
        yield scene
    finally:
        code = scene.close()
    assert code == 0


def _queue_and_group(scene: Scene) -> None:
    where = pika.ConnectionParameters("127.0.0.1", scene.broker.ports["amqp"])
    connection = pika.BlockingConnection(where)
    channel = connection.channel()
    for name in ("jobs", "old-jobs"):
        channel.queue_declare(name, durable=True)
        channel.basic_publish("", name, b"x")
    connection.close()
    for group in ("billing", "old-billing"):
        reader = Consumer(scene._kafka(**{"group.id": group}))
        reader.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        reader.close()


def admit(visitor: Visitor) -> Page:
    """Log in as the administrator, once for a visitor."""
    page = visitor.go("access")
    menu = page.get_by_role("button", name="Menu")
    if menu.is_visible():
        menu.click()
    page.get_by_role("button", name="Log in").click()
    page.get_by_label("User").fill(BOSS)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("table", name="Users").wait_for()
    return page


@pytest.fixture(scope="module")
def office(browser: Browser, staffed: Scene) -> Iterator[Visitor]:
    """An administrator who stays logged in."""
    visitor = Visitor(browser, staffed.url, WIDE)
    admit(visitor)
    yield visitor
    complaints = visitor.complaints
    visitor.close()
    assert not complaints


def ask(page: Page, path: str) -> dict:
    """What the API says to who is logged in here."""
    told = page.request.get(f"{page.url.partition('/console/')[0]}/api/v1{path}")
    return json.loads(told.text()) if told.ok else {"status": told.status}


def act(page: Page, verb: str) -> None:
    """Press the button of the dialog, which goes when it is done."""
    dialog = page.locator("dialog")
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_have_count(0, timeout=PATIENCE_MS)


def row_of(page: Page, table: str, text: str) -> Locator:
    return page.get_by_role("table", name=table).locator("tbody tr", has_text=text)


# -- what is seen


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_and_tab_fits_a_phone_and_can_be_read(staffed, visit, theme):
    visitor = visit(staffed, viewport=PHONE, theme=theme)
    page = admit(visitor)
    paths = re.findall(r'row\("(\w+)"', PAGES.read_text())
    assert {"access", "audit", "nodes", "quotas"} <= set(paths)
    found = {
        "streams?name=orders",
        "cursors?name=kafka%3Abilling",
        "groups?name=billing",
        "messages?filter=orders",
    }
    waiting, seen = [*paths, *sorted(found)], set(paths) | found
    while waiting:
        address = waiting.pop()
        visitor.go(address)
        expect(page.locator("main")).not_to_contain_text("Loading…", timeout=PATIENCE_MS)
        assert visitor.overflows() <= 0, f"{address} is wider than a phone"
        assert page.locator(".problem").count() == 0, f"{address}: {page.inner_text('main')}"
        assert page.evaluate(FAINT) == [], f"{address} in {theme}"
        tabs = page.locator("main nav a").evaluate_all("rows => rows.map(row => row.hash)")
        for tab in (text.removeprefix("#/") for text in tabs):
            if tab not in seen:
                seen.add(tab)
                waiting.append(tab)
    assert {
        "access?tab=rules", "access?tab=tokens", "quotas?tab=bans", "backups?tab=stored",
    } <= seen  # fmt: skip
    assert page.evaluate("document.documentElement.dataset.theme") == theme


# -- what is done


def test_a_user_is_made_changed_and_removed(office):
    page = office.go("access")
    page.get_by_role("button", name="New user").click()
    page.get_by_role("textbox", name="Name", exact=True).fill("carl")
    page.get_by_role("textbox", name="Password").fill("long enough")
    act(page, "Make it")
    assert ask(page, "/users/carl")["role"] == "none"
    row_of(page, "Users", "carl").click()
    page.locator("dialog").get_by_label("Role").select_option("operator")
    page.locator("dialog").get_by_role("checkbox").check()
    act(page, "Change it")
    told = ask(page, "/users/carl")
    assert (told["role"], told["disabled"]) == ("operator", True)
    row_of(page, "Users", "carl").get_by_role("button", name="Remove…").click()
    act(page, "Remove")
    assert ask(page, "/users/carl") == {"status": 404}


def test_a_rule_is_made_changed_and_removed(office):
    page = office.go("access?tab=rules")
    before = ask(page, "/access/rules")["items"]
    page.get_by_role("button", name="New rule").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Who").fill("user:carl")
    dialog.get_by_role("textbox", name=re.compile("^On")).fill("topic:made/#")
    act(page, "Make it")
    row_of(page, "Access rules", "made/#").click()
    dialog.get_by_role("textbox", name=re.compile("^On")).fill("topic:changed/#")
    act(page, "Change it")
    (new,) = [row for row in ask(page, "/access/rules")["items"] if row not in before]
    assert new["text"] == "allow user:carl publish,subscribe topic:changed/#"
    row_of(page, "Access rules", "changed/#").get_by_role("button", name="Remove…").click()
    act(page, "Remove")
    assert ask(page, "/access/rules")["items"] == before


def test_a_token_is_made_and_revoked(office):
    page = office.go("access?tab=tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Label").fill("short-lived")
    page.get_by_role("button", name="Make it").click()
    page.get_by_role("button", name="Done").click()
    assert "short-lived" in [row["label"] for row in ask(page, "/tokens")["items"]]
    row_of(page, "Tokens", "short-lived").get_by_role("button", name="Revoke…").click()
    act(page, "Revoke")
    assert "short-lived" not in [row["label"] for row in ask(page, "/tokens")["items"]]


def test_a_client_is_disconnected_and_a_session_ended(office):
    page = office.go("connections")
    row_of(page, "Connections", "dashboard").click()
    page.get_by_role("button", name="Disconnect…").click()
    (row,) = ask(page, "/connections?search=dashboard")["items"]
    act(page, "Disconnect")
    assert row["id"] not in [one["id"] for one in ask(page, "/connections")["items"]]
    office.go("sessions")
    row_of(page, "Sessions", "night-shift").get_by_role("button", name="End…").click()
    act(page, "End it")
    left = [row["client_id"] for row in ask(page, "/sessions")["items"]]
    assert "night-shift" not in left


def test_a_queue_is_purged_and_deleted(office):
    page = office.go("queues")
    row_of(page, "Queues", "old-jobs").click()
    page.get_by_role("button", name="Purge…").click()
    act(page, "Purge")
    expect(row_of(page, "Queues", "old-jobs")).to_contain_text("0", timeout=PATIENCE_MS)
    found = {row["name"]: row["ready"] for row in ask(page, "/amqp/queues")["items"]}
    assert found == {"jobs": 1, "old-jobs": 0}
    row_of(page, "Queues", "old-jobs").click()
    page.get_by_role("button", name="Delete…").click()
    act(page, "Delete")
    assert [row["name"] for row in ask(page, "/amqp/queues")["items"]] == ["jobs"]


def test_a_cursor_is_moved_reset_purged_and_forgotten(office):
    page = office.go("access")
    (name,) = [row["name"] for row in ask(page, "/cursors?protocol=amqp")["items"]
               if row["name"].endswith("jobs") and "old" not in row["name"]]  # fmt: skip
    path = f"/cursors/{quote(name, safe='')}"
    office.go(f"cursors?name={quote(name, safe='')}")
    for button, verb, lag in (
        ("Purge…", "Purge", 0),
        ("Move…", "Move", 1),
        ("Reset…", "Reset", None),
    ):
        page.get_by_role("button", name=button).click()
        act(page, verb)
        if lag is not None:
            assert ask(page, path)["lag"] == lag, verb
    office.go("cursors?name=kafka%3Abilling")
    page.get_by_role("button", name="Forget…").click()
    act(page, "Forget")
    assert ask(page, "/cursors/kafka%3Abilling") == {"status": 404}


def test_a_group_is_moved_and_forgotten(office):
    page = office.go("groups?name=old-billing")
    page.get_by_role("button", name="Move…").click()
    act(page, "Move")
    (position,) = ask(page, "/kafka/groups/old-billing")["positions"]
    assert position["offset"] == 0
    page.get_by_role("button", name="Forget…").click()
    act(page, "Forget")
    assert ask(page, "/kafka/groups/old-billing") == {"status": 404}


def test_a_stream_is_changed_and_its_oldest_records_deleted(office):
    page = office.go("streams?name=orders")
    page.get_by_role("button", name="Change…").click()
    page.get_by_label("Captures").fill("orders\nreturns")
    act(page, "Change it")
    assert ask(page, "/streams/orders")["stream"]["captures"] == ["orders", "returns"]
    page.get_by_role("button", name="Trim…").click()
    page.get_by_label("Below the offset").fill("2")
    act(page, "Delete records")
    (partition,) = ask(page, "/streams/orders/partitions")["items"]
    assert partition["start_offset"] == 2


def make_backup(page: Page, scene: Scene, folder: Path) -> str:
    """Make a backup on the page of backups; its id."""
    button = page.get_by_role("button", name="New backup")
    expect(button).to_be_enabled(timeout=PATIENCE_MS)
    button.click()
    page.get_by_label("To", exact=False).first.fill(str(folder))
    act(page, "Begin")
    made = str(ask(page, "/backups")["items"][0]["id"])
    scene.until(f"/backups/{made}", lambda run: run["state"] == "done")
    return made


def test_stored_backups_are_listed_verified_and_pruned(office, staffed):
    folder = staffed.folder / "kept"
    page = office.go("backups")
    old, new = (make_backup(page, staffed, folder) for _run in range(2))
    page.get_by_role("link", name="In a folder or bucket").click()
    page.get_by_role("button", name="Look", exact=True).click()  # the last run's folder is there
    rows = page.get_by_role("table", name="Stored backups").locator("tbody tr")
    expect(rows.first).to_contain_text(new, timeout=PATIENCE_MS)
    expect(rows.last).to_contain_text(old)
    dialog = page.locator("dialog")
    rows.last.click()
    expect(dialog.locator("pre")).to_contain_text(f"--id {old}")
    dialog.get_by_role("button", name="Verify…").click()
    dialog.get_by_role("button", name="Verify", exact=True).click()
    expect(dialog).to_contain_text("Whole: 1 backup,", timeout=PATIENCE_MS)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Prune…").click()
    dialog.get_by_label("Keep the newest").fill("1")
    dialog.get_by_role("button", name="Look", exact=True).click()
    expect(dialog.locator("pre")).to_have_text(old, timeout=PATIENCE_MS)
    expect(rows).to_have_count(2)  # nothing went yet
    dialog.get_by_label("Keep the newest").fill("2")
    expect(dialog.get_by_role("status")).to_have_count(0)  # that was another question
    dialog.get_by_role("button", name="Look", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("0 backups", timeout=PATIENCE_MS)
    dialog.get_by_label("Keep the newest").fill("1")
    dialog.get_by_role("checkbox").uncheck()
    expect(dialog.get_by_role("button", name="Delete", exact=True)).to_be_enabled()
    expect(dialog.get_by_role("status")).to_have_count(0)
    act(page, "Delete")
    expect(rows).to_have_count(1, timeout=PATIENCE_MS)
    expect(rows).to_contain_text(new)


def test_damage_of_stored_backups_is_said_and_so_is_a_store_that_cannot_be_read(office, staffed):
    folder = staffed.folder / "damaged"
    page = office.go("backups")
    make_backup(page, staffed, folder)
    next(path for path in (folder / "objects").rglob("*") if path.is_file()).unlink()
    office.go("backups?tab=stored")
    page.get_by_label("Where").fill(str(folder))
    page.get_by_role("button", name="Look", exact=True).click()
    page.get_by_role("button", name="Verify all…").click(timeout=PATIENCE_MS)
    dialog = page.locator("dialog")
    dialog.get_by_role("button", name="Verify", exact=True).click()
    expect(dialog.locator(".problem").first).to_contain_text("missing", timeout=PATIENCE_MS)
    expect(dialog).to_contain_text("in 1 backup,")
    page.keyboard.press("Escape")
    page.get_by_label("Where").fill("nowhere")
    page.get_by_role("button", name="Look", exact=True).click()
    expect(page.locator("main .problem")).to_contain_text("whole path", timeout=PATIENCE_MS)
    expect(page.get_by_role("table", name="Stored backups")).to_have_count(0)
    office.complaints.clear()  # the browser notes each answer of 400 and above


def test_a_viewer_is_not_asked_for_a_store_of_backups(staffed, visit):
    page = visit(staffed).go("backups?tab=stored")
    expect(page.locator("main")).to_contain_text("Only an administrator looks")
    assert page.get_by_role("button", name="Look").count() == 0
