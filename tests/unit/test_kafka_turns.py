"""Requests that name tens of thousands of topics and partitions: others are served meanwhile."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kio.index import load_request_schema

from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.producing import WORK_OF_A_TURN
from onelog.protocols.kafka.turns import ROWS
from tests.support.kafka_admin import desk as admin_desk
from tests.support.kafka_entities import entity
from tests.support.kafka_hub import batch
from tests.support.kafka_hub import desk as wire_desk
from tests.support.turns import Others

K = ApiKey
E = ErrorCode
MANY = 40 * ROWS
TURNS = 30
"""How often others are served while `MANY` rows are, at least."""


@pytest.fixture
async def admin(tmp_path):
    async with admin_desk(tmp_path) as made:
        yield made


@pytest.fixture
async def wire(tmp_path):
    async with wire_desk(tmp_path) as made:
        yield made


@pytest.fixture
def looked_for(monkeypatch):
    """The names that were looked for."""

    def watch(hub: Any) -> list[str]:
        names: list[str] = []
        find = hub.topics.views.find
        monkeypatch.setattr(hub.topics.views, "find", lambda name: names.append(name) or find(name))
        return names

    return watch


def topics(name: str, rows: str | None, row: Any) -> list[dict[str, Any]]:
    """Many topics that are not there, with one partition each."""
    return [
        {name: f"stranger{number}"} | ({} if rows is None else {rows: [row]})
        for number in range(MANY)
    ]


NAMED = {
    K.LIST_OFFSETS: {"topics": topics("name", "partitions", {"timestamp": -1})},
    K.OFFSET_FOR_LEADER_EPOCH: {"topics": topics("topic", "partitions", {})},
    K.METADATA: {"topics": topics("name", None, None), "allow_auto_topic_creation": False},
    K.OFFSET_COMMIT: {"group_id": "g", "topics": topics("name", "partitions", {})},
    K.TXN_OFFSET_COMMIT: {"group_id": "g", "topics": topics("name", "partitions", {})},
    K.ADD_PARTITIONS_TO_TXN: {"v3_and_below_topics": topics("name", "partitions", 0)},
    K.DELETE_TOPICS: {"topics": topics("name", None, None)},
    K.DELETE_RECORDS: {"topics": topics("name", "partitions", {})},
    K.ELECT_LEADERS: {"topic_partitions": topics("topic", "partitions", 0)},
    K.ALTER_PARTITION_REASSIGNMENTS: {"topics": topics("name", "partitions", {})},
    K.DESCRIBE_PRODUCERS: {"topics": topics("name", "partition_indexes", 0)},
    K.DESCRIBE_TOPIC_PARTITIONS: {"topics": topics("name", None, None)},
}


@pytest.mark.parametrize("key", NAMED, ids=lambda key: key.name)
async def test_a_request_of_many_topics_lets_others_have_their_turn(admin, key) -> None:
    async with Others() as others:
        await admin.ask(key, **NAMED[key])
    assert others.turns >= TURNS


OF_ONE = {
    K.LIST_OFFSETS: ("topics", "name", "partitions", "partition_index"),
    K.OFFSET_FOR_LEADER_EPOCH: ("topics", "topic", "partitions", "partition"),
    K.OFFSET_COMMIT: ("topics", "name", "partitions", "partition_index"),
    K.ADD_PARTITIONS_TO_TXN: ("v3_and_below_topics", "name", "partitions", None),
    K.DELETE_RECORDS: ("topics", "name", "partitions", "partition_index"),
    K.ELECT_LEADERS: ("topic_partitions", "topic", "partitions", None),
    K.ALTER_PARTITION_REASSIGNMENTS: ("topics", "name", "partitions", "partition_index"),
    K.DESCRIBE_PRODUCERS: ("topics", "name", "partition_indexes", None),
}


@pytest.mark.parametrize("key", OF_ONE, ids=lambda key: key.name)
async def test_a_topic_that_is_not_there_is_looked_for_once(admin, looked_for, key) -> None:
    names = looked_for(admin.hub)
    field, name, rows, number = OF_ONE[key]
    partitions = [at if number is None else {number: at} for at in range(MANY)]
    await admin.ask(key, **{field: [{name: "stranger", rows: partitions}]})
    assert names == ["stranger"]


async def test_a_produce_of_many_topics_lets_others_have_their_turn(wire, looked_for) -> None:
    names, client = looked_for(wire.hub), wire.client()
    records = batch(b"x")
    rows: list[dict[str, Any]] = [
        {"name": f"stranger{number}", "partition_data": [{"index": 0, "records": records}]}
        for number in range(2 * WORK_OF_A_TURN)
    ]
    rows += [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    rows += [
        {"name": "stranger", "partition_data": [{"index": at} for at in range(2 * WORK_OF_A_TURN)]}
    ]
    version = APIS[K.PRODUCE].last
    schema = load_request_schema(int(K.PRODUCE), version)
    body = entity(schema, {"acks": -1, "topic_data": rows})
    async with Others() as others:
        client.send(client.frame(K.PRODUCE, version, body), client.produce(batch(b"y")))
        (_, answer), (_, last) = await client.wait_for(2)
    assert others.turns >= 20
    codes = [row.error_code for topic in answer.responses for row in topic.partition_responses]
    unknown = E.unknown_topic_or_partition
    assert codes == [unknown] * 2 * WORK_OF_A_TURN + [E.none] + [unknown] * 2 * WORK_OF_A_TURN
    assert names.count("stranger") == 1
    assert last.responses[0].partition_responses[0].base_offset == 1, "what came later is behind"


@pytest.mark.warm
async def test_a_fetch_of_many_topics_lets_others_have_their_turn(wire) -> None:
    client, version = wire.client(), 12
    client.send(client.produce(batch(b"x")))
    await client.wait_for(1)
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    part |= {"current_leader_epoch": -1, "last_fetched_epoch": -1}
    rows = [{"topic": f"stranger{number}", "partitions": [part]} for number in range(MANY)]
    rows += [{"topic": "t", "partitions": [part]}]
    asked = {"max_wait": 100, "min_bytes": 1, "max_bytes": 1000, "topics": rows}
    body = entity(load_request_schema(int(K.FETCH), version), asked)
    async with Others() as others:
        client.send(client.frame(K.FETCH, version, body))
        ((_, answer),) = await client.wait_for(1)
    assert others.turns >= TURNS
    first, last = answer.responses[0].partitions[0], answer.responses[-1].partitions[0]
    assert (first.error_code, last.error_code) == (E.unknown_topic_or_partition, E.none)
    assert last.records


async def test_unknown_ids_do_not_look_through_all_named_views_each_time(admin) -> None:
    views = admin.hub.views
    made = [await admin.create(f"v{n}", onelog__filter=f"s{n}/#") for n in range(3)]
    looks: list[int] = []
    listed = views.listed
    views.listed = lambda: looks.append(1) or listed()
    for _ in range(100):
        assert views.by_id(uuid.uuid4()) is None
    assert len(looks) == 1
    views._ids.clear()  # as when ten thousand others were asked for since
    views._views.clear()
    assert [views.by_id(row.topic_id).name for row in made] == ["v0", "v1", "v2"]
    await admin.delete("v1")
    later = await admin.create("v9", onelog__filter="s9/#")
    views._ids.clear()
    found = [views.by_id(row.topic_id) for row in (*made, later)]
    assert [view and view.name for view in found] == ["v0", None, "v2", "v9"]


@pytest.mark.parametrize("version", [10, 11])
async def test_metadata_by_id_is_refused_where_no_answer_can_be_without_a_name(
    admin, version
) -> None:
    rows = [{"topic_id": uuid.uuid4(), "name": None}, {"topic_id": None, "name": "t"}]
    told = await admin.ask(K.METADATA, version, topics=rows)
    assert [(row.error_code, row.name) for row in told.topics] == [
        (E.invalid_request, ""), (E.invalid_request, "t"),
    ]  # fmt: skip


async def test_a_cursor_before_the_first_partition_is_refused_for_each_topic(admin) -> None:
    cursor = {"topic_name": "t", "partition_index": -1}
    told = await admin.ask(
        K.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "t"}, {"name": "u"}], cursor=cursor
    )
    assert [row.error_code for row in told.topics] == [E.invalid_request] * 2
