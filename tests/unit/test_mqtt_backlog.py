"""What waits for a client that is away is bounded by the messages that are for it."""

from __future__ import annotations

import pytest

from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.properties import Properties
from tests.support.mqtt import Node, serving

LIMITS = MqttLimits(queued=10)
KEPT = {"clean": False, "expiry_s": 600}


async def leave(node: Node, *filters: str, **options) -> None:
    """A client that subscribes and goes."""
    client = await node.client("c", **KEPT)
    for text in filters:
        await client.subscribe(text, 1, **options)
    await client.disconnect()
    await node.gone("c")


async def come_back(node: Node) -> list[str]:
    client = await node.client("c", **KEPT)
    found = []
    while not await client.is_silent():
        found += await client.take()
    return found


async def test_only_messages_of_the_session_count_for_its_backlog(tmp_path):
    """Whatever else its partitions hold."""
    async with serving(tmp_path, limits=LIMITS) as node:
        await leave(node, "mine/+")
        publisher = await node.client("p")
        for number in range(10):
            await publisher.publish(f"mine/{number}", str(number))
            for other in range(50):
                await publisher.publish(f"other/{other}", "x", qos=0)
        await publisher.sync()
        assert sorted(await come_back(node)) == sorted(str(n) for n in range(10))


@pytest.mark.parametrize("topics", [1, 7])
async def test_the_newest_messages_of_all_partitions_wait(tmp_path, topics):
    async with serving(tmp_path, limits=LIMITS) as node:
        await leave(node, "t/#")
        publisher = await node.client("p")
        for number in range(40):
            await publisher.publish(f"t/{number % topics}", str(number))
            await node_moves_on(node)
        found = await come_back(node)
        assert sorted(map(int, found)) == list(range(30, 40))


async def node_moves_on(node: Node) -> None:
    """Let a millisecond pass: messages of several partitions are compared by their times."""
    begun_ms = node.hub.clock.now_ms()
    client = node.clients[-1]
    while node.hub.clock.now_ms() == begun_ms:
        await client.sync()


async def test_expired_messages_do_not_count(tmp_path):
    async with serving(tmp_path, limits=LIMITS) as node:
        client = await node.client("c", **KEPT)
        await client.subscribe("t", 1)
        publisher = await node.client("p")
        await client.drop()
        await node.gone("c")
        for number in range(10):
            await publisher.publish("t", str(number))
        expired = Properties(message_expiry_s=0)
        for _ in range(10):
            await publisher.publish("t", "expired", properties=expired)
        assert await come_back(node) == [str(number) for number in range(10)]


async def test_what_is_in_flight_does_not_count(tmp_path):
    async with serving(tmp_path, limits=LIMITS) as node:
        client, publisher = await node.client("c", **KEPT), await node.client("p")
        await client.subscribe("t", 1)
        await publisher.publish("t", "in flight")
        await client.message()
        await client.drop()
        await node.gone("c")
        for number in range(15):
            await publisher.publish("t", str(number))
        assert await come_back(node) == ["in flight", *(str(number) for number in range(5, 15))]
