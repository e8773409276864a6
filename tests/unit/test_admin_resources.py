"""What the admin API shows and changes, over a real broker with real hubs of every protocol."""

from __future__ import annotations

import asyncio
import base64
import typing

import msgspec
import pytest

from onelog.admin.api.settings import HOT, HotSettings
from onelog.broker import EARLIEST, LOCAL, Message, StreamConfig
from onelog.config import Config
from onelog.observe import log_level
from onelog.queues.exchanges import Binding, Destination
from onelog.queues.settings import QueueRecord
from onelog.record.headers import RETAIN
from tests.support.admin import admin_api, whole_api
from tests.support.brokers import history, say
from tests.support.mqtt import until

JOBS = Binding(source="amq.topic", destination=Destination("queue", "jobs"), routing_key="shop.#")


@pytest.fixture
async def api(tmp_path):
    async with whole_api(tmp_path) as found:
        yield found


# -- messages


async def test_the_newest_messages_of_a_filter_come_newest_first(api):
    await say(api.broker, "a/1", *map(str, range(30)))
    await say(api.broker, "a/2", "x")
    await say(api.broker, "b", *map(str, range(300)))
    body = (await api.get("/messages?filter=a/%2B&limit=5")).json()
    assert len(body["items"]) == 5
    assert {row["topic"] for row in body["items"]} <= {"a/1", "a/2"}
    body = (await api.get("/messages?filter=a/1&limit=3")).json()
    assert [row["value_text"] for row in body["items"]] == ["29", "28", "27"]


async def test_messages_are_paged_forward_from_the_start_to_the_end(api):
    await say(api.broker, "a", *map(str, range(25)))
    found, cursor = [], ""
    while cursor is not None:
        body = (await api.get(f"/messages?filter=a&start=earliest&limit=10&cursor={cursor}")).json()
        found += [row["value_text"] for row in body["items"]]
        cursor = body["next_cursor"]
    assert found == [str(number) for number in range(25)]


async def test_messages_are_found_by_offset_and_by_time(api):
    for number in range(5):
        message = Message("a", b"%d" % number, timestamp_ms=1000 * (number + 1))
        await api.broker.publish(message, principal=LOCAL)
    home = (await api.get("/topics/a")).json()
    place = f"stream={home['stream']}&partition={home['partition']}"
    body = (await api.get(f"/messages?filter=a&start=offset&{place}&offset=3")).json()
    assert [row["value_text"] for row in body["items"]] == ["3", "4"]
    body = (await api.get("/messages?filter=a&start=time&time_ms=1500")).json()
    assert [row["value_text"] for row in body["items"]] == ["1", "2", "3", "4"]
    missing = await api.get("/messages?filter=a&start=offset&stream=none&offset=3")
    assert missing.status_code == 404


async def test_bytes_that_are_no_text_are_base64_and_long_values_are_cut(api):
    await api.broker.publish(
        Message("raw", b"\xff\x00", b"\xfe", ((b"h", b"\xfd"),)), principal=LOCAL
    )
    await say(api.broker, "long", "ü" * 100)
    (row,) = (await api.get("/messages?filter=raw")).json()["items"]
    assert (row["value_text"], row["value_base64"]) == (None, base64.b64encode(b"\xff\0").decode())
    assert row["key_base64"] == base64.b64encode(b"\xfe").decode()
    assert {"name": "h", "text": None, "base64": "/Q=="} in row["headers"]
    (row,) = (await api.get("/messages?filter=long&value_bytes=7")).json()["items"]
    assert (row["value_text"], row["value_bytes"], row["truncated"]) == ("üüü", 200, True)


async def test_looking_at_messages_moves_no_cursor(api):
    """I3: reading never changes data."""
    await say(api.broker, "a", "1", "2")
    await api.broker.cursors.open_offset("mine", ["a"], start=EARLIEST, principal=LOCAL)
    before = (await api.get("/cursors/mine")).json()
    await api.get("/messages?filter=a&start=earliest")
    assert (await api.get("/cursors/mine")).json() == before
    assert len(await api.items("/cursors?search=mine")) == 1


async def test_a_message_that_is_published_is_durable_and_what_was_sent(api):
    body = {
        "topic": "a/b",
        "base64": base64.b64encode(b"\x00\xff").decode(),
        "key": "k",
        "headers": [{"name": "unit", "value": "°C"}],
        "content_type": "x/y",
        "retain": True,
    }
    answer = await api.ask("POST", "/messages", body)
    assert answer.status_code == 201
    (row,) = (await api.get("/messages?filter=a/b")).json()["items"]
    assert row["offset"] == answer.json()["offset"]
    assert row["value_base64"] == body["base64"]
    assert row["key_text"] == "k"
    assert {"name": "unit", "text": "°C", "base64": None} in row["headers"]
    (kept,) = await api.items("/mqtt/retained?filter=a/%2B")
    assert kept["topic"] == "a/b"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"topic": "a/#", "text": "x"}, 400),
        ({"topic": "$SYS/x", "text": "x"}, 403),
        ({"topic": "a", "text": "x", "base64": "eA=="}, 400),
        ({"topic": "a", "base64": "%%"}, 400),
        ({"topic": "a", "headers": [{"name": "~t", "value": "b"}]}, 400),
        ({"topic": "a", "text": "x", "other": 1}, 400),
        ({"text": "x"}, 400),
    ],
)
async def test_a_message_that_cannot_be_is_refused_and_not_written(api, body, status):
    assert (await api.ask("POST", "/messages", body)).status_code == status
    assert await history(api.broker, "#") == []


# -- topics


async def test_topics_are_found_by_filter_page_by_page_and_new_ones_come_behind(api):
    names = [f"s/{number}/t" for number in range(25)]
    for name in names:
        await say(api.broker, name, "1")
    await say(api.broker, "other", "1")
    await api.broker.streams.create(StreamConfig(name="own", captures=("own/topic",)))
    rows = await api.items("/topics?filter=s/%2B/t", limit=10)
    assert sorted(row["topic"] for row in rows) == sorted(names)
    everything = await api.items("/topics", limit=10)
    assert len(everything) == 27
    body = (await api.get("/topics?search=OTH&last=true")).json()
    assert body["complete"]
    (row,) = body["items"]
    assert (row["topic"], row["last"]["value_text"]) == ("other", "1")
    await say(api.broker, "late", "1")
    assert (await api.items("/topics"))[-1]["topic"] == "late"


async def test_the_tree_of_topics_has_levels_with_counts(api):
    for topic in ("a", "a/b", "a/b/c", "a/d/e", "z"):
        await say(api.broker, topic, "1")
    body = (await api.get("/topic-tree")).json()
    assert [(row["name"], row["is_topic"], row["below"]) for row in body["items"]] == [
        ("a", True, 3),
        ("z", True, 0),
    ]
    body = (await api.get("/topic-tree?prefix=a")).json()
    assert [(row["topic"], row["is_topic"], row["below"]) for row in body["items"]] == [
        ("a/b", True, 1),
        ("a/d", False, 1),
    ]


async def test_one_picture_of_a_topic_shows_the_readers_of_every_protocol(api):
    vhost = api.amqp.vhosts.all()[0]
    await vhost.declare_queue(QueueRecord(name="jobs", durable=True), None, passive=False)
    await vhost.bind(JOBS)
    await say(api.broker, "shop/orders", "1", "2", "3")
    await api.broker.cursors.open_offset("mine", ["shop/+"], start=EARLIEST, principal=LOCAL)
    await api.kafka.groups.offsets.commit("billing", {("shop.orders", 0): (2, -1, "")})
    body = (await api.get("/topics/shop%2Forders")).json()
    assert body["last"]["value_text"] == "3"
    assert body["end_offset"] >= 3
    readers = {(row["cursor"], row["kind"], row["protocol"]) for row in body["readers"]}
    assert ("mine", "offset", "embedded") in readers
    assert ("billing", "group", "kafka") in readers
    assert ("amqp:/:jobs", "routed", "amqp") in readers


async def test_a_session_that_is_away_is_behind_in_a_stream_that_was_made_meanwhile(api):
    desk = api.broker.cursors
    await desk.close_cursor(await desk.open_session("away", ["new/#"], principal=LOCAL))
    await api.broker.streams.create(StreamConfig(name="new", captures=("new/#",), partitions=1))
    await say(api.broker, "new/1", "a", "b", "c")
    body = (await api.get("/topics/new%2F1")).json()
    (row,) = (row for row in body["readers"] if row["cursor"] == "away")
    assert (row["lag"], row["places"]) == (3, [{"partition": 0, "offset": 0}])
    assert (await api.get("/cursors/away")).json()["lag"] == 3
    await api.ask("POST", "/streams/new/partitions/0/trim", {"before": 2})
    assert (await api.get("/cursors/away")).json()["lag"] == 1  # the others are gone


async def test_the_table_of_retained_messages_is_at_the_end_while_messages_come(api):
    await say(api.broker, "some/topic", *map(str, range(20)))
    await until(lambda: api.broker.cursors.find("mqtt-retained").lag() == 0)
    body = (await api.get("/cursors/mqtt-retained")).json()
    assert all(row["offset"] == row["end"] for row in body["positions"])


async def test_the_overview_counts_the_cursors_that_the_list_shows(api):
    await api.kafka.groups.offsets.commit("billing", {("shop.orders", 0): (2, -1, "")})
    rows = (await api.get("/cursors")).json()["items"]
    assert "kafka:billing" in [row["name"] for row in rows]
    assert (await api.get("/overview")).json()["counts"]["cursors"] == len(rows)


# -- what protocols have


async def test_kafka_groups_are_shown_moved_and_deleted(api):
    await say(api.broker, "shop/orders", "1", "2", "3")
    await api.kafka.groups.offsets.commit("billing", {("shop.orders", 0): (1, -1, "")})
    (row,) = await api.items("/kafka/groups")
    assert (row["name"], row["state"], row["lag"]) == ("billing", "Empty", 2)
    asked = {"topic": "shop.orders", "to": "latest"}
    answer = await api.ask("POST", "/kafka/groups/billing/seek", asked)
    assert answer.json()["lag"] == 0
    asked = {"topic": "shop.orders", "partition": 0, "to": "offset", "value": 2}
    answer = await api.ask("POST", "/kafka/groups/billing/seek", asked)
    assert answer.json()["positions"][0]["offset"] == 2
    asked = {"topic": "no such/topic", "to": "latest"}
    assert (await api.ask("POST", "/kafka/groups/billing/seek", asked)).status_code in (400, 404)
    assert (await api.ask("DELETE", "/kafka/groups/billing")).status_code == 204
    assert await api.items("/kafka/groups") == []
    assert (await api.ask("DELETE", "/kafka/groups/billing")).status_code == 404
    assert await api.items("/kafka/transactions") == []


async def test_amqp_queues_are_shown_purged_and_deleted(api):
    vhost = api.amqp.vhosts.all()[0]
    await vhost.declare_queue(QueueRecord(name="jobs", durable=True), None, passive=False)
    await vhost.bind(JOBS)
    await say(api.broker, "shop/orders", "1", "2", "3")
    for _ in range(10):
        await asyncio.sleep(0)
    (row,) = await api.items("/amqp/queues")
    assert (row["vhost"], row["name"], row["ready"]) == ("/", "jobs", 3)
    assert "amq.topic" in [row["name"] for row in await api.items("/amqp/exchanges", limit=2)]
    (row,) = await api.items("/amqp/bindings")
    assert (row["source"], row["destination"], row["routing_key"]) == (
        "amq.topic",
        "jobs",
        "shop.#",
    )
    answer = await api.ask("POST", "/amqp/queues/%2F/jobs/purge")
    assert answer.json() == {"messages": 3}
    assert len(await history(api.broker, "shop/#")) == 3
    assert (await api.ask("DELETE", "/amqp/queues/%2F/jobs")).status_code == 204
    assert (await api.ask("DELETE", "/amqp/queues/%2F/jobs")).status_code == 404


async def test_a_protocol_that_is_not_served_is_503_and_says_where_to_look(tmp_path):
    def make(_broker, _authenticator):
        return {"kafka": lambda: None}

    async with admin_api(tmp_path, make_desks=make) as api:
        answer = await api.get("/kafka/groups")
        assert answer.status_code == 503
        assert "/health" in answer.json()["error"]["message"]


async def test_sessions_are_shown_and_ended_but_not_under_a_connection(api):
    async def taken_over() -> None:
        pass

    sessions = api.broker.sessions
    attached = await sessions.attach(
        "one", protocol="mqtt", owner="joe", expiry_ms=60_000, clean=True, on_takeover=taken_over
    )
    (row,) = await api.items("/sessions")
    assert (row["client_id"], row["owner"], row["attached"]) == ("one", "joe", True)
    assert (await api.ask("DELETE", "/sessions/one")).status_code == 409
    await sessions.detach(attached)
    assert (await api.ask("DELETE", "/sessions/one")).status_code == 204
    assert await api.items("/sessions") == []
    assert (await api.ask("DELETE", "/sessions/one")).status_code == 404


async def test_the_overview_counts_what_there_is_and_rates_what_came(api):
    first = (await api.get("/overview")).json()
    assert first["rates"]["published_messages"] is None
    await say(api.broker, "a", "1", "2", "3")
    api.clock.advance(3)
    body = (await api.get("/overview")).json()
    assert body["rates"]["published_messages"] >= 1
    assert body["counts"]["streams"] >= 1
    assert set(body["totals"]["protocols"]) == {"mqtt", "kafka", "amqp"}
    assert body["disk"]["total_bytes"] > 0
    assert body["status"] == "ok"


# -- changes


async def test_a_stream_is_made_changed_and_deleted(api):
    made = {"name": "orders", "captures": ["shop/orders"], "partitions": 3}
    answer = await api.ask("POST", "/streams", made)
    assert answer.status_code == 201, answer.text
    assert answer.json()["stream"]["partitions"] == 3
    assert (await api.ask("POST", "/streams", made)).status_code == 409
    changed = {"capture": ["shop/returns"], "retention_age_ms": 5000}
    body = (await api.ask("PATCH", "/streams/orders", changed)).json()
    assert body["stream"]["captures"] == ["shop/orders", "shop/returns"]
    assert body["settings"]["retention.age_ms"] == 5000
    assert (await api.ask("DELETE", "/streams/orders")).status_code == 204
    assert (await api.get("/streams/orders")).status_code == 404
    assert (await api.ask("DELETE", "/streams/main")).status_code == 403
    assert (await api.ask("DELETE", "/streams/~cursors")).status_code == 403


async def test_records_of_a_partition_are_trimmed_up_to_an_offset(api):
    await say(api.broker, "a", "1", "2", "3")
    home = (await api.get("/topics/a")).json()
    path = f"/streams/main/partitions/{home['partition']}/trim"
    body = (await api.ask("POST", path, {"before": 2})).json()
    assert body["start_offset"] == 2
    answer = await api.ask("POST", "/streams/~cursors/partitions/0/trim", {"before": 1})
    assert answer.status_code == 400


async def test_views_are_made_shown_and_taken_away(api):
    made = {"name": "telemetry", "filter": "s/+/t"}
    assert (await api.ask("POST", "/views", made)).status_code == 201
    assert (await api.ask("POST", "/views", made)).status_code == 409
    assert (await api.get("/views/telemetry")).json()["filter"] == "s/+/t"
    assert [row["name"] for row in await api.items("/views?search=TELE")] == ["telemetry"]
    assert (await api.ask("DELETE", "/views/telemetry")).status_code == 204
    assert (await api.get("/views/telemetry")).status_code == 404


@pytest.mark.parametrize("is_open", [True, False])
async def test_an_offset_cursor_goes_on_where_it_is_told_also_when_nobody_has_it_open(api, is_open):
    await say(api.broker, "a", "1", "2", "3")
    cursor = await api.broker.cursors.open_offset("mine", ["a"], start=EARLIEST, principal=LOCAL)
    if not is_open:
        await api.broker.cursors.close_cursor(cursor)
    body = (await api.ask("POST", "/cursors/mine/seek", {"to": "latest"})).json()
    assert body["lag"] == 0
    body = (await api.ask("POST", "/cursors/mine/seek", {"to": "offset", "value": 1})).json()
    assert body["lag"] == 2
    asked = {"to": "earliest", "stream": "none"}
    assert (await api.ask("POST", "/cursors/mine/seek", asked)).status_code == 404
    kept = api.broker.cursors.kept("mine")
    assert [row.offset for row in kept.positions] == [1]


async def test_a_queue_is_purged_and_what_a_consumer_holds_stays(api):
    await say(api.broker, "jobs", *map(str, range(500)))
    queue = await api.broker.cursors.open_queue("work", ["jobs"], start=EARLIEST, principal=LOCAL)
    (held,) = queue.acquire("joe")
    assert (await api.ask("POST", "/cursors/work/purge")).json() == {"records": 499}
    assert queue.pending() == 1
    queue.ack(held.token)
    assert queue.lag() == 0


async def test_a_cursor_of_a_program_is_deleted_and_one_of_a_protocol_is_not(api):
    await api.broker.cursors.open_offset("mine", ["a"], principal=LOCAL)
    assert (await api.ask("DELETE", "/cursors/mine")).status_code == 204
    assert (await api.get("/cursors/mine")).status_code == 404
    answer = await api.ask("DELETE", "/cursors/mqtt-retained")
    assert answer.status_code == 409


async def test_the_log_level_changes_while_the_broker_runs(api):
    before = log_level()
    try:
        answer = await api.ask("PATCH", "/config", {"log_level": "error"})
        assert answer.json()["value"] == log_level() == "error"
        (row,) = [row for row in await api.items("/config") if row["key"] == "log.level"]
        assert (row["value"], row["source"], row["hot"]) == ("error", "api", True)
    finally:
        await api.ask("PATCH", "/config", {"log_level": before})
    (row,) = await api.items("/config?search=listeners.mqtt.port")
    assert (row["value"], row["hot"]) == (1883, False)


@pytest.mark.parametrize(
    ("field", "key", "value", "name", "now"),
    [
        ("ban_failures", "security.bans.failures", 3, "failures", 3),
        ("ban_ms", "security.bans.ban_ms", 90_000, "ban_s", 90.0),
        ("ban_delay_ms", "security.bans.delay_ms", 250, "delay_s", 0.25),
    ],
)
async def test_settings_of_bans_change_while_the_broker_runs(api, field, key, value, name, now):
    bans = api.desk.opened.authenticator.bans
    before = msgspec.structs.asdict(bans.settings)
    answer = await api.ask("PATCH", "/config", {field: value})
    assert answer.json() == {"key": key, "value": value, "source": "api", "hot": True}
    assert msgspec.structs.asdict(bans.settings) == before | {name: now}
    (row,) = await api.items(f"/config?search={key}")
    assert row == answer.json()


async def test_a_change_that_is_none_or_more_than_one_is_refused(api):
    for body in ({}, {"log_level": "info", "ban_failures": 3}, {"ban_ms": 10}):
        assert (await api.ask("PATCH", "/config", body)).status_code == 400
    rows = await api.items("/config?search=security.bans")
    assert {row["key"]: row["source"] for row in rows}["security.bans.failures"] == "default"


def test_what_is_hot_has_the_bounds_of_the_configuration():
    (hot,) = msgspec.inspect.multi_type_info([HotSettings])
    fields = {row.name: row.type for row in hot.fields}
    for key, setting in HOT.items():
        section = Config
        *parts, last = key.split(".")
        for part in parts:
            section = typing.get_type_hints(section)[part]
        (known,) = [row for row in msgspec.inspect.type_info(section).fields if row.name == last]
        plain = known.type.type if isinstance(known.type, msgspec.inspect.Metadata) else known.type
        assert plain in fields[setting.field].types, key


async def test_a_retained_message_that_nobody_may_have_is_not_listed(api):
    await api.broker.publish(Message("a", b"1", headers=((RETAIN, b"1"),)), principal=LOCAL)
    assert len(await api.items("/mqtt/retained")) == 1
    assert await api.items("/mqtt/retained?filter=b") == []
    assert await api.items("/mqtt/wills") == []
