"""The fuzz targets of the connections: real traffic, changed, into each protocol's state machine.

Oracles: nothing is raised and no error is logged; what a peer gets is whole packets of its
protocol; its end leaves nothing behind; a well-behaved connection is served afterwards; and the
broker opens again on what all those peers left in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from pamqp import commands, frame, header

from onelog.protocols.mqtt import packets as p
from onelog.protocols.mqtt.codec import decode_packet, encode_packet
from onelog.protocols.mqtt.packet_types import Side
from tests.fuzz.framing import FRAMINGS, load
from tests.fuzz.mutation import Conversation, mutate_talk
from tests.fuzz.world import Finding, Line, World, amqp_opening

TARGETS = ("mqtt", "kafka", "amqp", "websocket", "http", "management")
POOL_MAX = 1000
INPUTS_PER_WORLD = 1500
"""After so many a broker is closed and opened again on what it holds."""
LIVES_PER_FOLDER = 3
INPUT_S = 20.0
"""Longer than this is a hang."""
FINDINGS = Path(__file__).resolve().parents[2] / "build" / "fuzz"


@dataclass
class Tally:
    """What a run has done."""

    inputs: int = 0
    shapes: set[bytes] = field(default_factory=set)
    """Different answers: a new one makes its input worth changing further."""
    lives: int = 0


class Fuzz:
    """One target, from a seed."""

    def __init__(self, name: str, seed: int, folder: Path) -> None:
        self._name = name
        self._chance = random.Random(seed)
        self._framing = FRAMINGS[name]
        self._pool = load(name)
        self._folder = folder
        self.tally = Tally()

    async def run(self, seconds: float, inputs_max: int | None = None) -> None:
        """Until the time is over, or so many inputs; raises Finding."""
        until = time.monotonic() + seconds
        most = inputs_max or 1 << 62
        while time.monotonic() < until and self.tally.inputs < most:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            for _ in range(LIVES_PER_FOLDER):
                world = World(folder)
                await world.open()
                self.tally.lives += 1
                stop = min(self.tally.inputs + INPUTS_PER_WORLD, most)
                while self.tally.inputs < stop and time.monotonic() < until:
                    await self._one(world)
                    if self.tally.inputs % 200 == 0:
                        await check_health(world)
                await check_health(world)
                await world.close()
            shutil.rmtree(folder)

    async def _one(self, world: World) -> None:
        packets, reads = mutate_talk(self._chance, self._pool, self._framing)
        is_read = self._chance.random() < 0.9
        try:
            shape = await try_reads(world, self._name, reads, is_read=is_read)
        except Finding as finding:
            path = keep_finding(self._name, reads)
            raise Finding(f"{self._name}: {finding}\nkept as {path}") from finding
        self.tally.inputs += 1
        if shape not in self.tally.shapes:
            self.tally.shapes.add(shape)
            if len(self._pool) < POOL_MAX and len(packets) < 400:
                self._pool.append(packets)


async def try_reads(world: World, name: str, reads: list[bytes], *, is_read: bool = True) -> bytes:
    """One connection's life; what it was answered, in short. Raises Finding."""
    try:
        async with asyncio.timeout(INPUT_S):
            line = await world.talk(name, reads, is_read=is_read)
            await world.hang_up(line)
    except TimeoutError:
        raise Finding(f"no end within {INPUT_S:.0f} s") from None
    return shape_of(name, bytes(line.written))


async def replay(name: str, folder: Path, talks: list[Conversation]) -> None:
    """Conversations as they are, on a fresh broker, then a restart."""
    world = World(folder)
    await world.open()
    for packets in talks:
        await try_reads(world, name, packets)
        await try_reads(world, name, [b"".join(packets)])
    await check_health(world)
    await world.close()
    world = World(folder)
    await world.open()
    await check_health(world)
    await world.close()


def keep_finding(name: str, reads: list[bytes]) -> Path:
    """Write an input down so that it can be tried again."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    data = msgspec.msgpack.encode(reads)
    path = FINDINGS / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.reads"
    path.write_bytes(data)
    return path


# -- answers


def shape_of(name: str, data: bytes) -> bytes:
    """Which kinds of packets were answered; they must be whole."""
    kinds = _KINDS.get(name, _http_kinds)
    try:
        found = kinds(data)
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"a peer cannot read {data[:200].hex()}: {error!r}") from error
    short: list[bytes] = []
    for kind in found:
        if not short or short[-1] != kind:
            short.append(kind)
    return hashlib.sha256(b"|".join(short[:40])).digest()[:8]


def _mqtt_kinds(data: bytes) -> list[bytes]:
    found = []
    for packet in FRAMINGS["mqtt"].split(data):
        first, body = packet[0], packet[2 if packet[1] < 0x80 else 3 :]
        kind = packet[:1]
        if first >> 4 in (2, 14):  # CONNACK, DISCONNECT: with its code
            kind += body[:2]
        elif first >> 4 in (4, 5, 9):
            kind += body[2:4]
        elif first >> 4 == 3 and len(packet) < 128:
            with_5 = decode_packet(first, body, 5, sender=Side.SERVER) if _is_5(data) else None
            kind += bytes([len(with_5.topic) & 0xF]) if isinstance(with_5, p.Publish) else b""
        found.append(kind)
    return found


def _is_5(data: bytes) -> bool:
    """Whether a CONNACK opens the answers that has properties."""
    return data[:1] == b"\x20" and data[1:2] > b"\x02"


def _amqp_kinds(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            found.append(data[at : at + 8])
            at += 8
            continue
        size = struct.unpack_from(">I", data, at + 3)[0]
        if data[at + 7 + size : at + 8 + size] != b"\xce":
            raise Finding(f"a frame without an end: {data[at : at + 40].hex()}")
        method = data[at + 7 : at + 11]
        code = data[at + 11 : at + 13] if method in (b"\0\x0a\0\x32", b"\0\x14\0\x28") else b""
        found.append(data[at : at + 1] + method + code if data[at] == 1 else data[at : at + 1])
        if data[at] == 1:
            frame.unmarshal(data[at : at + 8 + size])
        at += 8 + size
    return found


def _kafka_kinds(data: bytes) -> list[bytes]:
    found = []
    for answer in FRAMINGS["kafka"].split(data):
        size = struct.unpack_from(">i", answer)[0]
        if size < 4 or len(answer) != size + 4:
            raise Finding(f"an answer that is not whole: {answer[:40].hex()}")
        found.append(answer[8:14] + bytes([size.bit_length()]))
    return found


def _http_kinds(data: bytes) -> list[bytes]:
    return [line[:16] for line in data.split(b"\r\n") if line.startswith(b"HTTP/")] + [data[-4:-2]]


def _websocket_kinds(data: bytes) -> list[bytes]:
    """The answer to the upgrade, then frames that are not masked; binary ones hold MQTT."""
    head = data.find(b"\r\n\r\n") + 4
    found, at, inside = [data[9:12]], head, b""
    while data[9:12] == b"101" and at < len(data):
        size, start = data[at + 1], at + 2
        if size in (126, 127):
            width = 2 if size == 126 else 8
            size, start = int.from_bytes(data[start : start + width]), start + width
        if data[at] & 0x8F == 0x82:
            inside += data[start : start + size]
        else:
            found.append(data[at : at + 1] + data[start : start + 2])
        at = start + size
    return found + _mqtt_kinds(inside)


_KINDS: dict[str, Callable[[bytes], list[bytes]]] = {
    "mqtt": _mqtt_kinds,
    "websocket": _websocket_kinds,
    "amqp": _amqp_kinds,
    "kafka": _kafka_kinds,
}


# -- a well-behaved connection


async def check_health(world: World) -> None:
    """Each protocol serves a client that does everything right, whatever others did."""
    await _check_mqtt(world)
    await _check_amqp(world)
    await _check_kafka(world)


async def _check_mqtt(world: World) -> None:
    said = [
        p.Connect(client_id="health", version=5, clean_start=True, keep_alive_s=0),
        p.Subscribe(1, (p.Subscription("health/check", 0),)),
        p.Publish(topic="health/check", payload=b"well", qos=1, packet_id=7),
    ]
    line = await world.talk("mqtt", [encode_packet(row, 5) for row in said])

    def is_served() -> bool:
        kinds = {packet[0] >> 4 for packet in FRAMINGS["mqtt"].split(bytes(line.written))}
        return {2, 3, 4, 9} <= kinds

    await _expect(world, line, is_served, "MQTT")


async def _expect(world: World, line: Line, is_served: Callable[[], bool], name: str) -> None:
    """Wait for what a client that does everything right gets, and let it go."""
    deadline = time.monotonic() + INPUT_S
    while not is_served():
        if time.monotonic() > deadline:
            raise Finding(f"{name} does not serve any more: {bytes(line.written[-200:])!r}")
        await asyncio.sleep(0.001)
    await world.hang_up(line)


async def _check_amqp(world: World) -> None:
    body = b"well"
    said = [
        *amqp_opening(),
        frame.marshal(commands.Queue.Declare(queue="health", exclusive=True), 1),
        frame.marshal(commands.Basic.Publish(exchange="", routing_key="health"), 1)
        + frame.marshal(header.ContentHeader(0, len(body), commands.Basic.Properties()), 1)
        + struct.pack(">BHI", 3, 1, len(body))
        + body
        + b"\xce",
        frame.marshal(commands.Basic.Consume(queue="health", no_ack=True), 1),
    ]
    line = await world.talk("amqp", said)
    await _expect(world, line, lambda: body in line.written, "AMQP")


async def _check_kafka(world: World) -> None:
    """ApiVersions, and a fetch of everything there is, from the start."""
    versions = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    name = b"_x23_"
    rows = b"".join(struct.pack(">iqi", number, 0, 1 << 20) for number in range(4))
    fetch = struct.pack(">iiiib", -1, 0, 1, 1 << 22, 0) + struct.pack(">ih", 1, len(name)) + name
    fetch += struct.pack(">i", 4) + rows
    fetch = struct.pack(">hhih", 1, 4, 2, -1) + fetch
    line = await world.talk("kafka", [versions, struct.pack(">i", len(fetch)) + fetch])

    def is_served() -> bool:
        answers = FRAMINGS["kafka"].split(bytes(line.written))
        return [struct.unpack_from(">i", answer, 4)[0] for answer in answers] == [1, 2]

    await _expect(world, line, is_served, "Kafka")


async def fuzz(name: str, seconds: float, seed: int, inputs_max: int | None = None) -> Tally:
    """Run a target; raises Finding."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        made = Fuzz(name, seed, Path(folder))
        await made.run(seconds, inputs_max)
        return made.tally
