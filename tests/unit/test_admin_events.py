"""Live events of the admin API: rates, alarms, the tail of a filter, and slow clients."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from onelog.admin.api.declaring import ADMIN, VIEWER, ApiCall, Caller
from onelog.admin.api.events import LAG_MAX, STREAMS_MAX, EventQuery, EventStreams
from onelog.base.clock import SystemClock
from onelog.base.errors import InvalidName, NotAuthenticated, NotAuthorized, QuotaExceeded
from onelog.security.roles import AdminRole
from tests.support.access import rule
from tests.support.admin import admin_api
from tests.support.brokers import say

DEADLINE_S = 20.0


@pytest.fixture
async def api(tmp_path):
    async with admin_api(tmp_path) as found:
        found.events = EventStreams(found.desk, SystemClock())
        yield found


def asked(recheck=None, **query) -> ApiCall:
    caller = Caller("joe", VIEWER, "token")
    return ApiCall({}, EventQuery(**query), None, caller, "127.0.0.1", False, recheck=recheck)


def decoded(data: bytes) -> list[tuple[str, dict]]:
    found = []
    for part in data.decode().strip().split("\n\n"):
        name, body = part.split("\n", 1)
        found.append((name.removeprefix("event: "), json.loads(body.removeprefix("data: "))))
    return found


async def next_named(source, *names: str) -> list[tuple[str, dict]]:
    """The next events of these names."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = [row for row in decoded(await anext(source)) if row[0] in names]
            if found:
                return found


async def test_rates_come_at_each_interval_and_alarms_when_they_change(api):
    source = await api.events.follow(asked(interval_ms=250))
    first = decoded(await anext(source))
    assert [name for name, _body in first] == ["rates", "alarms"]
    assert first[1][1] == {"status": "ok", "alarms": []}
    assert [name for name, _body in decoded(await anext(source))] == ["rates"]
    api.desk.troubles.stand("disk-full", "main", "no room", blocks=False)
    (event,) = await next_named(source, "alarms")
    assert event[1]["alarms"][0]["kind"] == "disk-full"
    await source.aclose()
    assert api.events.open == 0


async def test_the_tail_of_a_filter_shows_what_comes_and_nothing_else(api):
    source = await api.events.follow(asked(interval_ms=60_000, filter="a/+"))
    await anext(source)
    waiting = asyncio.ensure_future(next_named(source, "message"))
    await asyncio.sleep(0)
    await say(api.broker, "b", "no")
    await say(api.broker, "a/1", "yes")
    (event,) = await waiting
    assert (event[1]["topic"], event[1]["value_text"]) == ("a/1", "yes")
    await source.aclose()
    assert [row for row in api.broker.cursors.open_cursors() if row.name.startswith("tail")] == []


async def test_who_may_have_a_part_of_a_filter_sees_that_part_by_the_rules_of_now(api):
    access = api.broker.access
    await access.change(
        [
            rule("allow user:joe subscribe topic:a/#"),
            rule("deny user:joe subscribe topic:a/secret"),
        ],
        [],
    )
    with pytest.raises(NotAuthorized):
        await api.events.follow(asked(filter="a/secret"))
    source = await api.events.follow(asked(interval_ms=60_000, filter="#"))
    assert decoded(await anext(source))[0][0] == "rates"
    seen = []
    for denied in ("b", "a/2"):
        waiting = asyncio.ensure_future(next_named(source, "message", "end"))
        await asyncio.sleep(0)
        for topic in ("b", "a/secret", denied, "a/1"):
            await say(api.broker, topic, "text")
        seen += [body["topic"] for _name, body in await waiting]
        await access.change([rule("deny user:joe subscribe topic:a/2")], [])
    await source.aclose()
    assert set(seen) == {"a/1"}


async def test_a_client_that_does_not_read_skips_and_is_told_how_much(api):
    """I8: a slow client costs bounded memory."""
    source = await api.events.follow(asked(interval_ms=60_000, filter="a"))
    await anext(source)
    for _ in range(3):
        await say(api.broker, "a", *["x"] * LAG_MAX)
    (event,) = await next_named(source, "skipped")
    assert event[1]["offsets"] == 2 * LAG_MAX
    await source.aclose()


async def test_a_stream_ends_when_its_caller_may_no_longer_look(api):
    def gone() -> Caller:
        raise NotAuthenticated("revoked")

    source = await api.events.follow(asked(recheck=gone))
    with pytest.raises(StopAsyncIteration):
        await anext(source)


async def test_a_role_that_is_taken_away_shows_no_more_messages_not_even_in_this_interval(api):
    await api.broker.access.change([rule("allow user:joe subscribe topic:a")])
    now = [Caller("joe", ADMIN, "token")]
    call = replace(asked(lambda: now[0], interval_ms=60_000, filter="#"), caller=now[0])
    source = await api.events.follow(call)
    assert decoded(await anext(source))[0][0] == "rates"
    await say(api.broker, "b", "an administrator sees it")
    (event,) = await next_named(source, "message")
    assert event[1]["topic"] == "b"
    now[0] = Caller("joe", VIEWER, "token")
    waiting = asyncio.ensure_future(next_named(source, "message"))
    await asyncio.sleep(0)
    for topic in ("b", "a"):
        await say(api.broker, topic, "text")
    assert [body["topic"] for _name, body in await waiting] == ["a"]
    now[0] = Caller("joe", AdminRole.NONE, "token")
    await say(api.broker, "a", "text")
    with pytest.raises(StopAsyncIteration):
        await anext(source)


async def test_a_stream_ends_when_the_broker_stops(api):
    source = await api.events.follow(asked(interval_ms=60_000))
    await anext(source)
    waiting = asyncio.ensure_future(anext(source))
    await asyncio.sleep(0)
    await api.desk.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, DEADLINE_S)


async def test_streams_are_bounded_and_filters_are_checked_before_the_answer_begins(api):
    with pytest.raises(InvalidName):
        await api.events.follow(asked(filter="a/#/b"))
    sources = [await api.events.follow(asked(interval_ms=60_000)) for _ in range(STREAMS_MAX)]
    for source in sources:
        await anext(source)
    with pytest.raises(QuotaExceeded):
        await api.events.follow(asked())
    for source in sources:
        await source.aclose()
    assert api.events.open == 0
