"""A read full of the smallest packets or frames: the other connections have their turns between."""

from __future__ import annotations

import asyncio

import pytest

from onelog.net.websocket import FRAMES_PER_PASS, PIECE_BYTES, WebSocketServer
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.connection import PACKETS_PER_PASS, Connection
from onelog.protocols.mqtt.packets import Pingreq, Pingresp, Publish
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties
from tests.support.listening import DEADLINE_S, LOOPS, listening, over_websocket, run_on
from tests.support.mqtt import serving

COUNT = 10_000


async def most_in_a_pass(done: list[int], count: int) -> int:
    """How far `done` grows in one pass of the loop at most, until it is `count` long."""
    most = 0
    while len(done) < count:
        before = len(done)
        await asyncio.sleep(0)
        most = max(most, len(done) - before)
    return most


@pytest.mark.parametrize("version", [4, 5])
async def test_a_read_of_many_packets_leaves_the_others_their_turn(tmp_path, monkeypatch, version):
    """One client that sends PINGREQ without reading the answers held up the whole broker."""
    done: list[int] = []
    deal_with = Connection._packet

    def counted(connection, first, body):
        done.append(first)
        deal_with(connection, first, body)

    async with serving(tmp_path) as node:
        client = await node.client("c", version=version)
        monkeypatch.setattr(Connection, "_packet", counted)
        ping = encode_packet(Pingreq(), version)
        client._writer.write(ping * COUNT)
        assert await most_in_a_pass(done, COUNT) <= 2 * PACKETS_PER_PASS
        for _ in range(COUNT):
            await client.receive(Pingresp)


async def test_packets_that_wait_for_their_turn_keep_their_order(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c", version=5)
        await client.subscribe("t", qos=1)
        packets: list[bytes] = []
        for number in range(1, 501):
            # Every second one is the kernel's own affair.
            words = Properties(content_type="n") if number % 2 else NO_PROPERTIES
            publish = Publish(
                topic="t", payload=b"%d" % number, qos=1, packet_id=number, properties=words
            )
            packets += (encode_packet(publish, 5), encode_packet(Pingreq(), 5))
        client._writer.write(b"".join(packets))
        assert await client.take(500) == [str(number) for number in range(1, 501)]


@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize("opcode", [0x82, 0x89, 0x8A])
def test_a_read_of_many_frames_leaves_the_others_their_turn(monkeypatch, loop, opcode):
    done: list[int] = []
    take_frame = WebSocketServer._take_frame

    def counted(server, frame, payload):
        done.append(frame.opcode)
        take_frame(server, frame, payload)

    async def main():
        async with listening(websocket=over_websocket()) as running, running.websocket() as peer:
            empty = bytes((opcode, 0x80)) + bytes(4)
            peer.transport.write(empty * COUNT + b"\x82\x84" + bytes(4) + b"last")
            most = await most_in_a_pass(done, COUNT + 1)
            assert most <= FRAMES_PER_PASS + PIECE_BYTES // len(empty) + 1
            assert await peer.recv() == b"last"
            await peer.send(b"and on")
            assert await peer.recv() == b"and on"

    monkeypatch.setattr(WebSocketServer, "_take_frame", counted)
    run_on(loop, main)


def test_a_protocol_that_stops_reading_stays_unread_when_its_frames_had_their_turn():
    async def main():
        async with listening(websocket=over_websocket()) as running, running.websocket() as peer:
            echo = await running.book.only()
            echo.echo = False
            peer.transport.write((b"\x82\x81" + bytes(4) + b"x") * COUNT)
            await running.book.got.wait()
            echo.transport.pause_reading()
            for _ in range(COUNT):
                await asyncio.sleep(0)
            assert not echo.transport.is_reading()
            echo.transport.resume_reading()
            assert echo.transport.is_reading()
            async with asyncio.timeout(DEADLINE_S):
                while sum(map(len, echo.received)) < COUNT:
                    running.book.got.clear()
                    await running.book.got.wait()

    run_on("uvloop", main)
