"""Rules that change under something that waits: a fetch, a consumer, publishes that are known."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from onelog.base.errors import InvalidName
from onelog.broker import LOCAL, AuditEvent, Durability, Message, StreamConfig
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.topics import topic_id
from tests.conformance.amqp_raw import Queue, Raw, Refused
from tests.support.access import house, rule
from tests.support.kafka_wire import Wire
from tests.support.mqtt import until

ALL = ("allow everyone all topic:#", "allow everyone consume cursor:*")


def fetch(wire: Wire, topic: str, wait_ms: int) -> ErrorCode:
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    answer = wire.ask(
        ApiKey.FETCH,
        11,
        replica_id=-1,
        max_wait=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [part]}],
        forgotten_topics_data=[],
        rack_id="",
    )
    (row,) = answer.responses[0].partitions
    assert row.error_code is ErrorCode.none or not row.records
    return row.error_code


async def test_a_fetch_that_waits_is_refused_when_its_right_goes(tmp_path):
    async with house(tmp_path) as place:
        await place.broker.streams.create(
            StreamConfig(name="t", captures=("t",), partitions=1, durability=Durability.OS)
        )
        await place.only(*ALL)
        with Wire(place.ports["kafka"]) as wire:
            waiting = asyncio.create_task(asyncio.to_thread(fetch, wire, "t", 30_000))
            hub = place.servers["kafka"]._hub
            await until(lambda: any(connection._slots for connection in hub.connections))
            await place.only(*ALL, "deny everyone subscribe topic:t")
            await place.broker.publish(Message("t", b"secret"), principal=LOCAL)
            assert await waiting is ErrorCode.topic_authorization_failed


async def test_a_consumer_whose_right_goes_loses_its_channel_and_others_do_not(tmp_path):
    async with house(tmp_path) as place:
        await place.only(*ALL)

        def begin() -> tuple[Raw, Raw]:
            rows = []
            for name in ("mine", "other"):
                raw = Raw(place.ports["amqp"]).open()
                channel = raw.channel()
                channel.consume(channel.queue(name))
                rows.append(raw)
            return rows[0], rows[1]

        mine, other = await asyncio.to_thread(begin)
        place.at_end += [mine.socket.close, other.socket.close]
        await place.only(*ALL, "deny everyone consume cursor:queue/mine")

        def refused(raw: Raw) -> int:
            with pytest.raises(Refused) as found:
                raw.channels[1].sync()
            return found.value.code

        assert await asyncio.to_thread(refused, mine) == 403
        assert await asyncio.to_thread(lambda: other.channels[1].consumers("other")) == 1


async def test_a_rule_that_denies_topics_reaches_through_queues_that_are_bound_to_them(tmp_path):
    async with house(tmp_path) as place:
        await place.only(*ALL)

        def begin() -> Raw:
            raw = Raw(place.ports["amqp"]).open()
            channel = raw.channel()
            channel.queue("q")
            channel.exchange("topic", "x")
            channel.bind("q", "x", "#")
            channel.bind_exchange("x", "amq.topic", "plant.#")
            channel.consume("q")
            return raw

        raw = await asyncio.to_thread(begin)
        place.at_end.append(raw.socket.close)
        await place.only(*ALL, "deny everyone subscribe topic:elsewhere/$")
        assert place.servers["amqp"]._hub.connections
        await place.only(*ALL, "deny everyone subscribe topic:plant/secret")

        def refused() -> int:
            with pytest.raises(Refused) as found:
                raw.channels[1].sync()
            return found.value.code

        assert await asyncio.to_thread(refused) == 403


async def test_publishes_that_the_kernel_knows_are_looked_at_again(tmp_path):
    async with house(tmp_path) as place:
        await place.only(*ALL)

        def begin() -> Raw:
            raw = Raw(place.ports["amqp"]).open()
            channel = raw.channel()
            channel.queue("q")
            for _ in range(5):
                channel.publish("", "q", "1")
            channel.sync()
            return raw

        raw = await asyncio.to_thread(begin)
        place.at_end.append(raw.socket.close)
        await place.only(*ALL, "deny everyone publish topic:$q/q")

        def again() -> int:
            channel = raw.channels[1]
            channel.publish("", "q", "2")
            with pytest.raises(Refused) as found:
                channel.sync()
            return found.value.code

        assert await asyncio.to_thread(again) == 403


async def test_a_view_is_refused_where_a_part_of_it_is_denied(tmp_path):
    async with house(tmp_path) as place:
        for topic in ("s/a/t", "s/b/t"):
            await place.broker.publish(Message(topic, b"x"), principal=LOCAL)
        with Wire(place.ports["kafka"]) as wire:
            view = "s._x2B_.t"
            for rules, code in (
                ((), ErrorCode.none),
                (("allow everyone subscribe topic:s/#",), ErrorCode.none),
                (("allow everyone subscribe topic:s/a/t",), ErrorCode.topic_authorization_failed),
                (
                    (*ALL, "deny everyone subscribe topic:s/b/#"),
                    ErrorCode.topic_authorization_failed,
                ),
                ((*ALL, "deny everyone subscribe topic:u/#"), ErrorCode.none),
            ):
                await place.only(*rules)
                assert await asyncio.to_thread(fetch, wire, view, 1) is code, rules


async def test_who_has_no_right_does_not_learn_whether_something_is_there(tmp_path):
    """RabbitMQ asks for the right first, too: then 403, and 404 only to those who have it."""
    async with house(tmp_path) as place:

        def begin() -> Raw:
            raw = Raw(place.ports["amqp"]).open()
            channel = raw.channel()
            channel.ask(Queue.Declare(queue="there", durable=True), Queue.DeclareOk)
            channel.exchange("topic", "there")
            return raw

        raw = await asyncio.to_thread(begin)
        place.at_end.append(raw.socket.close)

        def told(name: str) -> list[int]:
            codes = []
            for work in (
                lambda channel: channel.consume(name),
                lambda channel: channel.get(name),
                lambda channel: channel.ask(Queue.Purge(queue=name), Queue.PurgeOk),
                lambda channel: channel.bind(name, "amq.topic", "k"),
                lambda channel: channel.bind("there", name, "k"),
                lambda channel: (channel.publish(name, "k", "1"), channel.sync()),
            ):
                channel = raw.channel()
                try:
                    work(channel)
                except Refused as refused:
                    codes.append(refused.code)
                else:
                    codes.append(0)
                    channel.close()
            return codes

        await place.only("allow user:ann publish topic:a")
        for name in ("there", "nowhere"):
            assert await asyncio.to_thread(told, name) == [403] * 6
        await place.only(*ALL)
        assert await asyncio.to_thread(told, "nowhere") == [404] * 6


async def test_the_id_of_a_topic_that_one_may_not_see_is_like_an_id_of_none(tmp_path):
    async with house(tmp_path) as place:
        stream = await place.broker.streams.create(
            StreamConfig(name="t", captures=("t",), partitions=1, durability=Durability.OS)
        )
        known = topic_id(f"stream {stream.record.id}")
        await place.only("allow user:ann publish topic:t")
        with Wire(place.ports["kafka"]) as wire:

            def told(wanted: uuid.UUID) -> list[ErrorCode]:
                asked = [{"topic_id": wanted, "name": None}]
                metadata = wire.ask(
                    ApiKey.METADATA,
                    12,
                    topics=asked,
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False,
                )
                gone = wire.ask(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout=1000)
                return [metadata.topics[0].error_code, gone.responses[0].error_code]

            for wanted in (known, uuid.UUID(int=7)):
                assert await asyncio.to_thread(told, wanted) == [ErrorCode.unknown_topic_id] * 2
            await place.only("allow everyone describe topic:t")
            assert await asyncio.to_thread(told, known) == [
                ErrorCode.none,
                ErrorCode.topic_authorization_failed,
            ]


class Noted:
    """What the audit trail got."""

    def __init__(self) -> None:
        self.rows: list[AuditEvent] = []

    def write(self, event: AuditEvent) -> None:
        self.rows.append(event)


async def test_the_trail_says_of_topics_that_nobody_may_make_that_it_was_refused(tmp_path):
    async with house(tmp_path) as place:
        noted = place.broker.audit = Noted()
        await place.only("allow everyone create topic:may")

        def make(*names: str) -> None:
            rows = [
                {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [],
                 "configs": []}
                for name in names
            ]  # fmt: skip
            with Wire(place.ports["kafka"]) as wire:
                wire.ask(ApiKey.CREATE_TOPICS, 4, topics=rows, timeout=1000, validate_only=False)

        await asyncio.to_thread(make, "not")
        await asyncio.to_thread(make, "may", "not")
        await asyncio.to_thread(make, "may")
        told = [(row.resource, row.outcome) for row in noted.rows if row.action == "topic.create"]
        assert told == [("not", "refused"), ("may,not", "ok"), ("may", "failed")]


@pytest.mark.parametrize(
    ("right", "told"),
    [
        ("publish", ErrorCode.topic_authorization_failed),
        ("subscribe", ErrorCode.unknown_topic_or_partition),
        ("publish,create", ErrorCode.none),
    ],
)
async def test_a_producer_that_may_not_make_its_topic_is_told_so_and_a_reader_waits(
    tmp_path, right, told
):
    async with house(tmp_path) as place:
        await place.only(f"allow everyone {right} topic:t")
        with Wire(place.ports["kafka"]) as wire:
            rows = (
                await asyncio.to_thread(
                    wire.ask,
                    ApiKey.METADATA,
                    4,
                    topics=[{"name": "t"}],
                    allow_auto_topic_creation=True,
                )
            ).topics
            assert rows[0].error_code is told


async def test_a_name_that_no_topic_could_carry_is_refused_when_it_is_declared(tmp_path):
    """Rules and publishes name a queue by its topic, in which these characters are escaped."""
    async with house(tmp_path) as place:

        def told(name: str, kind: str) -> int:
            raw = Raw(place.ports["amqp"]).open()
            try:
                channel = raw.channel()
                if kind == "queue":
                    channel.ask(Queue.Declare(queue=name, auto_delete=True), Queue.DeclareOk)
                else:
                    channel.exchange("topic", name)
            except Refused as refused:
                assert "use fewer of them" in str(refused)
                return refused.code
            finally:
                raw.socket.close()
            return 0

        for kind in ("queue", "exchange"):
            assert await asyncio.to_thread(told, "/+#@" * 60, kind) == 406
            assert await asyncio.to_thread(told, "/+#@" * 50, kind) == 0


def test_a_prefix_with_more_levels_than_a_topic_has_is_refused():
    with pytest.raises(InvalidName, match="64 levels"):
        rule("allow everyone publish prefix:" + "/" * 64)
    assert rule("allow everyone publish prefix:" + "/" * 63).pattern == "/" * 63
