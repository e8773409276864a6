"""What does an AMQP client cost that asks for much and reads nothing, and how does it end? (I8)"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from onelog.config.amqp import AmqpLimits
from tests.conformance.amqp_raw import Basic, Connection, Queue, Raw
from tests.support.amqp import Node, serving

BODY = bytes(1_000_000)
SEEN_BYTES_MAX = 2 * 1024 * 1024 + 2 * len(BODY)
"""Twice what waits before a connection is told, and the messages at hand."""


def unsent(node: Node) -> int:
    """Bytes that wait for peers."""
    found = [row._transport for row in node.hub.connections]
    return sum(row.get_write_buffer_size() for row in found if row is not None)


def until_still(node: Node) -> int:
    """The bytes that wait when no more come."""
    before, deadline = -1, time.monotonic() + 20
    while (now := unsent(node)) != before and time.monotonic() < deadline:
        before = now
        time.sleep(0.3)
    return now


def gets(raw: Raw) -> None:
    channel = raw.channel()
    queue = channel.queue("q", durable=True)
    channel.publish("", queue, BODY)
    assert channel.count(queue) == 1
    for tag in range(1, 121):
        channel.send(Basic.Get(queue=queue))
        channel.send(Basic.Nack(delivery_tag=tag, multiple=False, requeue=True))


def returned(raw: Raw) -> None:
    channel = raw.channel()
    raw.socket.settimeout(3)
    try:
        for _ in range(120):
            channel.publish("", "nobody", BODY, mandatory=True)
    except TimeoutError:
        pass  # nothing more is read from it


def gets_on_many_channels(raw: Raw) -> None:
    first = raw.channel()
    first.queue("q", durable=True)
    first.publish("", "q", BODY)
    assert first.count("q") == 1
    channels = [raw.channel() for _ in range(100)]
    for channel in channels:
        channel.send(Basic.Get(queue="q"))
        channel.send(Basic.Nack(delivery_tag=1, multiple=False, requeue=True))


@pytest.mark.parametrize("work", [gets, returned, gets_on_many_channels])
async def test_who_asks_and_does_not_read_costs_bounded_memory(tmp_path, work):
    async with serving(tmp_path) as node:

        def run() -> int:
            with Raw(node.port) as raw:
                raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                work(raw.open())
                return until_still(node)

        async with asyncio.timeout(60):
            assert await asyncio.to_thread(run) < SEEN_BYTES_MAX


async def test_who_reads_late_gets_every_answer_in_order(tmp_path):
    async with serving(tmp_path) as node:

        def run() -> list[int]:
            with Raw(node.port) as raw:
                gets(raw.open())
                until_still(node)
                return [raw.read_method(1).tag for _ in range(120)]

        async with asyncio.timeout(60):
            assert await asyncio.to_thread(run) == list(range(1, 121))


async def test_publishes_behind_a_get_that_waits_do_not_overtake_it(tmp_path):
    """What the kernel would stage at once waits behind what waits for the peer to read."""
    async with serving(tmp_path) as node:

        def run() -> tuple[int, int]:
            with Raw(node.port) as raw:
                channel = raw.open().channel()
                channel.queue("other", durable=True)
                channel.queue("q", durable=True)
                channel.publish("", "other", "0")
                channel.publish("", "q", BODY)
                assert channel.count("q") == 1
                for tag in range(1, 21):
                    channel.send(Basic.Get(queue="q"))
                    channel.send(Basic.Nack(delivery_tag=tag, multiple=False, requeue=True))
                until_still(node)
                channel.send(Queue.Purge(queue="other"))
                for number in range(5):
                    channel.publish("", "other", str(number))
                for _ in range(20):
                    assert len(raw.read_method(1).body) == len(BODY)
                return channel.expect(Queue.PurgeOk).message_count, channel.count("other")

        async with asyncio.timeout(60):
            assert await asyncio.to_thread(run) == (1, 5)


async def test_frames_of_all_channels_that_wait_are_bounded_together(tmp_path):
    """Each of two thousand channels could hold its own share before."""
    limits = AmqpLimits(waiting_bytes=64 * 1024)
    async with serving(tmp_path, limits) as node:

        def run() -> int:
            with Raw(node.port) as raw:
                gets(raw.open())
                until_still(node)
                raw.socket.settimeout(1)
                try:
                    for _ in range(2000):
                        raw.channels[1].publish("", "q", bytes(10_000))
                except TimeoutError:
                    pass
                (connection,) = node.hub.connections
                return connection.waiting.size_bytes

        async with asyncio.timeout(60):
            assert await asyncio.to_thread(run) < 64 * 1024 + 2 * 256 * 1024


# -- the end


def closes(raw: Raw) -> bytes:
    """Close while frames are still on their way; what comes until the end."""
    channel = raw.open().channel()
    channel.queue("q")
    raw.send(0, Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    late: list[Callable[[], Any]] = [lambda: channel.publish("", "q", bytes(100_000))] * 10
    for step in late:
        try:
            step()
        except OSError:
            break
    found = b""
    while data := raw.socket.recv(65_536):  # a reset raises
        found += data
    return found


async def test_frames_behind_a_close_do_not_make_it_a_reset(tmp_path):
    async with serving(tmp_path) as node:

        def run() -> list[bytes]:
            found = []
            for _ in range(20):
                with Raw(node.port) as raw:
                    found.append(closes(raw))
            return found

        close_ok = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"
        async with asyncio.timeout(60):
            assert all(row.endswith(close_ok) for row in await asyncio.to_thread(run))
