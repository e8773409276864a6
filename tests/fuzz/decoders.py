"""The fuzz targets of the decoders: any bytes give a value or the protocol's own error.

Each target is a function of bytes that raises when something else happens; with atheris installed
it can be given to it as it is. Inputs are changed packets of the corpus.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
import time
from collections.abc import Callable

from onelog.base.errors import OnelogError
from onelog.kernel import decode_batch, parse_request_header, scan_batches, split_frames
from onelog.net import proxy
from onelog.protocols.amqp.frames import (
    Frame,
    decode_content_head,
    decode_method,
    frames_of,
)
from onelog.protocols.amqp.properties import decode_properties
from onelog.protocols.kafka.apis import PRIVATE, SERVED, ApiKey
from onelog.protocols.kafka.codec import FLEXIBLE_FROM, decode_request
from onelog.protocols.mqtt.codec import encode_packet
from onelog.record.batch import build_batch, inflated_records
from onelog.record.tables import decode_table, encode_table
from tests.fuzz import fuzz_mqtt_codec
from tests.fuzz.framing import load, mend_batch
from tests.fuzz.mutation import mutate_bytes
from tests.support.links import GREETING, accepting, frames_in
from tests.support.listening import proxied

Target = Callable[[bytes], None]
METHOD, HEADER = 1, 2
OWN_WAY = {*PRIVATE, ApiKey.PRODUCE, ApiKey.FETCH}
"""Requests that the kernel reads; the connection's target has them."""


def try_mqtt(data: bytes) -> None:
    """An MQTT packet, as any version and from both sides."""
    fuzz_mqtt_codec.one_input(data)


def try_kafka(data: bytes) -> None:
    """A frame of Kafka: the header, then the body by its schema."""
    with contextlib.suppress(OnelogError):
        whole, _rest, _needed = split_frames(data, 0, 1 << 20)
        for start, end in whole:
            key, version, _number, _client, at = parse_request_header(
                data, start, end, FLEXIBLE_FROM
            )
            api = SERVED.get(key)
            if api is not None and api.first <= version <= api.last and key not in OWN_WAY:
                decode_request(api, version, data[at:end], 0)


def try_batch(data: bytes) -> None:
    """A record batch whose sum is right: every record of it is read, compressed or not."""
    batch = bytearray(data)
    mend_batch(batch, 0)
    with contextlib.suppress(OnelogError):
        for info in scan_batches(batch):
            slices = decode_batch(batch, info.position, inflated_records(batch, info), False)
            for at in range(len(slices)):
                slices.key(at), slices.value(at), slices.timestamp_ms(at), slices.topic(at)


def try_table(data: bytes) -> None:
    """A field table of AMQP; what was accepted can be written again."""
    with contextlib.suppress(OnelogError):
        encode_table(decode_table(data))


def try_amqp(data: bytes) -> None:
    """Frames of AMQP: methods with their arguments, content heads with their properties."""
    with contextlib.suppress(OnelogError):
        for event in frames_of(data):
            if isinstance(event, Frame) and event.kind == METHOD:
                decode_method(event.payload)
            elif isinstance(event, Frame) and event.kind == HEADER:
                decode_properties(decode_content_head(event.payload).properties)


def try_link(data: bytes) -> None:
    """Reads of an inner link from the first byte on: it goes on, or ends with a reason."""
    asyncio.run(_link(data))


async def _link(data: bytes) -> None:
    connection, wire, owner = accepting()
    size = 1 + data[-1] % 64 if data and data[0] & 1 else max(1, len(data))
    for at in range(0, len(data), size):
        if wire.is_closing():
            break
        connection.data_received(data[at : at + size])
    await asyncio.sleep(0)
    frames_in(wire.written)
    assert not owner.troubles.rows(), owner.troubles.rows()
    assert wire.is_closing() == (connection.ended is not None)
    connection.end("over")
    await connection.closed


def try_proxy(data: bytes) -> None:
    """The header of the PROXY protocol."""
    with contextlib.suppress(OnelogError):
        if not proxy.bytes_wanted(data):
            proxy.parse(data)


def _mqtt_seeds() -> list[bytes]:
    wires = [(encode_packet(packet, v), v) for packet, v in fuzz_mqtt_codec.SEEDS]
    heads = ((wire, v, 2 if wire[1] < 0x80 else 3) for wire, v in wires)
    return [bytes((v - 3, wire[0])) + wire[at:] for wire, v, at in heads]


def _batch_seeds() -> list[bytes]:
    rows = [
        (b"a/b", b"key", b"value" * 9, ((b"h", b"v"), (b"h", None)), 1000),
        (None, None, None, (), 1001),
    ]
    return [
        bytes(build_batch(rows, codec=codec, tag_topics=True, producer=producer))
        for codec in range(5)
        for producer in ((-1, -1, -1), (7, 0, 3))
    ]


def _table_seeds() -> list[bytes]:
    values = {
        "s": "text", "n": 1, "big": 1 << 40, "b": True, "f": 1.5, "l": [1, "2", [None]],
        "t": {"u": {"v": b"bytes"}}, "time": datetime.datetime.fromtimestamp(9, datetime.UTC),
    }  # fmt: skip
    return [encode_table(values)[4:], encode_table({})[4:]]


def _link_seeds() -> list[bytes]:
    """Whole conversations, and each frame behind a handshake."""
    talks = load("link")
    return [b"".join(talk) for talk in talks] + [
        GREETING + packet for talk in talks for packet in talk[2:]
    ]


def _packets(name: str) -> list[bytes]:
    return [packet for talk in load(name) for packet in talk]


DECODERS: dict[str, tuple[Target, Callable[[], list[bytes]]]] = {
    "mqtt-packets": (try_mqtt, _mqtt_seeds),
    "kafka-requests": (try_kafka, lambda: _packets("kafka")),
    "record-batches": (try_batch, _batch_seeds),
    "amqp-frames": (try_amqp, lambda: _packets("amqp")),
    "amqp-tables": (try_table, _table_seeds),
    "link-frames": (try_link, _link_seeds),
    "proxy-header": (try_proxy, lambda: [proxied("10.1.2.3")]),
}
"""Target → what it tries, and what its inputs are made from."""


def fuzz_decoder(name: str, seconds: float, seed: int) -> int:
    """Try changed seeds until the time is over; how many. Raises what a target let out."""
    target, make = DECODERS[name]
    seeds, chance, count = make(), random.Random(seed), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(200):
            data = bytearray(chance.choice(seeds))
            for _ in range(chance.choice((0, 1, 1, 2))):
                mutate_bytes(chance, data)
            try:
                target(bytes(data))
            except Exception as error:
                raise AssertionError(f"{name}, {data.hex()}: {error!r}") from error
        count += 200
    return count
