"""Readings of many sources: one source at a time, and nothing is missed."""

from __future__ import annotations

import pytest

from onelog.admin.api import peeking
from onelog.broker import LOCAL, Message
from tests.support.admin import admin_api

TOPICS = 40


@pytest.fixture
async def api(tmp_path):
    async with admin_api(tmp_path) as found:
        for number in range(3 * TOPICS):
            topic = f"site/{number % TOPICS}"
            await found.broker.publish(Message(topic, b"%d" % number), principal=LOCAL)
        yield found


def opened(api):
    sources = api.broker.cursors.sources(["site/#"]).sources
    assert len(sources) > 1
    return api.broker.cursors.reading(["site/#"], [])


async def test_a_read_of_one_source_ends_there_and_turns_bring_all_records(api):
    reading = opened(api)
    seen: list[bytes | None] = []
    while reading.is_behind():
        rows = reading.read(7, sources_max=1)
        assert len({index for index, _record in rows}) <= 1
        assert len(rows) <= 7
        seen += [record.value for _index, record in rows]
    assert sorted(seen) == sorted(b"%d" % number for number in range(3 * TOPICS))
    reading.close()


async def test_a_read_without_such_a_bound_takes_records_of_all_sources(api):
    reading = opened(api)
    rows = reading.read(1000)
    assert len({index for index, _record in rows}) > 1
    assert len(rows) == 3 * TOPICS
    reading.close()


@pytest.mark.parametrize("limit", [1, 20, 100])
async def test_the_newest_messages_are_the_same_however_many_pieces_it_takes(
    api, limit, monkeypatch
):
    found = []
    for records in (1, 5, 1000):
        monkeypatch.setattr(peeking, "LOOK_RECORDS", records)
        body = (await api.get(f"/messages?filter=site/%23&limit={limit}")).json()
        found.append([row["value_text"] for row in body["items"]])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == limit
