"""Resume: a thousand sessions come back at once, each to a hundred messages in a log of a million.

Rules: the clients are as plain as can be (all packets have one size, so bytes are counted), so
that the broker is what is measured. The broker's memory is read before and at the end.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench.report import Row, row, run_loop, say

SESSIONS = 1_000
EACH = 100
NOISE = 900_000
PAYLOAD = b"x" * 16
CONNACK_BYTES = 4
CHUNK = 5_000


def connect_packet(client: str) -> bytes:
    """CONNECT of version 3.1.1, not clean."""
    name = client.encode()
    body = b"\x00\x04MQTT\x04\x00\x00\x00" + len(name).to_bytes(2, "big") + name
    return bytes((0x10, len(body))) + body


def topic_of(session: int) -> bytes:
    """The topic of a session; all have one length."""
    return b"resume/%04d" % session


def subscribe_packet(session: int) -> bytes:
    """SUBSCRIBE with QoS 1."""
    topic = topic_of(session)
    body = b"\x00\x01" + len(topic).to_bytes(2, "big") + topic + b"\x01"
    return bytes((0x82, len(body))) + body


def publish_packet(topic: bytes, packet_id: int) -> bytes:
    """PUBLISH with QoS 1."""
    body = len(topic).to_bytes(2, "big") + topic + packet_id.to_bytes(2, "big") + PAYLOAD
    return bytes((0x32, len(body))) + body


async def make_sessions(port: int) -> None:
    """Every session subscribes and leaves."""

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(connect_packet(f"resume-{number}") + subscribe_packet(number))
        await reader.readexactly(CONNACK_BYTES + 5)
        writer.write(b"\xe0\x00")
        await reader.read()
        writer.close()

    for start in range(0, SESSIONS, 50):
        await asyncio.gather(*(one(number) for number in range(start, start + 50)))


async def fill(port: int) -> None:
    """A million messages, a tenth of them for the sessions, mixed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b"\x00\x04MQTT\x04\x02\x00\x00\x00\x04fill"
    writer.write(bytes((0x10, len(body))) + body)
    await reader.readexactly(CONNACK_BYTES)
    total, sent = SESSIONS * EACH + NOISE, 0
    while sent < total:
        packets = []
        for number in range(sent, min(sent + CHUNK, total)):
            mine = number % 10 == 0
            topic = topic_of(number // 10 % SESSIONS) if mine else b"noise/%05d" % (number % 9973)
            packets.append(publish_packet(topic, number % 65_535 + 1))
        writer.write(b"".join(packets))
        await reader.readexactly(4 * len(packets))
        sent += len(packets)
    writer.close()


class Comer(asyncio.Protocol):
    """A session that comes back and counts the bytes that it gets."""

    def __init__(self, number: int, done: asyncio.Future[None]) -> None:
        self._number = number
        self._done = done
        size = len(publish_packet(topic_of(number), 1))
        self._left = CONNACK_BYTES + EACH * size

    def connection_made(self, transport: Any) -> None:
        transport.write(connect_packet(f"resume-{self._number}"))

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left <= 0 and not self._done.done():
            self._done.set_result(None)


async def resume(port: int) -> float:
    """Everybody comes back; how long until everybody has everything."""
    loop = asyncio.get_running_loop()
    waiting = [loop.create_future() for _ in range(SESSIONS)]
    start = time.perf_counter()
    transports = await asyncio.gather(
        *(
            loop.create_connection(lambda n=n: Comer(n, waiting[n]), "127.0.0.1", port)  # type: ignore[misc]
            for n in range(SESSIONS)
        )
    )
    await asyncio.wait_for(asyncio.gather(*waiting), 120)
    took = time.perf_counter() - start
    for transport, _protocol in transports:
        transport.abort()
    return took


def resident_mb(pid: int) -> float:
    """What a process holds in memory, without the pages of files that it maps."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


def run(port: int, pid: int) -> list[Row]:
    """Fill the log, then let everybody come back."""

    async def measure() -> tuple[float, float]:
        await make_sessions(port)
        say("resume: sessions are made")
        await fill(port)
        say("resume: the log is filled")
        before = resident_mb(pid)
        took = await resume(port)
        return took, resident_mb(pid) - before

    took, grown = run_loop(measure())
    return [
        row("resume of 1 000 sessions, 100 messages each", SESSIONS * EACH / took, "msg/s", 1.5e5),
        row("resume: memory that it took", grown, "MB"),
    ]
