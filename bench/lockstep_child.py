"""One case of `bench/lockstep.py` on the tree that is on the path: prints µs of CPU per message.

Usage: `lockstep_child.py mqtt|amqp|kafka QOS MESSAGES ROUNDS [RULES]`. It knows nothing of this
tree but what older commits have as well: the support of the tests. RULES is the number of access
rules that are in the store before the broker starts (`bench/operate.py`).
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

PAIRS = 50
PAYLOAD = b"x" * 64


class Wire:
    """A transport that takes everything at once and keeps it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.written.extend(map(bytes, pieces))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, *_limits: Any, **_named: Any) -> None:
        pass

    def get_extra_info(self, *_names: Any) -> None:
        return None

    def is_reading(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return False

    def nothing(self) -> None:
        """What ends or pauses it."""

    pause_reading = resume_reading = close = abort = part = nothing


class Side:
    """Connections that are fed, and their wires."""

    def __init__(self) -> None:
        self.feeds: list[Callable[[bytes], None]] = []
        self.wires: list[Wire] = []

    def add(self, connection: Any, wire: Wire) -> None:
        self.feeds.append(connection.data_received)
        self.wires.append(wire)

    def is_answered(self) -> bool:
        return all(wire.written for wire in self.wires)

    def clear(self) -> None:
        for wire in self.wires:
            wire.written.clear()


async def one_round(
    publishers: Side,
    consumers: Side,
    messages: list[bytes],
    acks_of: Callable[[Wire], bytes] | None,
) -> float:
    """The CPU seconds of one read by each publisher, until all is delivered and settled."""
    begun = time.process_time()
    for feed, data in zip(publishers.feeds, messages, strict=True):
        feed(data)
    while not consumers.is_answered():  # noqa: ASYNC110 - the loop goes round, nothing sleeps
        await asyncio.sleep(0)
    spent = time.process_time() - begun
    if acks_of is not None:
        acks = [acks_of(wire) for wire in consumers.wires]
        begun = time.process_time()
        for feed, ack in zip(consumers.feeds, acks, strict=True):
            feed(ack)
        await asyncio.sleep(0)
        spent += time.process_time() - begun
    publishers.clear()
    consumers.clear()
    return spent


async def best_round(
    publishers: Side,
    consumers: Side,
    messages_of: Callable[[int], list[bytes]],
    acks_of: Callable[[Wire], bytes] | None,
    count: int,
    rounds: int,
) -> float:
    """µs of CPU per message in the quickest round."""
    publishers.clear()
    consumers.clear()
    gc.collect()
    gc.freeze()
    best = min(
        [
            await one_round(publishers, consumers, messages_of(number), acks_of)
            for number in range(rounds)
        ]
    )
    return best / (PAIRS * count) * 1e6


async def mqtt(folder: Path, qos: int, count: int, rounds: int) -> float:
    """Pairs of publisher and subscriber, each with a topic of its own."""
    from onelog.protocols.mqtt import connection as connections  # noqa: PLC0415
    from onelog.protocols.mqtt.limits import MqttLimits  # noqa: PLC0415

    support: Any = importlib.import_module("tests.support.mqtt")

    async with support.serving(folder, limits=MqttLimits(inflight=65535)) as node:
        hello = support.encode_packet(support.Connect(version=4, client_id="first"), 4)
        peer = await a_peer(connections.Connection, node.port, hello)

        def joined(name: str) -> tuple[Any, Wire]:
            wire = Wire()
            connection = connections.Connection(node.hub, peer)
            connection.connection_made(wire)
            joining = support.Connect(version=4, client_id=name)
            connection.data_received(support.encode_packet(joining, 4))
            return connection, wire

        publishers, consumers = Side(), Side()
        for number in range(PAIRS):
            publishers.add(*joined(f"p{number}"))
            consumers.add(*joined(f"s{number}"))
        await support.until(lambda: publishers.is_answered() and consumers.is_answered())
        consumers.clear()
        for number, feed in enumerate(consumers.feeds):
            wanted = support.Subscribe(1, (support.Subscription(f"b/{number}", qos),))
            feed(support.encode_packet(wanted, 4))
        await support.until(consumers.is_answered)

        def messages_of(turn: int) -> list[bytes]:
            ids = [(turn * count + index) % 60_000 + 1 if qos else 0 for index in range(count)]
            return [
                b"".join(
                    support.encode_packet(
                        support.Publish(
                            topic=f"b/{number}", payload=PAYLOAD, qos=qos, packet_id=packet_id
                        ),
                        4,
                    )
                    for packet_id in ids
                )
                for number in range(PAIRS)
            ]

        return await best_round(
            publishers, consumers, messages_of, pubacks if qos else None, count, rounds
        )


def pubacks(wire: Wire) -> bytes:
    """The acknowledgements of what a subscriber was sent; its packets are short."""
    found = b""
    for data in wire.written:
        at = 0
        while at < len(data):
            after_topic = at + 4 + struct.unpack_from(">H", data, at + 2)[0]
            found += b"\x40\x02" + data[after_topic : after_topic + 2]
            at += 2 + data[at + 1]
    return found


async def a_peer(kind: Any, port: int, hello: bytes) -> Any:
    """What a connection is told of a peer: as a real one is.

    It says something: until then it waits in the lobby, and no connection is made for it.
    """
    seen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    begin = kind.__init__

    def noted(self: Any, hub: Any, peer: Any) -> None:
        seen.set_result(peer)
        begin(self, hub, peer)

    kind.__init__ = noted
    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello)
    peer = await asyncio.wait_for(seen, 10)
    kind.__init__ = begin
    return peer


async def amqp(folder: Path, _qos: int, count: int, rounds: int) -> float:
    """Pairs of publisher with confirms and consumer with acknowledgements, each with a queue."""
    from pamqp import body, commands, frame, header  # noqa: PLC0415

    from onelog.config.streams import StreamDefaults  # noqa: PLC0415
    from tests.conformance.amqp_raw import Raw  # noqa: PLC0415
    from tests.support import amqp as support  # noqa: PLC0415

    queue, basic = commands.Queue, commands.Basic

    def opened(port: int, *asked: tuple[Any, Any]) -> Any:
        raw = Raw(port)
        raw.open()
        raw.channel()
        for method, answer in asked:
            raw.send(1, method)
            raw.expect(1, answer)
        return raw

    async with support.serving(folder, streams=StreamDefaults(durability="os")) as node:
        publishers, consumers, raws = Side(), Side(), []

        async def join(side: Side, *asked: tuple[Any, Any]) -> None:
            before = set(node.hub.connections)
            raws.append(await asyncio.to_thread(opened, node.port, *asked))
            (connection,) = set(node.hub.connections) - before
            connection._transport = Wire()
            side.add(connection, connection._transport)

        for number in range(PAIRS):
            declared = queue.Declare(queue=f"q{number}", durable=True, arguments={})
            confirms = commands.Confirm.Select(), commands.Confirm.SelectOk
            await join(publishers, (declared, queue.DeclareOk), confirms)
            consumed = basic.Consume(queue=f"q{number}", consumer_tag=f"c{number}")
            await join(consumers, (consumed, basic.ConsumeOk))

        def published(number: int) -> bytes:
            head = header.ContentHeader(
                body_size=len(PAYLOAD), properties=basic.Properties(delivery_mode=2)
            )
            method = basic.Publish(exchange="", routing_key=f"q{number}")
            parts = (method, head, body.ContentBody(PAYLOAD))
            return b"".join(frame.marshal(part, 1) for part in parts) * count

        messages = [published(number) for number in range(PAIRS)]
        tag = 0

        def messages_of(turn: int) -> list[bytes]:
            nonlocal tag
            tag = (turn + 1) * count
            return messages

        def acks(_wire: Wire) -> bytes:
            return frame.marshal(basic.Ack(delivery_tag=tag, multiple=count > 1), 1)

        return await best_round(publishers, consumers, messages_of, acks, count, rounds)


async def kafka(folder: Path, _qos: int, count: int, rounds: int) -> float:
    """Pairs of producer and consumer, whose fetch waits before the batch comes."""
    import datetime  # noqa: PLC0415

    from kio.index import load_request_schema  # noqa: PLC0415

    from onelog.protocols.kafka.apis import ApiKey  # noqa: PLC0415
    from tests.support import kafka_hub as support  # noqa: PLC0415

    fetch: Any = load_request_schema(1, 11)
    parts: Any = importlib.import_module(fetch.__module__)

    def asked(topic: str, offset: int) -> Any:
        wanted = parts.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        return fetch(
            replica_id=-1,
            max_wait=datetime.timedelta(seconds=60),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(parts.FetchTopic(topic=topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
            rack_id="",
        )

    async with support.desk(folder) as desk:
        publishers, consumers = Side(), Side()
        producing: list[Any] = []
        consuming: list[Any] = []
        for number in range(PAIRS):
            await desk.make(f"t{number}")
            for side, clients in ((publishers, producing), (consumers, consuming)):
                clients.append(desk.client())
                clients[-1].connection._transport = Wire()
                side.add(clients[-1].connection, clients[-1].connection._transport)
        batch = support.batch(*[PAYLOAD] * count)

        def messages_of(turn: int) -> list[bytes]:
            offset = turn * count
            for number, client in enumerate(consuming):
                client.send(client.frame(ApiKey.FETCH, 11, asked(f"t{number}", offset)))
            return [
                client.produce(batch, topic=f"t{number}") for number, client in enumerate(producing)
            ]

        return await best_round(publishers, consumers, messages_of, None, count, rounds)


async def keep_rules(folder: Path, count: int) -> None:
    """Write access rules into the store: what the cases need is allowed, by the last of them.

    Half of them mean the clients of the cases, with filters, placeholders and denials.
    """
    from onelog.assembly import open_store  # noqa: PLC0415
    from onelog.base.clock import SystemClock  # noqa: PLC0415
    from onelog.security.access.listing import AccessList  # noqa: PLC0415
    from tests.support.access import rule  # noqa: PLC0415

    needed = [
        "allow anonymous publish,subscribe topic:b/+",
        "allow anonymous publish,subscribe prefix:t",
        "allow anonymous publish,create topic:$q/#",
        "allow anonymous consume cursor:queue/*",
    ]
    shapes = (
        "allow user:user-{0} publish,subscribe topic:site/{0}/#",
        "allow everyone subscribe topic:b/{0}/+/state",
        "allow group:group-{0} all prefix:plant-{0}/",
        "deny everyone publish topic:b/%u/{0}/#",
    )
    made = [shapes[number % 4].format(number) for number in range(count - len(needed))]
    clock = SystemClock()
    store = await open_store(folder, clock)
    access = AccessList(store, clock)
    await access.open()
    texts = (*made, *needed)
    for at in range(0, len(texts), 100):
        await access.change([rule(text) for text in texts[at : at + 100]])
    await access.close()
    await store.close()


async def main(protocol: str, qos: str, count: str, rounds: str, rules: str = "0") -> None:
    case = {"mqtt": mqtt, "amqp": amqp, "kafka": kafka}[protocol]
    with tempfile.TemporaryDirectory() as folder:
        if int(rules):
            await keep_rules(Path(folder), int(rules))
        found = await case(Path(folder), int(qos), int(count), int(rounds))
        print(f"{found:.4f}", flush=True)
        os._exit(0)  # clients whose connections were taken away do not part in peace


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
