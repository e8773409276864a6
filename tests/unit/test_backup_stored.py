"""Stores of backups over the API: what is there, is it whole, what can go, what is wrong."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest

from onelog.backup.stored import ListStored, StoredBackups
from onelog.base.clock import SystemClock
from onelog.base.errors import Closed, Conflict
from onelog.broker.stored_backups import LOOKS_MAX, StoreLooks
from tests.support.admin import admin_api
from tests.support.backups import back_up, flip, sent_files
from tests.support.brokers import say


@pytest.fixture
async def api(tmp_path):
    async with admin_api(tmp_path / "data", clock=SystemClock()) as found:
        yield found


def at(store, verb: str) -> str:
    return f"/stored-backups/{quote(str(store), safe='')}/{verb}"


async def test_backups_are_listed_checked_and_pruned(api, tmp_path):
    store = tmp_path / "store"
    runs = []
    for value in ("one", "two"):
        await say(api.broker, "t", value)
        runs.append((await back_up(api.broker, str(store))).id)
    listed = (await api.ask("POST", at(store, "list"), {})).json()
    assert ([row["id"] for row in listed["items"]], listed["problems"]) == (runs, [])
    one = (await api.ask("POST", at(store, "verify"), {"id": runs[0]})).json()
    assert (one["backups"], one["problems"]) == (1, [])
    look = {"dry_run": True, "keep": 1}
    assert (await api.ask("POST", at(store, "prune"), look)).json()["backups"] == runs[:1]
    young = {"older_than_ms": 3_600_000}
    assert (await api.ask("POST", at(store, "prune"), young)).json()["backups"] == []
    assert (await api.ask("POST", at(store, "prune"), {})).json()["backups"] == runs[:1]
    listed = (await api.ask("POST", at(store, "list"), {})).json()
    assert [row["id"] for row in listed["items"]] == runs[1:]
    for name, size in sent_files(store).items():
        if name.startswith("objects/"):
            flip(store / name, size // 2)
    found = (await api.ask("POST", at(store, "verify"), {})).json()["problems"]
    assert "is damaged" in found[0]


async def test_bad_questions_have_exact_answers(api, tmp_path):
    empty, file = tmp_path / "empty", tmp_path / "file"
    file.write_bytes(b"")
    absent = "20000101T000000000Z-000000"
    asked = {
        "a folder that is not whole": ("relative", "list", {}, 400, "whole path"),
        "no such store": ("s4://bucket", "list", {}, 400, "is no store"),
        "options of a folder": (empty, "list", {"options": {"a": "b"}}, 400, "no options"),
        "an unknown field": (empty, "list", {"id": "x"}, 400, "id"),
        "an id that is none": (empty, "verify", {"id": "../x"}, 400, "../x"),
        "nothing to check": (empty, "verify", {}, 404, "nothing was checked"),
        "an id that is not there": (empty, "verify", {"id": absent}, 404, absent),
        "keep none": (empty, "prune", {"keep": 0}, 400, "keep"),
        "no folder": (file, "prune", {}, 409, str(file)),
    }
    for name, (store, verb, body, status, told) in asked.items():
        answer = await api.ask("POST", at(store, verb), body)
        assert answer.status_code == status, (name, answer.text)
        assert told in answer.json()["error"]["message"], name
    assert (await api.ask("POST", at(empty, "list"), {})).json()["items"] == []


async def test_looks_are_bounded_and_end_with_the_broker(tmp_path):
    looks = StoreLooks()
    question = ListStored(url=str(tmp_path))
    first = [asyncio.create_task(looks.ask(question, StoredBackups)) for _ in range(LOOKS_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(Conflict, match="under way"):
        await looks.ask(question, StoredBackups)
    assert [(await look).items for look in first] == [()] * LOOKS_MAX
    looks.close()
    with pytest.raises(Closed):
        await looks.ask(question, StoredBackups)
