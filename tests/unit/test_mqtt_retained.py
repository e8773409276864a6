"""Retained messages stay when their records leave by retention or compaction."""

from __future__ import annotations

import asyncio
import shutil

import msgspec
import pytest

from onelog.broker import Broker, Cleanup, Compaction, Durability, Retention, StreamConfig
from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.retained_copies import STREAM
from tests.support.mqtt import Client, Node, serving

SHORT = StreamConfig(
    name="short",
    captures=("t/#",),
    retention=Retention(age_ms=-1, bytes=4096),
    segment_bytes=4096,
    durability=Durability.OS,
)
COMPACT = StreamConfig(
    name="short",
    captures=("t/#",),
    cleanup=Cleanup.COMPACT,
    compaction=Compaction(min_dirty_ratio=0.01),
    segment_bytes=4096,
    durability=Durability.OS,
)


def start_of(broker: Broker) -> int:
    return int(broker.streams.get("short").partitions[0].start_offset)


async def fill(node: Node, publisher: Client, topic: str = "t/other") -> None:
    """Publish so much that everything before it leaves."""
    for _ in range(6):
        await publisher.publish(topic, "x" * 2000)
    await node.broker.maintenance.run_once()


async def greeting(node: Node, count: int, **options) -> dict[str, str]:
    """What a new subscriber finds retained; and that there is no more."""
    client = await node.client("greeted", **options)
    await client.subscribe("t/#", 1)
    found = {}
    for _ in range(count):
        message = await client.message()
        assert message.retain
        found[message.topic] = message.payload.decode()
        await client.acknowledge(message)
    assert await client.is_silent()
    await client.disconnect()
    await node.gone("greeted")
    return found


async def open_short(node: Node, config: StreamConfig = SHORT) -> Client:
    if node.broker.streams.find("short") is None:
        await node.broker.streams.create(config)
    return await node.client("p")


async def test_a_retained_message_outlives_the_retention_of_its_stream(tmp_path):
    async with serving(tmp_path) as node:
        publisher = await open_short(node)
        for number in range(3):
            await publisher.publish(f"t/{number}", f"r{number}", retain=True)
        await fill(node, publisher)
        assert start_of(node.broker) > 3
        expected = {f"t/{number}": f"r{number}" for number in range(3)}
        assert await greeting(node, 3) == expected
    async with serving(tmp_path) as node:
        assert await greeting(node, 3) == expected
        publisher = await open_short(node)
        await publisher.publish("t/0", "new", retain=True)
        await publisher.publish("t/1", "", retain=True)
        assert await greeting(node, 2) == {"t/0": "new", "t/2": "r2"}
        await fill(node, publisher)
    async with serving(tmp_path) as node:
        assert await greeting(node, 2) == {"t/0": "new", "t/2": "r2"}
        copies = node.broker.streams.get(STREAM).partitions[0]
        assert copies.end_offset == 6  # three copies, two tombstones, one copy again


async def test_what_is_copied_is_found_again_when_the_broker_dies_right_after(tmp_path):
    """Nothing is saved by a timer here: the copy and where it is were saved before the record."""
    async with serving(tmp_path / "alive") as node:
        publisher = await open_short(node)
        await publisher.publish("t/1", "r", retain=True)
        await fill(node, publisher)
        assert start_of(node.broker) > 1
        shutil.copytree(tmp_path / "alive", tmp_path / "dead")  # what a killed process leaves
    async with serving(tmp_path / "dead") as node:
        assert await greeting(node, 1) == {"t/1": "r"}


async def test_a_message_is_written_once_until_its_record_leaves(tmp_path):
    """I1."""
    async with serving(tmp_path) as node:
        publisher = await open_short(node)
        await publisher.publish("t/1", "r", retain=True)
        await node.broker.maintenance.run_once()
        assert await greeting(node, 1) == {"t/1": "r"}
        assert node.broker.streams.get(STREAM).partitions[0].end_offset == 0


async def test_a_copy_keeps_everything_that_the_message_had(tmp_path):
    """I6."""
    properties = Properties(
        content_type="text/plain",
        message_expiry_s=600,
        correlation_data=b"\0\1",
        user_properties=(("a", "1"), ("a", "2")),
    )
    async with serving(tmp_path) as node:
        publisher = await open_short(node)
        await publisher.publish("t/1", "r", qos=2, retain=True, properties=properties)
        await fill(node, publisher)
        client = await node.client("c")
        await client.subscribe("t/1", 2)
        message = await client.message()
        assert (message.qos, message.retain, message.payload) == (2, True, b"r")
        assert message.properties.content_type == "text/plain"
        assert message.properties.correlation_data == b"\0\1"
        assert message.properties.user_properties == (("a", "1"), ("a", "2"))
        assert 590 <= (message.properties.message_expiry_s or 0) <= 600


async def test_a_copy_that_was_not_acknowledged_comes_again(tmp_path):
    """MQTT5 4.4, also after a restart."""
    async with serving(tmp_path) as node:
        publisher = await open_short(node)
        await publisher.publish("t/1", "r", retain=True)
        await fill(node, publisher)
        client = await node.client("c", expiry_s=60)
        await client.subscribe("t/1", 1)
        first = await client.message()
        await client.drop()
        await node.gone("c")
        client = await node.client("c", clean=False, expiry_s=60)
        again = await client.message()
        assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"r")
    async with serving(tmp_path) as node:
        client = await node.client("c", clean=False, expiry_s=60)
        again = await client.message()
        assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"r")


async def test_a_retained_message_outlives_compaction_when_another_message_follows_it(tmp_path):
    """A message without the flag is the last of its key, and leaves what is retained alone."""
    async with serving(tmp_path) as node:
        publisher = await open_short(node, COMPACT)
        await publisher.publish("t/1", "retained", retain=True)
        await publisher.publish("t/2", "last", retain=True)
        await publisher.publish("t/1", "not retained")
        for _ in range(2):
            await fill(node, publisher)
        partition = node.broker.streams.get("short").partitions[0]
        assert node.broker.maintenance.counters.records_compacted > 0
        assert await greeting(node, 2) == {"t/1": "retained", "t/2": "last"}
        assert node.broker.streams.get(STREAM).partitions[0].end_offset == 1
        assert partition.stopped is None


async def test_a_message_that_is_retained_while_others_are_copied_counts(tmp_path):
    async with serving(tmp_path) as node:
        publisher = await open_short(node)
        for number in range(40):
            await publisher.publish(f"t/{number}", "old", retain=True)
        for _ in range(6):
            await publisher.publish("t/other", "x" * 2000)
        retaining = asyncio.create_task(node.broker.maintenance.retain_once())
        for number in range(0, 40, 2):
            await publisher.publish(f"t/{number}", "new", retain=True)
        await retaining
        found = await greeting(node, 40)
        assert found == {f"t/{n}": "old" if n % 2 else "new" for n in range(40)}
    async with serving(tmp_path) as node:
        assert await greeting(node, 40) == found


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("receive_maximum", [10, 1000])
async def test_a_greeting_that_a_disconnect_cut_goes_on_with_the_next_connection(
    tmp_path, qos, receive_maximum
):
    """MQTT5 4.1: what waits for a session is sent; and each message once while the broker runs."""
    options = {"clean": False, "expiry_s": 600, "receive_maximum": receive_maximum}
    topics = {f"t/{number}" for number in range(700)}
    async with serving(tmp_path, limits=MqttLimits(inflight=1000)) as node:
        publisher = await node.client("p")
        for topic in topics:
            await publisher.publish(topic, "r", qos, retain=True)
        client = await node.client("c", **options)
        await client.subscribe("t/#", qos)
        done = await take_topics(client, 5)
        await client.drop()
        await node.gone("c")
        await publisher.publish("t/new", "live", qos, retain=True)
        client = await node.client("c", **options)
        rest = await take_topics(client, 696)
        assert {*done, *rest} == {*topics, "t/new"}
        assert not set(done) & set(rest)
        assert await client.is_silent()


async def take_topics(client: Client, count: int) -> list[str]:
    found = []
    for _ in range(count):
        message = await client.message()
        assert message.retain or message.dup or message.topic == "t/new"
        found.append(message.topic)
        await client.acknowledge(message)
    return found


async def test_a_greeting_that_a_restart_cut_begins_anew(tmp_path):
    options = {"clean": False, "expiry_s": 600, "receive_maximum": 10}
    topics = {f"t/{number}" for number in range(50)}
    async with serving(tmp_path) as node:
        publisher = await node.client("p")
        for topic in topics:
            await publisher.publish(topic, "r", retain=True)
        client = await node.client("c", **options)
        await client.subscribe("t/#", 1)
        await client.message()
        await client.drop()
    async with serving(tmp_path) as node:
        client = await node.client("c", **options)
        found: set[str] = set()
        while found != topics:
            found.update(await take_topics(client, 1))
        await client.sync()
        await client.unsubscribe("t/#")
        await client.disconnect()
    async with serving(tmp_path) as node:  # it is over
        client = await node.client("c", **options)
        assert not node.hub.sessions["c"].greetings


@pytest.mark.warm
async def test_a_greeting_ends_with_its_subscription(tmp_path):
    async with serving(tmp_path) as node:
        publisher = await node.client("p")
        for number in range(50):
            await publisher.publish(f"t/{number}", "r", retain=True)
        client = await node.client("c", expiry_s=600, receive_maximum=10)
        await client.subscribe("t/#", 1)
        assert list(node.hub.sessions["c"].greetings) == ["t/#"]
        await client.unsubscribe("t/#")
        await take_topics(client, 10)
        assert await client.is_silent()
        assert not node.hub.sessions["c"].greetings


async def test_what_comes_again_says_what_it_said_at_first(tmp_path):
    """The identifier and the flags belong to the message as its subscriber gets it."""
    async with serving(tmp_path) as node:
        client, publisher = await node.client("c", expiry_s=600), await node.client("p")
        await client.subscribe("t/#", 1, identifier=7, retain_as_published=True)
        await publisher.publish("t/1", "r", retain=True)
        first = await client.message()
        await client.drop()
        await node.gone("c")
        client = await node.client("c", clean=False, expiry_s=600)
        again = await client.message()
        assert msgspec.structs.replace(again, dup=False) == first
        assert (again.dup, again.retain) == (True, True)
        assert again.properties.subscription_ids == (7,)


async def test_a_copy_ends_with_its_stream(tmp_path):
    async with serving(tmp_path) as node:
        publisher = await open_short(node)
        await publisher.publish("t/1", "r", retain=True)
        await fill(node, publisher)
        await node.broker.streams.delete("short")
        assert await greeting(node, 0) == {}


@pytest.mark.parametrize("ttl_ms", [-1, 1])
async def test_a_copy_lives_no_longer_than_its_stream_lets_messages_live(tmp_path, ttl_ms):
    config = StreamConfig(
        name="short",
        captures=("t/#",),
        retention=SHORT.retention,
        segment_bytes=4096,
        message_ttl_ms=600_000 if ttl_ms > 0 else -1,
        durability=Durability.OS,
    )
    async with serving(tmp_path) as node:
        publisher = await open_short(node, config)
        await publisher.publish("t/1", "r", retain=True)
        await fill(node, publisher)
        client = await node.client("c")
        await client.subscribe("t/1", 1)
        left_s = (await client.message()).properties.message_expiry_s
        assert left_s is None if ttl_ms < 0 else 590 <= left_s <= 600
