"""A read full of the smallest frames: the other AMQP connections have their turns between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from pamqp import body as bodies
from pamqp import commands, frame, header

from onelog.protocols.amqp.channel import Channel as AmqpChannel
from onelog.protocols.amqp.connection import Connection
from onelog.protocols.amqp.reading import ROWS_PER_PASS
from tests.conformance.amqp_raw import Basic, Channel, Queue, Raw
from tests.support.amqp import serving

COUNT = 5_000
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
SMALL = {
    "qos": frame.marshal(Basic.Qos(prefetch_count=1), 1),
    "flow": frame.marshal(Channel.Flow(active=True), 1),
    "ack": frame.marshal(Basic.Ack(delivery_tag=9), 1),
    "heartbeat": HEARTBEAT,
}


def opened(port: int) -> Raw:
    raw = Raw(port)
    raw.open()
    raw.channel()
    return raw


def published(queue: str, body: bytes) -> bytes:
    """The frames of a publish."""
    head = header.ContentHeader(body_size=len(body), properties=Basic.Properties())
    parts = (Basic.Publish(exchange="", routing_key=queue), head, bodies.ContentBody(body))
    return b"".join(frame.marshal(part, 1) for part in parts)


@pytest.fixture
def taken(monkeypatch):
    """What connections took of their peers."""
    done: list[object] = []
    take = Connection.take

    def counted(connection, event):
        done.append(event)
        take(connection, event)

    monkeypatch.setattr(Connection, "take", counted)
    return done


async def most_in_a_pass(done: list[object], count: int) -> int:
    """How far `done` grows in one pass of the loop at most, until it is `count` longer."""
    most, end = 0, len(done) + count
    while len(done) < end:
        before = len(done)
        await asyncio.sleep(0)
        most = max(most, len(done) - before)
    return most


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop go round until something is so."""
    for _ in range(COUNT):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was so")


@pytest.mark.parametrize("kind", sorted(SMALL))
async def test_a_read_of_many_frames_leaves_the_others_their_turn(tmp_path, taken, kind):
    """One client that sent them as fast as it could held up the whole broker."""
    async with serving(tmp_path) as node:
        raw = await asyncio.to_thread(opened, node.port)
        with raw:
            sending = asyncio.create_task(asyncio.to_thread(raw.send_bytes, SMALL[kind] * COUNT))
            assert await most_in_a_pass(taken, COUNT) <= 2 * ROWS_PER_PASS
            await sending
            (connection,) = node.hub.connections
            await until(connection._transport.is_reading)


async def test_frames_that_waited_for_a_method_leave_the_others_their_turn(tmp_path, monkeypatch):
    done: list[object] = []
    take = AmqpChannel._take

    def counted(channel, event):
        done.append(event)
        take(channel, event)

    monkeypatch.setattr(AmqpChannel, "_take", counted)
    async with serving(tmp_path) as node:
        raw = await asyncio.to_thread(opened, node.port)
        with raw:
            (connection,) = node.hub.connections
            channel = connection.channels[1]
            let_go = asyncio.Event()
            channel._hold(let_go.wait(), Queue.Declare)
            connection.data_received(SMALL["flow"] * 1000 + SMALL["qos"])
            await until(lambda: not connection.reading.is_behind)
            assert not done
            let_go.set()
            assert await most_in_a_pass(done, 1001) <= 2 * ROWS_PER_PASS
            for _ in range(1000):
                await asyncio.to_thread(raw.expect, 1, Channel.FlowOk)
            await asyncio.to_thread(raw.expect, 1, Basic.QosOk)
            assert channel.is_plain


async def test_frames_that_wait_for_their_turn_keep_their_order(tmp_path):
    def talk(port: int) -> tuple[list[str], int]:
        with opened(port) as raw:
            channel = raw.channels[1]
            queue = channel.queue("q", durable=True)
            pieces: list[bytes] = []
            for number in range(1000):
                # The way of the first is known soon; a flow in between is for us to answer.
                between = SMALL["flow"] if number % 3 == 0 else HEARTBEAT
                pieces += (between, published(queue, b"%d" % number))
            pieces.append(frame.marshal(Queue.Declare(queue=queue, passive=True), 1))
            raw.send_bytes(b"".join(pieces))
            for _ in range(334):
                raw.expect(1, Channel.FlowOk)
            count = raw.expect(1, Queue.DeclareOk).message_count
            got = []
            for _ in range(count):
                channel.send(Basic.Get(queue=queue, no_ack=True))
                got.append(raw.read_method(1).text)
            return got, count

    async with serving(tmp_path) as node:
        got, count = await asyncio.to_thread(talk, node.port)
    assert count == 1000
    assert got == [str(number) for number in range(1000)]


async def test_publishes_that_are_staged_among_many_heartbeats_are_confirmed(tmp_path):
    """They are written in the pass in which they were read, whatever waits for its turn."""

    def talk(port: int) -> tuple[int, int]:
        with opened(port) as raw:
            channel = raw.channels[1]
            queue = channel.queue("q", durable=True)
            channel.confirm()
            channel.publish("", queue, b"first")  # from now on its way is known
            confirmed = raw.expect(1, Basic.Ack).delivery_tag
            beats = HEARTBEAT * (3 * ROWS_PER_PASS)
            raw.send_bytes((beats + published(queue, b"more")) * 10)
            while confirmed < 11:
                confirmed = raw.expect(1, Basic.Ack).delivery_tag
            return confirmed, channel.count(queue)

    async with serving(tmp_path) as node:
        assert await asyncio.to_thread(talk, node.port) == (11, 11)


async def test_what_waits_for_its_turn_is_dropped_behind_a_fault(tmp_path, taken):
    """And the connection still ends in order."""
    async with serving(tmp_path) as node:
        raw = await asyncio.to_thread(opened, node.port)
        with raw:
            (connection,) = node.hub.connections
            before = len(taken)
            connection.data_received(HEARTBEAT * COUNT + HEARTBEAT[:-1] + b"\x00")
            connection.data_received(HEARTBEAT * COUNT)  # the transport had it at hand
            found = await asyncio.to_thread(raw.expect, 0, commands.Connection.Close)
            assert found.reply_code == 501
            assert len(taken) - before == COUNT
            raw.send(0, commands.Connection.CloseOk())
            assert await asyncio.to_thread(raw.is_ended)


async def test_a_read_behind_one_that_waits_is_taken_after_it(tmp_path, taken):
    async with serving(tmp_path) as node:
        raw = await asyncio.to_thread(opened, node.port)
        with raw:
            (connection,) = node.hub.connections
            flow = SMALL["flow"]
            connection.data_received(flow * 300 + flow[:5])
            connection.data_received(flow[5:] + SMALL["qos"] * 300)
            for kind, count in ((Channel.FlowOk, 301), (Basic.QosOk, 300)):
                for _ in range(count):
                    await asyncio.to_thread(raw.expect, 1, kind)
            await until(connection._transport.is_reading)


async def test_what_waits_for_its_turn_goes_with_its_connection(tmp_path, taken):
    async with serving(tmp_path) as node:
        raw = await asyncio.to_thread(opened, node.port)
        with raw:
            (connection,) = node.hub.connections
            before = len(taken)
            reading = connection.reading
            connection.data_received(HEARTBEAT * COUNT)
            assert reading.is_behind
            assert not connection._transport.is_reading()
            connection._transport.abort()
            await until(lambda: connection not in node.hub.connections)
            await until(lambda: not reading.is_behind)
            assert len(taken) - before < COUNT
