"""Names of filters, and settings as people read them, in a real Chromium."""

from __future__ import annotations

import re

from playwright.sync_api import expect


def test_a_filter_gets_a_name_and_loses_it(empty, visit):
    page = visit(empty).go("topics?tab=views")
    page.get_by_role("button", name="New view").click()
    page.get_by_label("Name").fill("all-sensors")
    page.get_by_label("Filter").fill("sensors/#")
    page.get_by_role("button", name="Make it").click()
    row = page.get_by_role("table", name="Views").locator("tbody tr", has_text="all-sensors")
    expect(row).to_contain_text("sensors/#")
    assert empty.ask("GET", "/views/all-sensors")["filter"] == "sensors/#"
    row.get_by_role("button", name="Remove…").click()
    page.locator("dialog").get_by_role("button", name="Remove", exact=True).click()
    expect(page.locator("main")).to_contain_text("No filter has a name yet")


def test_settings_are_written_as_people_read_them(empty, visit):
    empty.ask("POST", "/streams", {"name": "telemetry", "captures": ["sensors/+/telemetry"]})
    page = visit(empty).go("streams?name=telemetry")
    facts = page.locator(".card", has_text="Settings").locator("dl > div")
    for name, said in {
        "retention.age_ms": "7 d",
        "retention.bytes": "no bound",
        "segment_bytes": "256 MiB",
        "retention.consumed": "no",
        "tier.local_bytes": "as all records",
        "captures": "sensors/+/telemetry",
        "compression.gzip_level": "-1",
    }.items():
        fact = facts.filter(has=page.locator("dt", has_text=re.compile(f"^{re.escape(name)}$")))
        expect(fact.locator("dd")).to_have_text(said)


def test_a_setting_that_is_hot_changes_while_the_broker_runs(empty, visit):
    page = visit(empty).go("nodes")
    page.get_by_label("Search keys").fill("security.bans")
    rows = page.get_by_role("table", name="Configuration").locator("tbody tr")
    row = rows.filter(has_text="security.bans.failures")
    expect(rows.filter(has_text="security.bans.exempt").get_by_role("button")).to_have_count(0)
    row.get_by_role("button", name="Change…").click()
    page.locator("dialog").get_by_label("Value").fill("3")
    page.locator("dialog").get_by_role("button", name="Change it").click()
    expect(row).to_contain_text("api")
    (told,) = empty.ask("GET", "/config?search=security.bans.failures")["items"]
    assert (told["value"], told["source"]) == (3, "api")
    page.get_by_label("Search keys").fill("log.level")
    rows.filter(has_text="log.level").get_by_role("button", name="Change…").click()
    page.locator("dialog").get_by_label("Value").select_option("warning")
    page.locator("dialog").get_by_role("button", name="Change it").click()
    expect(rows.filter(has_text="log.level")).to_contain_text("warning")
    empty.ask("PATCH", "/config", {"log_level": "info"})
    empty.ask("PATCH", "/config", {"ban_failures": 10})
