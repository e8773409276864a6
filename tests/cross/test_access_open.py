"""Rules that change under something that waits: a fetch, a consumer, publishes that are known."""

from __future__ import annotations

import asyncio

import pytest

from onelog.broker import LOCAL, Durability, Message, StreamConfig
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.conformance.amqp_raw import Raw, Refused
from tests.support.access import house
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
