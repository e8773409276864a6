"""AMQP's kernel has short ways for plain publishes, deliveries, acknowledgements and confirms: they
do what the long ones do.

Each script runs twice, on brokers of their own: once as it is, and once with every short way
closed. Everything that anybody can see must be the same: the bytes of every connection, what queues
hold and have counted, what their cursors would keep, and what is reported.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from onelog.broker.live import LiveSource
from onelog.config.amqp import AmqpLimits
from onelog.config.streams import StreamDefaults
from onelog.kernel import COMPILED
from onelog.net import Peer
from onelog.protocols.amqp.connection import Connection
from onelog.protocols.amqp.consumer import ChannelConsumer
from onelog.protocols.amqp.hub import Hub
from onelog.protocols.amqp.reading import ConnectionReads
from onelog.queues.following import Follower
from onelog.queues.queue import Queue
from tests.support.amqp import Node, serving

Basic, Confirm = commands.Basic, commands.Confirm
PEERS = 3
KEYS = ("a", "b", "limited", "nowhere")
FORMS = ("plain", "plain", "plain", "expires", "mandatory")
UNACKED = 12

peers = st.integers(0, PEERS - 1)
queues = st.sampled_from(KEYS[:3])
publish = st.tuples(
    st.just("publish"),
    peers,
    st.sampled_from(("", "", "", "fan")),
    st.sampled_from(KEYS),
    st.sampled_from(FORMS),
    st.integers(1, 4),
)
ack = st.tuples(st.just("ack"), peers, st.integers(0, 6), st.booleans())
steps = st.one_of(
    publish,
    publish,
    publish,
    ack,
    ack,
    ack,
    st.tuples(st.just("both"), peers, publish, ack),
    st.tuples(st.just("consume"), peers, queues, st.integers(0, 3), st.booleans()),
    st.tuples(st.just("consume"), peers, queues, st.just(0), st.just(value=False)),
    st.tuples(st.just("nack"), peers, st.integers(0, 6), st.booleans(), st.booleans()),
    st.tuples(st.just("recover"), peers),
    st.tuples(st.just("cancel"), peers),
    st.tuples(st.just("whole channel"), peers, st.integers(0, 4)),
    st.tuples(st.just("flow"), peers, st.booleans()),
    st.tuples(st.just("slow"), peers, st.booleans()),
    st.tuples(st.just("get"), peers, queues),
    st.tuples(st.just("purge"), peers, queues),
    st.tuples(st.just("leave"), peers),
    st.tuples(st.just("wrong tag"), peers),
    st.tuples(st.just("raise"), peers),
    st.tuples(st.just("save")),
    st.tuples(st.just("look")),
    st.tuples(st.just("pass")),
    st.tuples(st.just("pass")),
)


class Wire:
    """A transport that takes everything at once and keeps it."""

    def __init__(self) -> None:
        self.sent = b""
        self.raises = False

    def write(self, data: bytes) -> None:
        if self.raises:
            self.raises = False
            raise ValueError("a transport that raises")
        self.sent += bytes(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_named: Any) -> None:
        pass

    def is_reading(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return False

    def nothing(self) -> None:
        """What ends or pauses it."""

    pause_reading = resume_reading = close = abort = part = nothing


def framed(*methods: Any, channel: int = 1) -> bytes:
    return b"".join(frame.marshal(method, channel) for method in methods)


class World:
    """A broker, connections to it without sockets, and everything that was seen."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.seen: list[object] = []
        self.wires: list[Wire] = []
        self.peers: list[Connection] = []
        self.published = 0

    async def join(self) -> Connection:
        """A connection with a channel and confirms."""
        peer = Peer(host="127.0.0.1", port=1, via="tcp", listener="amqp", listener_is_loopback=True)
        connection, wire = Connection(self.node.hub, peer), Wire()
        connection.connection_made(wire)
        start = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
        tune = commands.Connection.TuneOk(2047, 131072, 0)
        connection.data_received(b"AMQP\x00\x00\x09\x01" + framed(start, channel=0))
        await self.until(lambda: connection.identity is not None)
        connection.data_received(framed(tune, commands.Connection.Open("/"), channel=0))
        await self.until(lambda: connection.is_open)
        connection.data_received(framed(commands.Channel.Open(), Confirm.Select()))
        self.wires.append(wire)
        return connection

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def declare(self) -> None:
        first = self.peers[0]
        rows = [
            commands.Queue.Declare(queue="a", durable=True, arguments={}),
            commands.Queue.Declare(queue="b", durable=True, arguments={}),
            commands.Queue.Declare(queue="limited", durable=True, arguments={"x-max-length": 2}),
            commands.Exchange.Declare(exchange="fan", exchange_type="fanout", durable=True),
            commands.Queue.Bind(queue="a", exchange="fan"),
            commands.Queue.Bind(queue="b", exchange="fan"),
        ]
        for row in rows:
            at = len(self.wires[0].sent)
            first.data_received(framed(row))
            await self.until(lambda at=at: len(self.wires[0].sent) > at)

    def publish_bytes(self, exchange: str, key: str, form: str, count: int) -> bytes:
        found = b""
        for _ in range(count):
            self.published += 1
            content = b"m%d" % self.published
            properties = Basic.Properties(
                delivery_mode=2, expiration="60000" if form == "expires" else None
            )
            method = Basic.Publish(
                exchange=exchange, routing_key=key, mandatory=form == "mandatory"
            )
            head = header.ContentHeader(body_size=len(content), properties=properties)
            found += framed(method, head, body.ContentBody(content))
        return found

    def tag(self, number: int, at: int) -> int | None:
        """The tag of one of the messages that a peer's channel holds."""
        channel = self.peers[number].channels.get(1)
        if channel is None or not channel.consuming.unacked:
            return None
        runs = channel.consuming._held.runs
        tags = [run.tag + each for run in runs for each in range(run.count)]
        return tags[min(at, len(tags) - 1)]

    def ack_bytes(self, number: int, at: int, multiple: bool) -> bytes:
        tag = self.tag(number, at)
        return b"" if tag is None else framed(Basic.Ack(tag, multiple))

    def send(self, number: int, *methods: Any) -> None:
        self.peers[number].data_received(framed(*methods))

    async def run(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("publish", number, exchange, key, form, count):
                data = self.publish_bytes(exchange, key, form, count)
                self.peers[number].data_received(data)
            case ("ack", number, at, multiple):
                self.peers[number].data_received(self.ack_bytes(number, at, multiple))
            case ("both", number, (_p, _n, exchange, key, form, count), (_a, _m, at, multiple)):
                data = self.ack_bytes(number, at, multiple)
                data += self.publish_bytes(exchange, key, form, count)
                self.peers[number].data_received(data + self.ack_bytes(number, at + 1, False))
            case ("consume", number, queue, prefetch, no_ack):
                tag = f"c{len(self.peers[number].channels)}{queue}{prefetch}{no_ack}"
                qos, consume = Basic.Qos(0, prefetch, False), Basic.Consume(0, queue, tag)
                consume.no_ack = no_ack
                self.send(number, qos, consume)
            case ("nack", number, at, multiple, requeue):
                tag = self.tag(number, at)
                if tag is not None:
                    self.send(number, Basic.Nack(tag, multiple, requeue))
            case ("recover", number):
                self.send(number, Basic.Recover(True))
            case ("cancel", number):
                channel = self.peers[number].channels.get(1)
                for tag in list(channel.consuming.consumers)[:1] if channel else ():
                    self.send(number, Basic.Cancel(tag))
            case ("whole channel", number, count):
                self.send(number, Basic.Qos(0, count, True))
            case ("flow", number, active):
                self.send(number, commands.Channel.Flow(active))
            case ("slow", number, slow):
                peer = self.peers[number]
                (peer.pause_writing if slow else peer.resume_writing)()
            case ("get", number, queue):
                self.send(number, Basic.Get(0, queue, False))
            case ("purge", number, queue):
                self.send(number, commands.Queue.Purge(0, queue))
            case ("leave", number):
                self.peers[number].connection_lost(None)
                self.peers[number] = await self.join()
            case ("wrong tag", number):
                self.send(number, Basic.Ack(1_000_000, True))
                await asyncio.sleep(0)
                self.send(number, commands.Channel.CloseOk(), commands.Channel.Open())
            case ("raise", number):
                self.peers[number]._transport.raises = True  # type: ignore[union-attr]
            case ("save",):
                for queue in self.queues():
                    self.seen.append(self.kept(queue))
            case ("look",):
                self.look()
            case _:
                await asyncio.sleep(0)

    def queues(self) -> list[Queue]:
        vhost = self.node.hub.vhosts.find("/")
        assert vhost is not None
        return [vhost.queues[name] for name in sorted(vhost.queues)]

    def kept(self, queue: Queue) -> object:
        """What a checkpoint would keep of a queue."""
        state = queue.cursor.state()
        queue.cursor.take_parts()
        places = sorted(offset for _key, offset in queue.cursor.places())
        return (queue.name, [row.offset for row in state.positions], places)

    def look(self) -> None:
        for queue in self.queues():
            cursor = queue.cursor
            places = sorted(offset for _key, offset in cursor.places())
            self.seen.append(
                (
                    queue.name, queue.ready.size, queue.unacked, queue.published, queue.delivered,
                    queue.acked, queue.redelivered, cursor.count, cursor.pending(), places,
                    [cursor.times_handed_out(key, offset) for key, offset in cursor.places()],
                )
            )  # fmt: skip
        for peer in self.peers:
            for channel in peer.channels.values():
                rows = [(row.unacked, row.room) for row in channel.consuming.consumers.values()]
                consuming, publishing = channel.consuming, channel.publishing
                self.seen.append(
                    (
                        consuming.unacked, consuming.next_tag, consuming.room, rows,
                        publishing.published, publishing.confirmed, publishing.unconfirmed,
                        publishing._unwritten, peer.unwritten.size_bytes,
                        peer.sent_bytes, peer.received_bytes,
                    )
                )  # fmt: skip

    def outcome(self) -> tuple[object, ...]:
        self.look()
        counters = self.node.hub.counters
        troubles = sorted((row.kind, row.count) for row in self.node.broker.troubles.rows())
        counted = (counters.published, counters.confirmed, counters.sent_bytes)
        return self.seen, [wire.sent for wire in self.wires], counted, troubles


async def outcome_of(script: list[tuple[Any, ...]]) -> tuple[object, ...]:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    limits = AmqpLimits(unacked=UNACKED)
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), limits, streams=StreamDefaults(durability="os")) as node:
            world = World(node)
            for _ in range(PEERS):
                world.peers.append(await world.join())
            await world.declare()
            for key in KEYS[:3]:  # the routes are known, so that the short ways are open
                await world.run(("publish", 0, "", key, "plain", 1))
                await settle()
            for step in script:
                try:
                    await world.run(step)
                except ValueError as error:  # of a transport that raises
                    world.seen.append(str(error))
            await settle()
            for wire in world.wires:
                wire.raises = False
            return world.outcome()


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def close_short_ways(patch: pytest.MonkeyPatch) -> None:
    made, deliver, begun = ChannelConsumer.__init__, Follower.deliver, Follower.__init__

    def make(consumer: ChannelConsumer, *parts: Any, **named: Any) -> None:
        made(consumer, *parts, **named)
        consumer.is_plain = False

    def begin(follower: Follower, *parts: Any) -> None:
        begun(follower, *parts)
        follower.refused["none", -1, -1] = None  # so Python looks at each run

    def deliver_slowly(follower: Follower, source: LiveSource, data: bytes) -> int:
        end = deliver(follower, source, data)
        source.concerned_since = -1
        return end

    patch.setattr(ChannelConsumer, "__init__", make)
    patch.setattr(Follower, "deliver", deliver_slowly)
    patch.setattr(Connection, "data_received", Connection.take_slowly)
    patch.setattr(Follower, "__init__", begin)


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel has short ways")
@settings(max_examples=40, deadline=None)
@given(st.lists(steps, max_size=30))
def test_the_short_ways_do_what_the_long_ones_do(script: list[tuple[Any, ...]]) -> None:
    short = asyncio.run(outcome_of(script))
    with pytest.MonkeyPatch.context() as patch:
        close_short_ways(patch)
        long = asyncio.run(outcome_of(script))
    assert short == long


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel has short ways")
async def test_plain_messages_take_the_short_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, streams=StreamDefaults(durability="os")) as node:
        world = World(node)
        world.peers = [await world.join(), await world.join()]
        await world.declare()
        world.send(1, Basic.Consume(0, "a", "c"))
        for _ in range(2):  # the routes and the envelope become known
            await world.run(("publish", 0, "", "a", "plain", 1))
            await settle()
        world.send(1, Basic.Ack(2, True))
        queue = world.queues()[0]
        assert (queue.name, queue.cursor.in_flight) == ("a", False)

        def closed(*_asked: object) -> None:
            raise AssertionError("the long way")

        monkeypatch.setattr(ConnectionReads, "take_rows", closed)
        monkeypatch.setattr(Follower, "deliver", closed)
        monkeypatch.setattr(Queue, "pass_on", closed)
        monkeypatch.setattr(Queue, "take_in_run", closed)
        monkeypatch.setattr(Hub, "_tell_taken", closed)
        before = len(world.wires[0].sent), len(world.wires[1].sent)
        await world.run(("publish", 0, "", "a", "plain", 3))
        await settle()
        assert queue.cursor.in_flight
        assert world.wires[1].sent.count(b"\x00<\x00<", before[1]) == 3, "three basic.deliver"
        world.send(1, Basic.Ack(3, False), Basic.Ack(5, True))
        assert not queue.cursor.in_flight
        assert (queue.cursor.count, queue.unacked, queue.acked) == (0, 0, 5)
        assert world.wires[0].sent[before[0] :] == framed(Basic.Ack(5, True))
        assert not node.broker.troubles.rows()
