"""Quotas of publishes that the kernel stages: one count per read, and what is beyond is owed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onelog.base.errors import QuotaExceeded
from onelog.broker import LOCAL, Message, Principal
from onelog.broker.meter import Meter
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Puback, Publish
from tests.conformance.amqp_raw import Basic, Connection, Raw
from tests.support import amqp, mqtt
from tests.support.brokers import running

ANN = Principal("ann", "test")
BOB = Principal("bob", "test")


class Share:
    """What each principal may publish until a test gives it more."""

    def __init__(self, messages: int, size_bytes: int = 1 << 40, protocol: str = "test") -> None:
        self.messages = messages
        self.size_bytes = size_bytes
        self._protocol = protocol
        self.taken: list[tuple[int, int]] = []

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        if principal.protocol != self._protocol:
            return
        if messages > self.messages or size_bytes > self.size_bytes:
            raise QuotaExceeded(f"{principal.name} has used up its share")
        self.messages -= messages
        self.size_bytes -= size_bytes
        self.taken.append((messages, size_bytes))


def test_what_fits_is_taken_in_one_call() -> None:
    share = Share(1_000)
    meter = Meter(share)
    assert meter.charge(ANN, 700, 7_000) is None
    assert share.taken == [(700, 7_000)]
    assert meter.debt_of(ANN) is None


def test_what_does_not_fit_is_owed_and_taken_before_anything_else() -> None:
    share = Share(100)
    meter = Meter(share)
    assert isinstance(meter.charge(ANN, 128, 1_280), QuotaExceeded)
    assert share.messages < 100, "as much as fits is taken at once"
    with pytest.raises(QuotaExceeded):
        meter.take_publish(ANN, 64, 1)
    meter.take_publish(BOB, 1, 1)  # it is nobody else's debt
    share.messages = 1_000
    share.taken.clear()
    meter.take_publish(ANN, 5, 50)
    assert share.taken[-1] == (5, 50)
    assert len(share.taken) == 2


def test_everything_staged_is_counted_in_the_end() -> None:
    share = Share(0)
    meter = Meter(share)
    staged = 0
    for number in range(1, 50):
        assert meter.charge(ANN, number, 10 * number) is not None
        staged += number
        share.messages += number // 2
    share.messages += 10_000
    assert meter.debt_of(ANN) is None
    assert sum(messages for messages, _bytes in share.taken) == staged
    assert sum(size_bytes for _messages, size_bytes in share.taken) == 10 * staged


def test_a_message_larger_than_all_that_a_share_ever_holds_is_taken_in_parts() -> None:
    share = Share(10, 100)
    meter = Meter(share)
    assert meter.charge(ANN, 1, 1_000) is not None
    rounds = 0
    while meter.debt_of(ANN) is not None:
        share.size_bytes = 100  # it is full again
        rounds += 1
        assert rounds < 40
    assert sum(size_bytes for _messages, size_bytes in share.taken) == 1_000


async def test_a_principal_that_owes_has_no_route_and_is_refused(tmp_path: Path) -> None:
    share = Share(5)
    async with running(tmp_path, quotas=share) as broker:
        publisher = broker.publisher
        assert publisher.is_metered
        assert publisher.route("t", ANN) is not None
        assert publisher.charge(ANN, 8, 80) is not None
        assert publisher.route("t", ANN) is None
        assert publisher.route("t", BOB) is not None
        with pytest.raises(QuotaExceeded):
            await broker.publish(Message("t", b"x"), principal=ANN)
        share.messages = 100
        await broker.publish(Message("t", b"x"), principal=ANN)
        assert publisher.route("t", ANN) is not None
    async with running(tmp_path) as broker:
        assert not broker.publisher.is_metered
        await broker.publish(Message("t", b"x"), principal=LOCAL)


def publishes(count: int, first: int = 1) -> bytes:
    rows = (
        Publish(topic="t", payload=b"12345", qos=1, packet_id=first + number)
        for number in range(count)
    )
    return b"".join(encode_packet(row, 5) for row in rows)


async def test_a_quota_leaves_mqtt_publishes_to_the_kernel_and_counts_a_read_once(
    tmp_path: Path,
) -> None:
    share = Share(1_000, protocol="mqtt")
    async with mqtt.serving(tmp_path, quotas=share) as node:
        client = await node.client("c")
        client._writer.write(publishes(200))
        for number in range(1, 201):
            assert (await client.receive(Puback)).packet_id == number
        assert node.hub.turn.received_messages == 200
        assert node.hub.counters.published == 0
        assert len(share.taken) <= 3, "per read, not per message"
        assert sum(messages for messages, _bytes in share.taken) == 200
        assert sum(size_bytes for _messages, size_bytes in share.taken) == 200 * len("t12345")


async def test_an_mqtt_client_over_its_quota_is_refused_until_the_quota_took_all(
    tmp_path: Path,
) -> None:
    """The read that went beyond is written and answered; what comes then gets 0x97."""
    share = Share(10, protocol="mqtt")
    async with mqtt.serving(tmp_path, quotas=share) as node:
        client = await node.client("c")
        client._writer.write(publishes(25))
        answers = [await client.receive(Puback) for _ in range(25)]
        assert [int(row.reason) for row in answers] == [0] * 25
        assert await client.publish("t", "x") == 0x97
        assert await client.publish("u", "x") == 0x97
        share.messages = 100
        assert await client.publish("t", "x") == 0
        before = node.hub.turn.received_messages
        assert await client.publish("t", "x") == 0
        assert node.hub.turn.received_messages == before + 1, "the kernel stages again"
        assert sum(messages for messages, _bytes in share.taken) == 27


async def test_a_quota_leaves_amqp_publishes_to_the_kernel_and_blocks_who_is_over_it(
    tmp_path: Path,
) -> None:
    share = Share(120, protocol="amqp")
    async with amqp.serving(tmp_path, quotas=share) as node:
        loop, publisher = asyncio.get_running_loop(), node.broker.publisher
        charge, charged = publisher.charge, []

        def count(principal: Principal, messages: int, size_bytes: int) -> QuotaExceeded | None:
            charged.append(messages)
            return charge(principal, messages, size_bytes)

        publisher.charge = count  # type: ignore[method-assign]

        def refill() -> None:
            share.messages = 1_000

        def work(raw: Raw) -> None:
            channel = raw.channel()
            queue = channel.queue(durable=True)
            channel.confirm()
            channel.put("", queue, "with a look")
            channel.put("", queue, *("x" for _ in range(100)))
            assert sum(charged) == 100, "the kernel staged them"
            for _ in range(100):
                channel.publish("", queue, "x")
            assert "its share" in raw.expect(0, Connection.Blocked).reason
            loop.call_soon_threadsafe(refill)
            raw.expect(0, Connection.Unblocked)
            while len(channel.confirmed) < 201:
                found = channel.expect(Basic.Ack)
                channel.confirmed |= set(range(1, found.delivery_tag + 1))
            assert len(channel.all(queue)) == 201

        await amqp.talk(node.port, work)
        assert sum(messages for messages, _bytes in share.taken) == 201
