"""`$replay`: history from a point on, then what comes, nothing lost and nothing twice."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.errors import InvalidName
from onelog.broker import EARLIEST, LATEST, Start
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.replay import parse_start
from tests.support.mqtt import serving


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("offset:0", Start("offset", 0)),
        ("offset:42", Start("offset", 42)),
        ("1700000000000", Start("time", 1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", Start("time", 1_700_000_000_000)),
        ("2023-11-14T22:13:20.5Z", Start("time", 1_700_000_000_500)),
        ("2023-11-14T22:13:20", Start("time", 1_700_000_000_000)),
        ("2023-11-14T17:13:20-05:00", Start("time", 1_700_000_000_000)),
        ("2023-11-14", Start("time", 1_699_920_000_000)),
    ],
)
def test_a_start_is_read(text, start):
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "now", "offset:", "offset:-1", "offset:x", "9" * 30, "٣"])
def test_a_start_that_says_nothing_is_refused(text):
    with pytest.raises(InvalidName):
        parse_start(text)


async def test_history_comes_first_then_what_is_published_in_order(tmp_path):
    """I2: history written before the subscription existed."""
    async with serving(tmp_path) as node:
        sender = await node.client("sender")
        for number in range(5):
            await sender.publish("a/b", str(number))
        client = await node.client("client")
        assert await client.subscribe("$replay/earliest/a/#", 1) == 1
        for number in range(5, 8):
            await sender.publish("a/b", str(number))
        assert await client.take(8) == [str(number) for number in range(8)]
        assert await client.is_silent()


async def test_nothing_is_lost_or_doubled_while_publishing_goes_on(tmp_path):
    async with serving(tmp_path) as node:
        sender = await node.client("sender")
        for number in range(300):
            await sender.publish("a", str(number))
        client = await node.client("client", receive_maximum=7)

        async def publish_on():
            for number in range(300, 600):
                await sender.publish("a", str(number))

        publishing = asyncio.create_task(publish_on())
        assert await client.subscribe("$replay/earliest/a", 1) == 1
        assert await client.take(600) == [str(number) for number in range(600)]
        await publishing
        assert await client.is_silent()


async def test_an_offset_or_a_time_says_where_to_begin(tmp_path):
    async with serving(tmp_path) as node:
        sender = await node.client("sender")
        for number in range(3):
            await sender.publish("a", str(number))
        stream = node.broker.streams.home("a")
        partition = stream.partition_of(b"a")
        reading = node.broker.cursors.reading(("a",), ())
        times = [record.timestamp_ms for _index, record in reading.read(3)]
        assert partition.high_watermark == 3
        client = await node.client("client")
        await client.subscribe("$replay/offset:2/a", 1)
        assert await client.take() == ["2"]
        await client.subscribe(f"$replay/{times[0]}/a", 1)
        assert (await client.take(3))[-1] == "2"
        await client.subscribe(f"$replay/{times[-1] + 1}/a", 1)
        await client.subscribe("$replay/latest/a", 1)
        assert await client.is_silent()


async def test_replays_are_independent_of_each_other_and_of_plain_subscriptions(tmp_path):
    async with serving(tmp_path) as node:
        sender = await node.client("sender")
        await sender.publish("a", "old")
        client = await node.client("client")
        await client.subscribe("a", 1, identifier=1)
        await client.subscribe("$replay/earliest/a", 0, identifier=2)
        old = await client.message()
        assert (old.payload, old.qos, old.properties.subscription_ids) == (b"old", 0, (2,))
        await sender.publish("a", "new")
        found = {(m.payload, m.qos, m.properties.subscription_ids) for m in [
            await client.message(), await client.message()
        ]}  # fmt: skip
        assert found == {(b"new", 1, (1,)), (b"new", 0, (2,))}


async def test_unsubscribe_with_the_same_words_ends_a_replay(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        await client.subscribe("$replay/earliest/a", 1)
        assert await client.unsubscribe("$replay/latest/a") == ReasonCode.NO_SUBSCRIPTION_EXISTED
        assert await client.unsubscribe("$replay/earliest/a") == 0
        sender = await node.client("sender")
        await sender.publish("a", "late")
        assert await client.is_silent()


async def test_a_bad_start_is_refused_and_the_connection_lives(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        for text in ("$replay/someday/a", "$replay/earliest", "$replay/"):
            assert await client.subscribe(text) == ReasonCode.TOPIC_FILTER_INVALID
        assert await client.is_silent()


async def test_a_persistent_session_goes_on_where_it_stood(tmp_path):
    async with serving(tmp_path) as node:
        sender = await node.client("sender")
        for number in range(4):
            await sender.publish("a", str(number))
        client = await node.client("client", clean=False, expiry_s=60, receive_maximum=2)
        await client.subscribe("$replay/earliest/a", 1)
        assert await client.take(2) == ["0", "1"]
        held = [await client.message(), await client.message()]
        assert [message.payload for message in held] == [b"2", b"3"]
        await client.drop()
        await node.gone("client")
        await sender.publish("a", "4")
    async with serving(tmp_path) as node:
        client = await node.client("client", clean=False, expiry_s=60)
        again = [await client.message() for _ in range(2)]
        assert [(m.payload, m.dup, m.packet_id) for m in again] == [
            (m.payload, True, m.packet_id) for m in held
        ]
        assert await client.take() == ["4"]
        assert await client.is_silent()


async def test_no_local_and_retain_as_published_hold_for_a_replay(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        sender = await node.client("sender")
        await client.subscribe("$replay/earliest/a", 1, no_local=True, retain_as_published=True)
        await client.publish("a", "own")
        await client.publish("a", "own too", qos=2)
        await sender.publish("a", "kept", retain=True)
        message = await client.message()
        assert (message.payload, message.retain) == (b"kept", True)
        assert await client.is_silent()


async def test_qos_2_history_arrives_once(tmp_path):
    async with serving(tmp_path) as node:
        sender = await node.client("sender")
        await sender.publish("a", "x", qos=2)
        client = await node.client("client", clean=False, expiry_s=60)
        await client.subscribe("$replay/earliest/a", 2)
        assert await client.take() == ["x"]
        assert await client.is_silent()
