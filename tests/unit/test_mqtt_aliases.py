"""Topic aliases to clients: each topic once, then its alias, on every way that a message takes."""

from __future__ import annotations

import pytest

from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.packets import Publish
from tests.support.mqtt import Client, serving

TOPIC = "building/floor/room"


class Reader:
    """Reads topics as a client does that knows aliases; a wrong one is a failure."""

    def __init__(self, client: Client, most: int) -> None:
        self.client = client
        self.most = most
        self.known: dict[int, str] = {}
        self.aliased = 0

    async def take(self, count: int) -> list[tuple[str, str]]:
        found = []
        for _ in range(count):
            message = await self.client.message()
            found.append((self.topic(message), message.payload.decode()))
            await self.client.acknowledge(message)
        return found

    def topic(self, message: Publish) -> str:
        alias = message.properties.topic_alias
        if alias is None:
            assert message.topic
            return message.topic
        assert 1 <= alias <= self.most
        if not message.topic:
            self.aliased += 1
            return self.known[alias]
        self.known[alias] = message.topic
        return message.topic


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry_s", [0, 60])
async def test_a_client_that_takes_aliases_gets_a_topic_once_and_then_its_alias(
    tmp_path, qos, expiry_s
):
    async with serving(tmp_path) as node:
        client = await node.client("c", alias_maximum=2, expiry_s=expiry_s)
        reader, publisher = Reader(client, 2), await node.client("p")
        await client.subscribe(f"{TOPIC}/#", qos)
        sent = [(f"{TOPIC}/{number % 3}", str(number)) for number in range(30)]
        for topic, payload in sent:
            await publisher.publish(topic, payload, max(qos, 1))
        found = await reader.take(30)
        assert sorted(found) == sorted(sent)
        assert reader.aliased == 18  # two of three topics, each but its first message


async def test_aliases_are_right_when_a_session_reads_the_log_follows_and_reads_again(tmp_path):
    """A window of one: the client falls behind and catches up all the time."""
    async with serving(tmp_path) as node:
        client = await node.client("c", alias_maximum=5, receive_maximum=1, expiry_s=60)
        reader, publisher = Reader(client, 5), await node.client("p")
        await client.subscribe(f"{TOPIC}/#", 2)
        await client.subscribe(f"$share/g/{TOPIC}/s", 1)
        for number in range(12):
            await publisher.publish(f"{TOPIC}/a", str(number), 1 + number % 2)
            await publisher.publish(f"{TOPIC}/s", str(number), 1)
        found = await reader.take(36)
        assert [p for t, p in found if t.endswith("/a")] == [str(n) for n in range(12)]
        assert sorted(p for t, p in found if t.endswith("/s")) == sorted(
            2 * [str(n) for n in range(12)]
        )
        assert reader.aliased > 20


async def test_a_new_connection_knows_no_alias(tmp_path):
    async with serving(tmp_path) as node:
        publisher = await node.client("p")
        for _ in range(2):
            client = await node.client("c", alias_maximum=5, clean=False, expiry_s=60)
            reader = Reader(client, 5)
            await client.subscribe(TOPIC, 1)
            await publisher.publish(TOPIC, "1")
            await publisher.publish(TOPIC, "2")
            assert await reader.take(2) == [(TOPIC, "1"), (TOPIC, "2")]
            assert reader.aliased == 1
            await publisher.publish(TOPIC, "3")
            await client.message()  # not acknowledged: it comes again
            await client.drop()
            await node.gone("c")
            client = await node.client("c", alias_maximum=5, clean=False, expiry_s=60)
            assert await Reader(client, 5).take(1) == [(TOPIC, "3")]
            await client.drop()
            await node.gone("c")


async def test_retained_and_replayed_messages_have_aliases_too(tmp_path):
    async with serving(tmp_path) as node:
        publisher = await node.client("p")
        for number in range(3):
            await publisher.publish(f"{TOPIC}/{number}", "r", retain=True)
        client = await node.client("c", alias_maximum=5)
        reader = Reader(client, 5)
        await client.subscribe(f"{TOPIC}/#", 1)
        await reader.take(3)
        await client.subscribe(f"$replay/earliest/{TOPIC}/#", 1)
        await reader.take(3)
        assert reader.aliased == 3


async def test_aliases_have_the_limit_of_the_broker_and_may_be_none(tmp_path):
    limits = MqttLimits(topic_alias_maximum=1)
    async with serving(tmp_path, limits=limits) as node:
        greedy, plain = await node.client("c", alias_maximum=65_535), await node.client("d")
        publisher = await node.client("p")
        reader = Reader(greedy, 1)
        for client in (greedy, plain):
            await client.subscribe(f"{TOPIC}/#", 1)
        for number in range(4):
            await publisher.publish(f"{TOPIC}/{number % 2}", str(number))
        await reader.take(4)
        assert len(reader.known) == 1
        for _ in range(4):
            assert (await plain.message()).properties.topic_alias is None


async def test_a_packet_that_only_an_alias_makes_too_large_goes_without(tmp_path):
    async with serving(tmp_path) as node:
        publisher = await node.client("p")
        size = 2 + 2 + len(TOPIC) + 2 + 1 + 50
        client = await node.client("c", alias_maximum=5, packet_bytes_max=size)
        await publisher.publish(TOPIC, "x" * 50, retain=True)
        await client.subscribe(TOPIC, 1)
        assert (await client.message()).topic == TOPIC
        await publisher.publish(TOPIC, "x" * 50)
        message = await client.message()
        assert (message.topic, message.properties.topic_alias) == (TOPIC, None)
