"""Passes of the control socket: how long they count, and how many there are."""

from __future__ import annotations

import pytest

from onelog.admin.passes import LIFETIME_S, MARK, PASSES_MAX, LocalPasses
from onelog.base.clock import ManualClock
from onelog.base.errors import NotAuthenticated
from tests.support.admin import admin_api


def test_a_pass_counts_until_its_hour_is_over():
    clock = ManualClock()
    passes = LocalPasses(clock)
    text = passes.issue()
    assert text.startswith(MARK)
    assert passes.check(text) == clock.now_ms() + LIFETIME_S * 1000
    clock.advance(LIFETIME_S)
    with pytest.raises(NotAuthenticated, match="run the command again"):
        passes.check(text)
    assert len(passes) == 0


def test_a_value_that_nobody_issued_is_void():
    passes = LocalPasses(ManualClock())
    passes.issue()
    for wrong in (MARK, f"{MARK}x", "\ud800"):
        with pytest.raises(NotAuthenticated):
            passes.check(wrong)


def test_the_oldest_pass_makes_room_for_the_next():
    passes = LocalPasses(ManualClock())
    first, second = passes.issue(), passes.issue()
    for _ in range(PASSES_MAX - 1):
        passes.issue()
    assert len(passes) == PASSES_MAX
    with pytest.raises(NotAuthenticated):
        passes.check(first)
    passes.check(second)


async def test_a_pass_is_worth_the_role_admin_and_a_wrong_one_nothing(tmp_path):
    async with admin_api(tmp_path) as api:
        shown = {"Authorization": f"Bearer {api.desk.passes.issue()}"}
        who = (await api.get("/session", headers=shown)).json()
        assert (who["name"], who["role"], who["proof"]) == ("local", "admin", "token")
        wrong = await api.get("/session", headers={"Authorization": f"Bearer {MARK}x"})
        assert wrong.status_code == 401
