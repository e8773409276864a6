"""The page of storage in a real Chromium: what lies where, what waits, what is wrong, and acts."""

from __future__ import annotations

from collections.abc import Iterator

import deltalake
import pytest
from playwright.sync_api import Page, expect

from tests.console.browsing import PHONE
from tests.console.scene import Scene

LONG_MS = 60_000


@pytest.fixture(scope="module")
def stored(built: None, tmp_path_factory) -> Iterator[Scene]:
    found = Scene(tmp_path_factory.mktemp("stored"), stored=True)
    yield found
    assert found.close() == 0


def row_of(page: Page, name: str):
    return page.get_by_role("table", name="Streams in the store").locator("tr", has_text=name)


def act(page: Page, button: str, verb: str) -> None:
    page.get_by_role("button", name=button).click()
    page.locator("dialog").get_by_role("button", name=verb, exact=True).click()


def test_a_store_without_streams_says_how_a_stream_gets_there(stored, visit):
    page = visit(stored).go("storage")
    expect(page.locator("main")).to_contain_text("No stream has history in the object store yet")
    expect(page.locator("main")).to_contain_text("onelog stream alter main --tier log")


def test_streams_and_the_store_are_shown_with_their_numbers(stored, visit):
    stored.keep("machines", tier="log", local_bytes=0)
    stored.keep("ledger", engine="object")
    page = visit(stored).go("storage")
    expect(row_of(page, "machines")).to_contain_text("copying")
    expect(row_of(page, "machines")).to_contain_text("log")
    expect(row_of(page, "machines")).to_contain_text("KiB")
    expect(row_of(page, "ledger")).to_contain_text("in the store")
    stats = page.locator(".stats")
    for words in ("answers", "put", "for a month like it", "received"):
        expect(stats).to_contain_text(words)
    assert page.locator(".problem").count() == 0


@pytest.mark.parametrize("kind", ["light", "dark"])
def test_it_fits_a_phone(stored, visit, kind):
    visitor = visit(stored, viewport=PHONE, theme=kind)
    page = visitor.go("storage")
    row_of(page, "machines").click()
    expect(page.locator("dialog")).to_contain_text("Waits for the store")
    assert visitor.overflows() <= 0


def test_the_keyboard_leads_there_and_into_a_stream_and_back(stored, visit):
    page = visit(stored).go("overview")
    page.keyboard.press("g")
    page.keyboard.press("h")
    expect(page.locator("h1")).to_have_text("Storage")
    row_of(page, "ledger").focus()
    page.keyboard.press("ArrowDown")
    expect(row_of(page, "machines")).to_be_focused()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("machines")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_history_moves_now_and_the_dialog_shows_each_partition(stored, visit):
    stored.fill("machines", 7)
    page = visit(stored).go("storage")
    row_of(page, "machines").click()
    parts = page.get_by_role("table", name="Partitions").locator("tbody tr").first
    expect(parts).to_contain_text("47")
    act(page, "Move now…", "Move now")
    expect(page.locator("body")).to_contain_text("7 records moved")


def test_a_table_that_was_rewritten_is_shown_and_taken_over(stored, visit):
    stored.keep("events", 20, tier="delta", local_bytes=0)
    stored.fill("events", 20)
    stored.ask("POST", "/streams/events/tier/offload")
    deltalake.DeltaTable(str(stored.folder / "store" / "lake" / "events")).optimize.compact()
    stored.fill("events", 3)
    visitor = visit(stored)
    page = visitor.go("storage")
    row_of(page, "events").click()
    act(page, "Move now…", "Move now")
    problem = page.locator("dialog .problem")
    expect(problem).to_contain_text("somebody rewrote or deleted rows", timeout=LONG_MS)
    visitor.complaints.clear()  # the browser notes each answer of 400 and above
    page.locator("dialog").get_by_role("button", name="Cancel").click()
    page.keyboard.press("Escape")
    expect(row_of(page, "events")).to_contain_text("halted")
    row_of(page, "events").click()
    expect(page.locator("dialog")).to_contain_text("onelog store adopt")
    act(page, "Take over rewritten rows…", "Prove and take over")
    expect(page.locator("body")).to_contain_text("OneLog's own again", timeout=LONG_MS)
    expect(row_of(page, "events")).to_contain_text("copying")


def test_the_store_is_checked_and_swept(stored, visit):
    page = visit(stored).go("storage")
    act(page, "Check…", "Check")
    expect(page.locator("body")).to_contain_text("keeps what a log needs", timeout=LONG_MS)
    act(page, "Sweep…", "Look")
    expect(page.locator("body")).to_contain_text("A sweep would delete 0 of", timeout=LONG_MS)


def test_a_tier_is_turned_off_and_its_history_comes_back(stored, visit):
    page = visit(stored).go("storage")
    row_of(page, "machines").click()
    act(page, "Bring back…", "Bring back")
    expect(row_of(page, "machines")).to_contain_text("off")
    stored.until(
        "/store/streams", lambda found: all(
            row["cold_bytes"] == 0 for row in found["items"] if row["stream"] == "machines"
        )
    )  # fmt: skip


def test_a_tier_is_turned_off_and_its_history_in_the_store_deleted(stored, visit):
    stored.keep("spent", 5, tier="log", local_bytes=0)
    page = visit(stored).go("storage")
    row_of(page, "spent").click()
    act(page, "Delete history…", "Delete")
    expect(page.locator("body")).to_contain_text("begins with what is on the disk")
    expect(row_of(page, "spent")).to_contain_text("off")
    stored.until("/streams/spent/partitions", lambda found: found["items"][0]["start_offset"] == 5)


def test_a_viewer_sees_everything_and_changes_nothing(stored, visit):
    stored.ask("POST", "/users", {"name": "ada", "password": "a long password", "role": "admin"})
    page = visit(stored).go("storage")
    expect(row_of(page, "events")).to_contain_text("delta")
    assert page.get_by_role("button", name="Sweep…").count() == 0
    row_of(page, "events").click()
    expect(page.locator("dialog")).to_contain_text("Cold reads")
    assert page.get_by_role("button", name="Move now…").count() == 0
