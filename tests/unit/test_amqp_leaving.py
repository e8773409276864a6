"""Nothing of an AMQP connection that ended waits for the cycle collector, however it ended.

`onelog serve` lets the collector come seldom: what lies about in cycles meanwhile is memory that a
peer fills by coming and going (I8).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.protocols.amqp import connection, publishing
from tests.conformance.amqp_raw import (
    PROTOCOL,
    Basic,
    Channel,
    Connection,
    Raw,
    RawChannel,
    Refused,
    Tx,
)
from tests.support.amqp import Node, serving
from tests.support.mqtt import until

TIMES = 20
"""Visits that end in one way; there are ten ways and more, so two hundred come and go."""
OURS = (
    "onelog.protocols.amqp.",
    "onelog.queues.",
    "onelog.net.",
    "onelog.cursors.",
    "onelog.kernel._native.amqp_",
    "onelog.kernel.pure.amqp_",
)
"""Where the parts of a connection and of its queues are made."""
REMEMBERED = {"Address"}
"""What is remembered on purpose, up to a bound, for whoever comes next."""

# -- what a visitor has when it goes


def settle_in(raw: Raw) -> list[RawChannel]:
    """All that channels may have: confirms, consumers, tx, replies, half a publish."""
    confirming, transactional, asking, halfway = (raw.channel() for _ in range(4))
    queue, other = (confirming.queue(exclusive=True, auto_delete=True) for _ in range(2))
    confirming.confirm()
    confirming.put("", queue, *"123456")
    confirming.put("", other, *"123")
    confirming.qos(4, whole_channel=True)
    for name in (queue, other):
        confirming.send(Basic.Consume(queue=name, nowait=True, arguments={}))
    confirming.ack(confirming.messages(4)[0].tag)
    confirming.message()
    transactional.ask(Tx.Select(), Tx.SelectOk)
    transactional.publish("", queue, "not committed")
    found = transactional.get(queue, no_ack=False)
    assert found is not None
    transactional.ack(found.tag)
    asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    asking.publish("", queue, "a question", reply_to="amq.rabbitmq.reply-to")
    asking.sync()
    halfway.send(Basic.Publish(exchange="", routing_key=queue))
    raw.send_frame(2, halfway.number, struct.pack(">HHQH", 60, 0, 10, 0))
    raw.send_frame(3, halfway.number, b"12345")
    return [confirming, transactional, asking, halfway]


def finish_publish(channel: RawChannel) -> None:
    channel.raw.send_frame(3, channel.number, b"67890")


# -- how it goes


def closes_in_order(raw: Raw) -> None:
    settle_in(raw)
    raw.close()


def closes_its_channels(raw: Raw) -> None:
    channels = settle_in(raw)
    finish_publish(channels[-1])
    for channel in channels:
        channel.close()


def channels_fail(raw: Raw) -> None:
    channels = settle_in(raw)
    finish_publish(channels[-1])
    for channel in channels:
        channel.ack(99_999)
        with pytest.raises(Refused):
            channel.expect(Basic.Ack)


def leaves_a_failed_channel_open(raw: Raw) -> None:
    confirming = settle_in(raw)[0]
    confirming.ack(99_999)
    raw.read_method(confirming.number)


def resets(raw: Raw) -> None:
    settle_in(raw)
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def leaves_without_a_word(raw: Raw) -> None:
    settle_in(raw)


def sends_a_wrong_frame(raw: Raw) -> None:
    settle_in(raw)
    raw.send_frame(9, 0, b"")
    raw.expect(0, Connection.Close)
    raw.send(0, Connection.CloseOk())
    assert raw.is_ended()


def sends_a_method_out_of_turn(raw: Raw) -> None:
    settle_in(raw)
    raw.send(1, Channel.Open())
    raw.expect(0, Connection.Close)
    raw.send(0, Connection.CloseOk())
    assert raw.is_ended()


def leaves_while_it_is_served(raw: Raw) -> None:
    channels = settle_in(raw)
    channels[1].send(Tx.Commit())
    channels[0].send(Basic.Recover(requeue=True))
    for number in range(20):
        channels[2].publish("amq.topic", f"new.{number}", "unconfirmed")


def leaves_during_the_login(raw: Raw) -> None:
    raw.send_bytes(PROTOCOL)
    raw.expect(0, Connection.Start)


def is_refused(raw: Raw) -> None:
    raw.begin()
    with pytest.raises(Refused):
        raw.log_in("nobody", "wrong")


def does_not_answer(raw: Raw) -> None:
    """It is told to go."""
    settle_in(raw)
    raw.send_frame(9, 0, b"")


def falls_silent(raw: Raw) -> None:
    """Its heartbeats are awaited."""
    settle_in(raw)


FROM_THE_START = {leaves_during_the_login, is_refused}
ENDS: tuple[Callable[[Raw], None], ...] = (
    closes_in_order,
    closes_its_channels,
    channels_fail,
    leaves_a_failed_channel_open,
    resets,
    leaves_without_a_word,
    sends_a_wrong_frame,
    sends_a_method_out_of_turn,
    leaves_while_it_is_served,
    leaves_during_the_login,
    is_refused,
)
LATE: tuple[Callable[[Raw], None], ...] = (does_not_answer, falls_silent)
"""The broker ends these, after a while; many are there at once."""


def visit(port: int, end: Callable[[Raw], None], times: int) -> None:
    for _ in range(times):
        with Raw(port) as raw:
            end(raw if end in FROM_THE_START else raw.open())


def visit_together(port: int, end: Callable[[Raw], None], times: int) -> None:
    with contextlib.ExitStack() as stack:
        visitors = [stack.enter_context(Raw(port)) for _ in range(times)]
        for raw in visitors:
            end(raw.open(beat_s=1))
        assert all(raw.is_ended() for raw in visitors)


def ours() -> Counter[str]:
    """What there is of this house, found without freeing anything."""
    kinds = Counter(type(row) for row in gc.get_objects())
    return Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if str(kind.__module__).startswith(OURS) and kind.__name__ not in REMEMBERED
        }
    )


async def left_behind(before: Counter[str]) -> Counter[str]:
    """What is there that was not before, once everything had time to go."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            await until(lambda: not ours() - before)
    return ours() - before


async def warm_up(node: Node, end: Callable[[Raw], None]) -> Counter[str]:
    """What there is when everything was made that is made once."""
    await asyncio.to_thread(visit, node.port, end, 1)
    await until(lambda: not node.hub.connections)
    gc.collect()
    return ours()


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("end", ENDS)
async def test_who_leaves_takes_everything_along(tmp_path: Path, end: Callable[[Raw], None]):
    async with serving(tmp_path) as node:
        before = await warm_up(node, end)
        await asyncio.to_thread(visit, node.port, end, TIMES)
        assert not await left_behind(before)


@pytest.mark.parametrize("end", LATE)
async def test_who_is_ended_late_takes_everything_along(
    tmp_path: Path, end: Callable[[Raw], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "_CLOSE_DEADLINE_S", 0.5)
    async with serving(tmp_path) as node:
        before = await warm_up(node, end)
        await asyncio.to_thread(visit_together, node.port, end, TIMES)
        assert not await left_behind(before)


@pytest.mark.parametrize("end", [closes_its_channels, channels_fail])
async def test_channels_that_come_and_go_on_one_connection_leave_nothing(
    tmp_path: Path, end: Callable[[Raw], None]
):
    async with serving(tmp_path) as node:
        with Raw(node.port) as raw:
            await asyncio.to_thread(raw.open)
            await asyncio.to_thread(end, raw)
            await until(lambda: not node.hub.vhosts.find("/").queues)
            gc.collect()
            before = ours()
            for _ in range(TIMES):
                await asyncio.to_thread(end, raw)
            assert not await left_behind(before)
            assert len(node.hub.connections) == 1


async def test_who_leaves_while_there_is_no_room_takes_everything_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What it published waits for room on the disk."""
    monkeypatch.setattr(publishing, "RETRY_S", 0.05)
    async with serving(tmp_path) as node:
        before = await warm_up(node, leaves_without_a_word)
        for _ in range(3):
            with Raw(node.port) as raw:
                await asyncio.to_thread(lambda raw=raw: settle_in(raw.open()))
                channel = await asyncio.to_thread(raw.channel)
                await asyncio.to_thread(channel.confirm)
                faults.arm("segment.write", faults.fail_with(28))
                for number in range(3):
                    channel.publish("amq.topic", "a.b", str(number))
                await asyncio.to_thread(raw.expect, 0, Connection.Blocked)
            faults.disarm()  # who is blocked is not read: that it left is seen when there is room
            await until(lambda: not node.hub.connections)
        assert not await left_behind(before)
