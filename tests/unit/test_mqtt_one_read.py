"""Several packets in one read: each is answered, and each finds what came before it done."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base import faults
from onelog.base.errors import StorageError
from onelog.broker import BrokerSettings, Durability, StreamConfig
from onelog.log.partition import Partition
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from onelog.protocols.mqtt.saving import WAITING_MAX
from tests.support.brokers import FAST
from tests.support.mqtt import Client, serving, until

FSYNC = BrokerSettings(
    main=StreamConfig(name="main", captures=("#",), partitions=4, durability=Durability.FSYNC),
    checkpoint_interval_s=3600.0,
)


def write(client: Client, *packets) -> None:
    """All of them in one segment, so that the broker reads them at once."""
    client._writer.write(b"".join(encode_packet(row, client.version) for row in packets))


def publish(number: int, qos: int, topic: str = "t", **fields) -> Publish:
    payload = b"%d" % number
    return Publish(topic=topic, payload=payload, qos=qos, packet_id=number if qos else 0, **fields)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "second", [publish(2, 2), publish(2, 1, "$delayed/60/t"), publish(2, 0, "$delayed/60/t")]
)
async def test_a_puback_is_not_withheld_by_what_comes_behind_it_in_the_read(
    tmp_path, version, second
):
    async with serving(tmp_path) as node:
        client = await node.client("c", version=version)
        write(client, publish(1, 1), second)
        answers = {(await client.receive(Puback)).packet_id}
        if second.qos == 1:
            answers.add((await client.receive(Puback)).packet_id)
        assert 1 in answers
        if second.qos == 2:
            assert (await client.receive(Pubrec)).packet_id == 2


async def test_a_write_that_fails_in_the_middle_of_a_read_is_not_acknowledged(
    tmp_path, monkeypatch
):
    """I4: the acknowledgement belongs to the write of its own record, whoever writes when."""
    async with serving(tmp_path) as node:
        publisher = node.broker.publisher
        stream = node.broker.streams.get("main")
        topics = {int(stream.partition_of(b"t%d" % n).id): f"t{n}" for n in range(100)}
        first, other = topics[0], topics[1]
        client = await node.client("c")
        await client.publish(first)
        await client.publish(other)

        append = Partition.append_built

        def append_or_fail(partition, builder, index_topics):
            if partition is not stream.partition(0):
                return append(partition, builder, index_topics)
            builder.seal(0, 0)
            raise StorageError("the disk is gone")

        monkeypatch.setattr(Partition, "append_built", append_or_fail)
        monkeypatch.setitem(faults.armed, "nowhere", lambda: None)  # then all take the long way
        # Somebody ends the pass while the read is dealt with, and the next one writes elsewhere.
        route = node.hub.resolve

        def resolve(principal, topic):
            if topic == b"fresh":
                publisher.tick()
            return route(principal, topic)

        node.hub.resolve = resolve
        write(client, publish(11, 1, first), publish(12, 1, "fresh"), publish(13, 1, other))
        answers = {}
        for _ in range(3):
            answer = await client.receive(Puback)
            answers[answer.packet_id] = int(answer.reason)
        fresh = int(stream.partition_of(b"fresh").id)
        assert answers == {11: 0x80, 12: 0x80 if fresh == 0 else 0, 13: 0}


@pytest.mark.parametrize("settings", [FAST, FSYNC])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
async def test_a_subscription_does_not_get_what_its_client_published_before_it(
    tmp_path, settings, qos, kept
):
    """MQTT5 3.3.1-8, 3.3.1-11: with Retain Handling 2 it gets nothing of that at all."""
    async with serving(tmp_path, settings=settings) as node:
        client = await node.client("c", expiry_s=60 if kept else 0)
        row = Subscription("t", 2, retain_handling=2)
        write(client, publish(1, qos, retain=True), Subscribe(9, (row,)), publish(2, qos))
        await client.receive(Suback)
        assert (await client.message()).payload == b"2"
        assert await client.is_silent()


@pytest.mark.parametrize("settings", [FAST, FSYNC])
async def test_a_subscription_finds_retained_what_its_client_published_before_it(
    tmp_path, settings
):
    async with serving(tmp_path, settings=settings) as node:
        client = await node.client("c")
        write(client, publish(1, 0, retain=True), Subscribe(9, (Subscription("t", 1),)))
        await client.receive(Suback)
        message = await client.message()
        assert (message.payload, message.retain) == (b"1", True)
        assert await client.is_silent()


@pytest.mark.parametrize("settings", [FAST, FSYNC])
async def test_a_client_gets_what_it_published_before_it_unsubscribed(tmp_path, settings):
    async with serving(tmp_path, settings=settings) as node:
        client = await node.client("c")
        await client.subscribe("t", 0)
        write(client, publish(1, 0), Unsubscribe(9, ("t",)), publish(2, 0))
        await client.receive(Unsuback)
        assert (await client.message()).payload == b"1"
        assert await client.is_silent()


async def handshake(client: Client, packet_id: int, count: int) -> list[tuple[str, int]]:
    """The next answers to a publish of QoS 2, in their order."""
    found = []
    while len(found) < count:
        answer = await client.receive((Pubrec, Pubcomp))
        assert answer.packet_id == packet_id
        found.append((type(answer).__name__, int(answer.reason)))
    return found


@pytest.mark.parametrize("settings", [FAST, FSYNC])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kept", [False, True])
async def test_pubcomp_never_precedes_the_pubrec_of_its_packet_id(
    tmp_path, settings, version, kept
):
    """MQTT5 4.3.3, I4: what is released at once is durable first, too."""
    async with serving(tmp_path, settings=settings) as node:
        how = {"expiry_s": 60} if version == 5 else {"clean": False}
        client = await node.client("c", version=version, **(how if kept else {}))
        unknown = 0x92 if version == 5 else 0
        write(client, publish(1, 2), Pubrel(1), Pubrel(1), publish(1, 2), Pubrel(1))
        assert await handshake(client, 1, 5) == [
            ("Pubrec", 0), ("Pubcomp", 0), ("Pubcomp", unknown), ("Pubrec", 0), ("Pubcomp", 0),
        ]  # fmt: skip
        reader = await node.client("r")
        await reader.subscribe("t", 2)
        assert client._arrived == []
        (connection,) = (c for c in node.hub.connections if c.session.client_id == "c")
        assert (connection.input.unanswered, len(connection.unanswered.receiving)) == (0, 0)
        assert sum(int(p.high_watermark) for p in node.broker.streams.get("main").partitions) == 2


async def test_releases_that_wait_for_a_disk_that_hangs_are_bounded(tmp_path, monkeypatch):
    """I8: each would cost fifty times its four bytes."""
    async with serving(tmp_path) as node:
        client = await node.client("c", expiry_s=60)
        (connection,) = node.hub.connections
        save, hanging, go_on = node.broker.cursors.save, asyncio.Event(), asyncio.Event()

        async def hang(*cursors):
            hanging.set()
            await go_on.wait()
            await save(*cursors)

        monkeypatch.setattr(node.broker.cursors, "save", hang)
        count = 3 * WAITING_MAX
        write(client, *(Pubrel(number % 100 + 1) for number in range(count)))
        try:
            await hanging.wait()
            await until(lambda: connection.input.suspended and connection.session.saver.is_full)
            for _ in range(100):  # passes of the loop
                await asyncio.sleep(0)
            assert connection.input.suspended
            assert len(connection.session.saver._waiting) <= WAITING_MAX
        finally:
            go_on.set()
        answers = [await client.receive(Pubcomp) for _ in range(count)]
        assert [row.packet_id for row in answers] == [n % 100 + 1 for n in range(count)]


async def test_a_release_waits_for_a_publish_that_fails_and_then_finds_nothing(
    tmp_path, monkeypatch
):
    async with serving(tmp_path) as node:
        client = await node.client("c")

        def fail(*_args, **_options):
            raise StorageError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(Partition, "append_built", fail)
            patch.setitem(faults.armed, "nowhere", lambda: None)  # then all take the long way
            write(client, publish(1, 2), Pubrel(1))
            assert await handshake(client, 1, 2) == [("Pubrec", 0x80), ("Pubcomp", 0x92)]
        write(client, publish(1, 2), Pubrel(1))
        assert await handshake(client, 1, 2) == [("Pubrec", 0), ("Pubcomp", 0)]
