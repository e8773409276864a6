"""Parts of the management API without a socket: rates, values of tables, lists in turns."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from starlette.requests import Request

from onelog.admin.rabbitmq.listing import TURN, PageError, many, one
from onelog.admin.rabbitmq.requests import BadRequest
from onelog.base.clock import ManualClock
from onelog.base.errors import InvalidRequest
from onelog.protocols.amqp.management.rates import SAMPLE_S, Rates
from onelog.protocols.amqp.management.topology_rows import is_named, properties_key
from onelog.protocols.amqp.management.values import checked_table, jsonable
from onelog.queues.exchanges import Binding, Destination
from onelog.record.tables import DEPTH_MAX, decode_table, encode_table
from tests.support import amqp


class Thing:
    """Something that counts."""


# -- rates


def test_a_rate_is_what_happened_between_two_looks():
    clock, thing = ManualClock(), Thing()
    rates = Rates(clock)
    assert rates.detailed(thing, "stats", {"ack": 5}) == {"ack": 5, "ack_details": {"rate": 0.0}}
    clock.advance(10)
    assert rates.detailed(thing, "stats", {"ack": 25})["ack_details"] == {"rate": 2.0}


def test_looks_that_follow_each_other_see_the_same_rate():
    clock, thing = ManualClock(), Thing()
    rates = Rates(clock)
    rates.detailed(thing, "stats", {"ack": 0})
    clock.advance(SAMPLE_S)
    rates.detailed(thing, "stats", {"ack": 10})
    clock.advance(SAMPLE_S / 2)
    found = rates.detailed(thing, "stats", {"ack": 1000})
    assert found == {"ack": 1000, "ack_details": {"rate": 10 / SAMPLE_S}}


def test_samples_go_with_what_they_are_of():
    rates, thing = Rates(ManualClock()), Thing()
    rates.detailed(thing, "stats", {"ack": 1})
    assert len(rates._samples) == 1
    del thing
    assert len(rates._samples) == 0


# -- passwords


async def test_a_weak_password_is_refused_by_a_user_and_by_definitions(tmp_path):
    async with amqp.serving(tmp_path) as node, amqp.management(node) as client:
        users, boss = node.hub.authenticator.users, ("boss", "old")
        await users.add("boss", "old", administrator=True)  # goes on to log in
        await users.add("dave", "old")
        for name, password, told in (
            ("ann", "seven77", "8 char"),
            ("LongName", "longname", "name"),
        ):
            body = {"password": password, "tags": ""}
            refused = await client.put(f"/api/users/{name}", json=body, auth=boss)
            assert (refused.status_code, refused.json()["error"]) == (400, "bad_request")
            assert told in refused.json()["reason"]
        own = {"password": "new", "tags": ""}
        assert (
            await client.put("/api/users/dave", json=own, auth=("dave", "old"))
        ).status_code == 400
        assert (
            await client.put("/api/users/ann", json=own, auth=("dave", "old"))
        ).status_code == 401
        queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        weak = {"users": [{"name": "ann", "password": "seven77"}], "queues": [queue]}
        refused = await client.post("/api/definitions", json=weak, auth=boss)
        assert (refused.status_code, "'ann'" in refused.json()["reason"]) == (400, True)
        assert (await client.get("/api/queues/%2F/q", auth=boss)).status_code == 404, (
            "all or nothing"
        )
        known = {"users": [{"name": "dave", "password": "old"}]}
        assert (await client.post("/api/definitions", json=known, auth=boss)).status_code == 204


# -- values


def test_a_table_of_json_is_what_amqp_gives_back():
    table = {"a": 1, "b": [True, 1.5, {"c": "x"}], "ü": "ß", "low": -(2**63)}
    assert decode_table(encode_table(checked_table(table))) == table


DEEP: Any = 1
for _ in range(DEPTH_MAX + 1):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "table",
    [{"a": None}, {"a": [None]}, {"a": {"b": None}}, {"a": 2**63}, {"x" * 256: 1}, {"a": DEEP}],
    ids=["null", "null in a list", "null in a table", "a large number", "a long name", "deep"],
)
def test_what_no_table_holds_is_refused(table):
    with pytest.raises(InvalidRequest):
        checked_table(table)


def test_every_value_of_a_table_is_json():
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    table = {
        "t": moment,
        "b": b"\xff",
        "d": Decimal("1.5"),
        "s": "\udcff",
        "l": [None, bytearray()],
    }
    shown = jsonable(table)
    assert json.loads(json.dumps(shown).encode()) == shown
    assert (shown["t"], shown["d"], shown["l"]) == (1767225600, 1.5, [None, ""])


# -- bindings


def binding(key: str = "", **arguments: Any) -> Binding:
    to = Destination("queue", "q")
    return Binding(source="e", destination=to, routing_key=key, arguments=arguments)


def test_bindings_between_two_ends_never_share_a_key():
    keys = ["", "~", "a", "a~", "a b", "a+b", "a%20b", "ä", "/"]
    arguments: list[dict[str, Any]] = [{}, {"x": 1}, {"x": "1"}, {"x": 2}]
    made = [binding(key, **row) for key in keys for row in arguments]
    assert len({properties_key(row) for row in made}) == len(made)


def test_a_binding_is_found_by_its_key_escaped_once_or_not_at_all():
    row = binding("a.#")
    assert is_named(row, "a.%23")
    assert is_named(row, "a.#")
    assert not is_named(row, "a.b")


# -- lists


def request(query: str = "") -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": [], "method": "GET"})


def numbered(count: int) -> Iterator[dict[str, Any]]:
    return ({"name": f"q{n:05}", "n": n % 7, "deep": {"a": n, "b": 0}} for n in range(count))


async def listed(query: str, count: int = 10, *, paged: bool = True) -> Any:
    return json.loads(bytes((await many(request(query), numbered(count), paged=paged)).body))


async def test_a_long_list_gives_others_their_turn():
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    rows = await listed("columns=name", 50 * TURN)
    task.cancel()
    assert len(rows) == 50 * TURN
    assert turns >= 50


async def test_columns_pick_also_from_inner_objects_and_skip_what_is_not_there():
    rows = await listed("columns=name,deep.a,none,n.x", 1)
    assert rows == [{"name": "q00000", "deep": {"a": 0}}]


async def test_one_object_has_columns_too():
    found = one(request("columns=a.b"), {"a": {"b": None, "c": 1}, "d": 2})
    assert json.loads(bytes(found.body)) == {}
    assert json.loads(bytes(one(request("columns=d"), {"d": None}).body)) == {"d": None}


async def test_pages_visit_every_row_once_in_the_order_asked_for():
    seen: list[str] = []
    for page in range(1, 5):
        found = await listed(f"page={page}&page_size=3&sort=n&sort_reverse=true&columns=name")
        seen += [row["name"] for row in found["items"]]
        assert (found["page_count"], found["total_count"], found["filtered_count"]) == (4, 10, 10)
    wanted = sorted(numbered(10), key=lambda row: row["n"], reverse=True)
    assert seen == [row["name"] for row in wanted]


async def test_values_of_any_type_can_be_sorted():
    rows: list[dict[str, Any]] = [{"v": "text"}, {"v": None}, {}, {"v": 3}, {"v": True}, {"v": [1]}]
    found = await many(request("sort=v"), rows)
    assert [row.get("v") for row in json.loads(bytes(found.body))][:2] == [None, None]


@pytest.mark.parametrize(
    "query",
    ["page=x", "page=0", "page=-1", "page=1&page_size=0", "page=1&page_size=501", "page=5",
     "page=99999999999", "page=1&use_regex=true", "page=\N{ARABIC-INDIC DIGIT ONE}"],
)  # fmt: skip
async def test_pages_that_cannot_be_are_refused(query):
    with pytest.raises((BadRequest, PageError)):
        await listed(query)


async def test_an_empty_list_has_a_first_page():
    found = await listed("page=1", 0)
    assert (found["items"], found["page_count"]) == ([], 0)


async def test_a_list_without_pages_is_whole_whatever_is_asked():
    assert len(await listed("page=2&page_size=1", 10, paged=False)) == 10
