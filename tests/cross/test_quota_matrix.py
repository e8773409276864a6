"""Quotas: whom they are for, by what they bound, by protocol, each on real sockets.

For each entity and protocol: a client does what a limit counts. A quota of somebody else changes
nothing; its own holds the connection back (a rate), or refuses what is one too many (a number).
What a protocol does not have is in `LACKS`, with the reason. What a client is told is in
`tests/unit/test_quota_protocols.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onelog.broker import Durability, StreamConfig
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.mqtt.packets import Connack, Connect
from onelog.record.batch import build_batch
from onelog.security.quotas.entities import COUNTS, Limit, parse_entity
from tests.conformance.amqp_raw import Ended, Raw, Refused
from tests.support.access import House, house
from tests.support.kafka_wire import Wire
from tests.support.mqtt import Client, connect, dial, until

CLIENT = "pump-1"
ENTITIES = {
    "user": ("user:anonymous", "user:other"),
    "client": (f"client:{CLIENT}", "client:other"),
    "user,client": (f"user:anonymous,client:{CLIENT}", "user:anonymous,client:other"),
    "listener": ("listener:{}", "listener:other"),
}
"""The entity that means the client of a test, and one that means another."""
PAYLOAD = b"x" * 400
MOST: dict[Limit, float] = {  # once is more than a rate gives on the slowest machine
    Limit.PUBLISH_BYTES: 50,
    Limit.PUBLISH_MESSAGES: 0.1,
    Limit.FETCH_BYTES: 50,
    Limit.REQUESTS: 0.1,
    Limit.CONNECTIONS: 1,
    Limit.SUBSCRIPTIONS: 1,
    Limit.QUEUES: 1,
}
TIMES = 4
"""How often a client does it: more than any of these allows."""
LACKS = {
    ("mqtt", Limit.FETCH_BYTES): "nobody fetches: the broker sends",
    ("mqtt", Limit.QUEUES): "it declares none",
    ("kafka", Limit.SUBSCRIPTIONS): "a consumer subscribes in itself, and only fetches",
    ("kafka", Limit.QUEUES): "it declares none",
    ("amqp", Limit.FETCH_BYTES): "nobody fetches: the broker sends",
}
numbers = itertools.count(1)

Do = Callable[[], Awaitable[bool]]
"""Does something once; whether it was allowed."""
Ways = dict[Limit, Do]


async def mqtt_ways(place: House) -> Ways:
    client = await connect(place.ports["mqtt"], CLIENT)
    place.at_end.append(client._writer.close)

    async def publish() -> bool:
        return await client.publish("t", PAYLOAD.decode()) == 0

    async def ask() -> bool:
        return await client.unsubscribe("none") < 0x80

    async def connected() -> bool:
        reader, writer = await dial(place.ports["mqtt"])
        other = Client(reader, writer, 5)
        await other.send(Connect(client_id=f"c{next(numbers)}", version=5, keep_alive_s=60))
        place.at_end.append(writer.close)
        return (await other.receive(Connack)).reason == 0

    async def subscribe() -> bool:
        return await client.subscribe(f"s/{next(numbers)}", 1) < 0x80

    return {
        Limit.PUBLISH_BYTES: publish,
        Limit.PUBLISH_MESSAGES: publish,
        Limit.REQUESTS: ask,
        Limit.CONNECTIONS: connected,
        Limit.SUBSCRIPTIONS: subscribe,
    }


async def kafka_ways(place: House) -> Ways:
    await place.broker.streams.create(
        StreamConfig(name="t", captures=("t",), partitions=1, durability=Durability.OS)
    )
    wire = await asyncio.to_thread(Wire, place.ports["kafka"], CLIENT)
    place.at_end.append(wire.close)

    def produce() -> bool:
        batch = build_batch([(None, b"k", PAYLOAD, (), 0)])
        rows = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
        body: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout": 5000}
        answer = wire.ask(ApiKey.PRODUCE, 9, topic_data=rows, **body)
        return answer.responses[0].partition_responses[0].error_code == 0

    def fetch() -> bool:
        body: dict[str, Any] = {
            "replica_id": -1, "max_wait": 1, "min_bytes": 0, "max_bytes": 1000,
            "isolation_level": 0, "session_id": 0, "session_epoch": -1,
            "forgotten_topics_data": [], "rack_id": "",
        }  # fmt: skip
        partition = {
            "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0,
            "log_start_offset": -1, "partition_max_bytes": 1000,
        }  # fmt: skip
        produce()
        topics = [{"topic": "t", "partitions": [partition]}]
        answer = wire.ask(ApiKey.FETCH, 11, topics=topics, **body)
        return answer.responses[0].partitions[0].error_code == 0

    def list_groups(line: Wire) -> bool:
        return line.ask(ApiKey.LIST_GROUPS, 4, states_filter=()).error_code == 0

    def connected() -> bool:
        line = Wire(place.ports["kafka"], CLIENT)
        place.at_end.append(line.close)
        try:
            return list_groups(line)
        except ConnectionError:
            return False

    def way(work: Callable[[], bool]) -> Do:
        return lambda: asyncio.to_thread(work)

    return {
        Limit.PUBLISH_BYTES: way(produce),
        Limit.PUBLISH_MESSAGES: way(produce),
        Limit.FETCH_BYTES: way(fetch),
        Limit.REQUESTS: way(lambda: list_groups(wire)),
        Limit.CONNECTIONS: way(connected),
    }


async def amqp_ways(place: House) -> Ways:
    def opened() -> Raw:
        raw = Raw(place.ports["amqp"])
        place.at_end.append(raw.socket.close)
        return raw.open(connection_name=CLIENT)

    raw = await asyncio.to_thread(opened)
    channel = await asyncio.to_thread(raw.channel)

    def publish() -> bool:
        channel.publish("amq.topic", "t", PAYLOAD.decode())
        return True

    def connected() -> bool:
        try:
            opened()
        except (Refused, Ended):
            return False
        return True

    def of_its_own(work: Callable[[Any], object]) -> Callable[[], bool]:
        def run() -> bool:
            own = raw.channel(next(numbers) + 1)
            try:
                work(own)
            except Refused:
                return False
            return True

        return run

    def consume(own: Any) -> None:
        own.consume("kept", f"tag-{next(numbers)}")

    def declare(own: Any) -> None:
        own.queue(f"q{next(numbers)}")

    await asyncio.to_thread(channel.queue, "kept")

    def way(work: Callable[[], bool]) -> Do:
        return lambda: asyncio.to_thread(work)

    return {
        Limit.PUBLISH_BYTES: way(publish),
        Limit.PUBLISH_MESSAGES: way(publish),
        Limit.REQUESTS: way(lambda: bool(channel.count("kept") + 1)),
        Limit.CONNECTIONS: way(connected),
        Limit.QUEUES: way(of_its_own(declare)),
        Limit.SUBSCRIPTIONS: way(of_its_own(consume)),
    }


WAYS = {"mqtt": mqtt_ways, "kafka": kafka_ways, "amqp": amqp_ways}


@pytest.mark.parametrize("entity", ENTITIES)
@pytest.mark.parametrize("protocol", WAYS)
async def test_a_quota_bounds_whom_it_names_and_nobody_else(tmp_path, protocol, entity):
    own, other = (text.format(protocol) for text in ENTITIES[entity])
    async with house(tmp_path) as place:
        ways = await WAYS[protocol](place)
        assert {limit for limit in Limit if (protocol, limit) in LACKS} | set(ways) == set(MOST)
        quotas = place.broker.client_quotas
        counters = quotas.counters(protocol)
        if protocol == "mqtt" and "client" in entity:
            del ways[Limit.CONNECTIONS]  # a second one of a client id takes over the first
        for limit, do in ways.items():
            await quotas.change(parse_entity(other), {limit: MOST[limit]})
            holds = counters.holds
            assert [await do() for _ in range(TIMES)] == [True] * TIMES, (limit, "another's")
            assert counters.holds == holds, (limit, "another's")
            await quotas.remove(other)
            await quotas.change(parse_entity(own), {limit: MOST[limit]})
            if limit in COUNTS:
                assert not await do(), limit
                assert quotas.refusals[limit] == 1
            else:
                for _ in range(TIMES):
                    if counters.holds == holds:
                        assert await do(), (limit, "it is late, and not refused")
                await until(lambda before=holds: counters.holds > before)
            await quotas.remove(own)
