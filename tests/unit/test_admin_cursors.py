"""Cursors of every kind over the admin API: seek, reset, purge, redrive, delete.

What consumers have stays with them; what is seen again is exactly what the new position says.
"""

from __future__ import annotations

import asyncio

import pytest

from onelog.broker import EARLIEST, LOCAL, Message, QueueSettings
from onelog.queues.exchanges import Binding, Destination
from onelog.queues.settings import QueueRecord
from tests.support.admin import whole_api
from tests.support.brokers import say
from tests.support.mqtt import until

JOBS = Binding(source="amq.topic", destination=Destination("queue", "jobs"), routing_key="shop.#")


@pytest.fixture
async def api(tmp_path):
    async with whole_api(tmp_path) as found:
        yield found


async def post(api, path: str, body: dict | None = None) -> dict:
    answer = await api.ask("POST", path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def values(rows) -> list[str]:
    return [row.record.value.decode() for row in rows]


async def queue_of(api, name: str = "work", **settings):
    return await api.broker.cursors.open_queue(
        name, ["jobs"], start=EARLIEST, settings=QueueSettings(**settings), principal=LOCAL
    )


# -- queues of the door


async def test_a_queue_that_seeks_hands_out_all_from_there_on_but_not_what_a_consumer_has(api):
    await say(api.broker, "jobs", *map(str, range(6)))
    queue = await queue_of(api)
    first, second, third = queue.acquire("joe", 3)
    queue.ack(first.token)
    queue.ack(third.token)
    await post(api, "/cursors/work/seek", {"to": "earliest"})
    assert values(queue.acquire("ann", 10)) == ["0", "2", "3", "4", "5"]
    queue.ack(second.token)  # as if nobody had moved the queue
    assert queue.acquire("ann", 10) == []


async def test_a_queue_that_seeks_forward_skips_what_waits_and_keeps_what_consumers_have(api):
    await say(api.broker, "jobs", *map(str, range(6)))
    queue = await queue_of(api)
    (held,) = queue.acquire("joe", 1)
    await post(api, "/cursors/work/seek", {"to": "offset", "value": held.record.offset + 4})
    assert values(queue.acquire("ann", 10)) == ["4", "5"]
    queue.release(held.token)
    assert values(queue.acquire("ann", 10)) == ["0"]


async def test_a_waiting_consumer_wakes_when_its_queue_is_moved_back(api):
    await say(api.broker, "jobs", "a")
    queue = await queue_of(api)
    for row in queue.acquire("joe", 10):
        queue.ack(row.token)
    waiting = asyncio.create_task(queue.next("joe", timeout_s=10))
    await asyncio.sleep(0)
    await post(api, "/cursors/work/seek", {"to": "earliest"})
    assert values(await waiting) == ["a"]


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_queue_stays_moved_after_it_was_closed(api, is_open):
    await say(api.broker, "jobs", "a", "b")
    queue = await queue_of(api)
    for row in queue.acquire("joe", 10):
        queue.ack(row.token)
    if not is_open:
        await api.broker.cursors.close_cursor(queue)
    body = await post(api, "/cursors/work/seek", {"to": "earliest"})
    assert body["lag"] == 2
    if is_open:
        await api.broker.cursors.close_cursor(queue)
    assert values((await queue_of(api)).acquire("joe", 10)) == ["a", "b"]


async def test_a_cursor_seeks_to_a_time(api):
    for number in range(5):
        message = Message("jobs", b"%d" % number, timestamp_ms=1000 * (number + 1))
        await api.broker.publish(message, principal=LOCAL)
    queue = await queue_of(api)
    await post(api, "/cursors/work/seek", {"to": "time", "value": 3500})
    assert values(queue.acquire("joe", 10)) == ["3", "4"]


async def test_a_new_consumer_waits_while_a_kept_queue_is_moved(api):
    await say(api.broker, "jobs", "a")
    desk = api.broker.cursors
    await desk.close_cursor(await queue_of(api))
    async with desk.moving("work") as cursor:
        opening = asyncio.create_task(queue_of(api))
        await asyncio.sleep(0.01)
        assert not opening.done()
        cursor.seek(*_place(cursor), 1)
    assert values((await opening).acquire("joe", 10)) == []


def _place(cursor) -> tuple[str, int]:
    (row,) = cursor.positions()
    return row.stream_id, row.partition


async def test_a_reset_queue_begins_at_the_end_and_a_reset_offset_cursor_at_the_start(api):
    await say(api.broker, "jobs", "a", "b")
    queue = await queue_of(api)
    reader = await api.broker.cursors.open_offset("mine", ["jobs"], principal=LOCAL)
    reader.fetch()
    assert (await post(api, "/cursors/work/reset"))["lag"] == 0
    assert (await post(api, "/cursors/mine/reset"))["lag"] == 2
    await say(api.broker, "jobs", "c")
    assert values(queue.acquire("joe", 10)) == ["c"]
    assert [row.value for row in reader.fetch()] == [b"a", b"b", b"c"]


async def test_a_session_cursor_seeks_and_what_is_in_flight_is_not_sent_twice(api):
    await say(api.broker, "jobs", "a", "b", "c")
    session = await api.broker.cursors.open_session("s", ["jobs"], start=EARLIEST, principal=LOCAL)
    first, second, third = session.fetch()
    session.acknowledge(first.packet_id)
    await post(api, "/cursors/s/seek", {"to": "earliest"})
    session.acknowledge(third.packet_id)
    assert values(session.fetch()) == ["a"]
    assert session.redeliver()[0].packet_id == second.packet_id


# -- dead letters


async def test_dead_letters_of_a_queue_come_again_in_that_queue_alone_and_only_once(api):
    await say(api.broker, "jobs", *map(str, range(4)))
    queue = await queue_of(api, dead_letter_topic="dead")
    other = await queue_of(api, "other", dead_letter_topic="dead")
    for row in queue.acquire("joe", 10):
        (queue.reject if row.record.value in (b"0", b"2") else queue.ack)(row.token)
    for row in other.acquire("joe", 10):
        other.ack(row.token)
    await until(lambda: not queue.pending())
    assert queue.acquire("joe", 10) == []
    body = await post(api, "/cursors/work/redrive")
    assert body == {"records": 2, "gone": 0, "skipped": 0, "complete": True}
    again = queue.acquire("joe", 10)
    assert values(again) == ["0", "2"]
    assert [row.count for row in again] == [1, 1]
    assert other.acquire("joe", 10) == []
    body = await post(api, "/cursors/work/redrive")
    assert body == {"records": 0, "gone": 0, "skipped": 0, "complete": True}
    await post(api, "/cursors/redrive%2Fwork/seek", {"to": "earliest"})
    assert (await post(api, "/cursors/work/redrive"))["skipped"] == 2  # a consumer has them


async def test_a_dead_letter_whose_record_is_gone_is_counted_and_stays_where_it_is(api):
    await say(api.broker, "jobs", "a")
    queue = await queue_of(api, dead_letter_topic="dead")
    (row,) = queue.acquire("joe", 1)
    queue.reject(row.token)
    await until(lambda: not queue.pending())
    home = (await api.get("/topics/jobs")).json()
    await api.broker.delete_records(home["stream"], home["partition"], row.record.offset + 1)
    assert (await post(api, "/cursors/work/redrive"))["gone"] == 1
    assert len((await api.get("/messages?filter=dead")).json()["items"]) == 1


async def test_a_cursor_without_dead_letters_is_not_redriven(api):
    await queue_of(api)
    await api.broker.cursors.open_offset("mine", ["jobs"], principal=LOCAL)
    for name in ("work", "mine", "mqtt-retained"):
        assert (await api.ask("POST", f"/cursors/{name}/redrive")).status_code == 409
    assert (await api.ask("POST", "/cursors/none/redrive")).status_code == 404


# -- queues of AMQP


async def declared(api, name: str = "jobs", **arguments):
    vhost = api.amqp.vhosts.all()[0]
    record = QueueRecord(name=name, durable=True, arguments=arguments)
    await vhost.declare_queue(record, None, passive=False)
    return vhost.queues[name]


def taken(queue) -> list[str]:
    found = []
    while (row := queue.get()) is not None:
        found.append(row)
    return found


async def test_an_amqp_queue_that_seeks_gets_what_its_bindings_bring_from_there_on(api):
    await say(api.broker, "shop/orders", "0")  # before there is a queue
    queue = await declared(api)
    await queue.vhost.bind(JOBS)
    await say(api.broker, "shop/orders", *map(str, range(1, 5)))
    await say(api.broker, "other", "no")
    first, second, *rest = taken(queue)
    queue.ack(first.place)
    queue.requeue([row.place for row in rest])
    body = await post(api, "/cursors/amqp:%2F:jobs/seek", {"to": "earliest"})
    assert body["kind"] == "routed"
    assert values(taken(queue)) == ["0", "1", "3", "4"]  # 2 is with its consumer
    queue.ack(second.place)
    await say(api.broker, "shop/orders", "5")
    assert values(taken(queue)) == ["5"]
    asked = {"to": "earliest", "stream": "main"}
    assert (await api.ask("POST", "/cursors/amqp:%2F:jobs/seek", asked)).status_code == 400


async def test_the_cursor_of_a_queue_names_what_feeds_it_and_counts_its_consumers(api):
    queue = await declared(api)
    row = (await api.get("/cursors/amqp:%2F:jobs")).json()
    assert (row["filter"], row["connected"]) == ("$q/jobs", 0)
    await queue.vhost.bind(JOBS)
    queue.consumers.all.append(None)
    (row,) = await api.items("/cursors?search=jobs")
    assert (row["filter"], row["connected"]) == ("shop/#", 1)
    queue.consumers.all.clear()


async def test_an_amqp_queue_is_purged_reset_and_deleted_as_a_cursor(api):
    queue = await declared(api)
    await queue.vhost.bind(JOBS)
    await say(api.broker, "shop/orders", "1", "2")
    assert await post(api, "/cursors/amqp:%2F:jobs/purge") == {"records": 2}
    await post(api, "/cursors/amqp:%2F:jobs/seek", {"to": "earliest"})
    assert queue.ready.size == 2
    await post(api, "/cursors/amqp:%2F:jobs/reset")
    assert queue.ready.size == 0
    assert (await api.ask("DELETE", "/cursors/amqp:%2F:jobs")).status_code == 204
    assert await api.items("/amqp/queues") == []


async def test_amqp_dead_letters_go_back_to_the_queue_where_they_died(api):
    work = await declared(
        api, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    dead = await declared(api, "dead")
    await say(api.broker, "$q/work", "a", "b", "c")
    for row in taken(work)[:2]:
        work.reject(row.place)
    await until(lambda: dead.ready.size == 2)
    await say(api.broker, "$q/dead", "never died")
    body = await post(api, "/cursors/amqp:%2F:dead/redrive")
    assert body == {"records": 2, "gone": 0, "skipped": 1, "complete": True}
    await until(lambda: work.ready.size == 2)
    assert values(taken(work)) == ["a", "b"]
    assert values(taken(dead)) == ["never died"]


# -- what else is a cursor


async def test_kafka_groups_are_cursors_that_seek_and_are_deleted(api):
    await say(api.broker, "shop/orders", "1", "2", "3")
    await api.kafka.groups.offsets.commit("billing", {("shop.orders", 0): (1, -1, "")})
    (row,) = await api.items("/cursors?protocol=kafka")
    assert (row["name"], row["kind"], row["lag"]) == ("kafka:billing", "group", 2)
    assert (await post(api, "/cursors/kafka:billing/seek", {"to": "latest"}))["lag"] == 0
    assert (await post(api, "/cursors/kafka:billing/reset"))["lag"] == 3
    assert (await api.ask("POST", "/cursors/kafka:billing/redrive")).status_code == 409
    assert (await api.ask("DELETE", "/cursors/kafka:billing")).status_code == 204
    assert (await api.get("/cursors/kafka:billing")).status_code == 404


@pytest.mark.parametrize(
    "asked", [{"to": "offset"}, {"to": "time"}, {"to": "time", "value": None},
              {"to": "earliest", "value": 3}, {"to": "latest", "value": 0}]
)  # fmt: skip
async def test_a_seek_without_its_value_moves_nothing(api, asked):
    await say(api.broker, "jobs", *map(str, range(3)))
    queue = await queue_of(api)
    for row in queue.acquire("joe", 3):
        queue.ack(row.token)
    await api.kafka.groups.offsets.commit("billing", {("jobs", 0): (2, -1, "")})
    for path in ("/cursors/work/seek", "/cursors/kafka:billing/seek"):
        answer = await api.ask("POST", path, asked)
        assert (answer.status_code, "value" in answer.text) == (400, True)
    answer = await api.ask("POST", "/kafka/groups/billing/seek", {"topic": "jobs", **asked})
    assert (answer.status_code, "value" in answer.text) == (400, True)
    assert queue.acquire("ann", 10) == []


async def test_tails_and_tables_are_neither_moved_nor_deleted(api):
    tail = api.broker.cursors.open_tail(["a"], principal=LOCAL)
    for name in (tail.name, "mqtt-retained"):
        for path in ("seek", "reset", "purge", "redrive"):
            body = {"to": "latest"} if path == "seek" else None
            answer = await api.ask("POST", f"/cursors/{name}/{path}", body)
            assert answer.status_code == 409, path
        assert (await api.ask("DELETE", f"/cursors/{name}")).status_code == 409
