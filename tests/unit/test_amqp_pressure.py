"""What happens when there is no room, no right or no acknowledgement? (rows 55, 91, 95; I8)"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from onelog.base import faults
from onelog.base.errors import QuotaExceeded
from onelog.broker import LOCAL, Action, AllowAll, Kind, Message, Principal
from onelog.config.amqp import AmqpLimits
from onelog.protocols.amqp import publishing
from tests.conformance.amqp_raw import Basic, Connection, Queue, Raw, RawChannel, Refused, Tx
from tests.support.amqp import serving, talk
from tests.support.turns import passes_until


@pytest.fixture(autouse=True)
def tries_often(monkeypatch):
    """Whether there is room again is looked at more often than once a second."""
    monkeypatch.setattr(publishing, "RETRY_S", 0.05)


async def test_a_full_disk_blocks_publishers_until_there_is_room(tmp_path):
    """Nothing is lost and nothing is refused: the publisher is told, and waits."""
    loop = asyncio.get_running_loop()

    async with serving(tmp_path) as node:

        def work(raw: Raw) -> list[str]:
            channel = raw.channel()
            queue = channel.queue(durable=True)
            channel.confirm()
            channel.put("", queue, "before")
            faults.arm("segment.write", faults.fail_with(28))
            channel.publish("", queue, "while full")
            blocked = raw.expect(0, Connection.Blocked)
            assert "no room" in blocked.reason
            channel.publish("", queue, "behind it")
            assert channel.is_silent(0.3)
            loop.call_soon_threadsafe(faults.disarm)
            while len(channel.confirmed) < 3:
                found = channel.expect(Basic.Ack)
                channel.confirmed |= set(range(1, found.delivery_tag + 1))
            raw.expect(0, Connection.Unblocked)
            return channel.all(queue)

        assert await talk(node.port, work) == ["before", "while full", "behind it"]
        assert node.hub.counters.blocked == 1


async def test_what_waits_for_room_and_has_no_queue_any_more_is_confirmed_in_its_turn(tmp_path):
    """The queue of some goes while the disk is full: nobody could ever read them."""
    async with serving(tmp_path) as node:
        router = node.hub.vhosts.find("/").router

        def full() -> None:
            router.remove_queue("going")
            raise OSError(28, "no room")

        def work(raw: Raw) -> list[str]:
            channel = raw.channel()
            for name in ("going", "staying"):
                channel.queue(name, durable=True)
            channel.confirm()
            for name in ("going", "staying"):
                channel.put("", name, "before")  # the next ones like it need no look
            faults.arm("segment.write", full)
            for number in range(6):
                channel.publish("", ("going", "staying")[number % 2], str(number))
            raw.expect(0, Connection.Blocked)
            node.hub.loop.call_soon_threadsafe(faults.disarm)
            last = 0
            while last < 8:
                found = channel.expect(Basic.Ack)
                assert found.delivery_tag > last
                last = found.delivery_tag
            return channel.all("staying")

        assert await talk(node.port, work) == ["before", "1", "3", "5"]


async def test_who_publishes_faster_than_the_disk_takes_is_not_read(tmp_path):
    """Who wants no confirms never waits by itself."""
    disk = threading.Event()
    async with serving(tmp_path, AmqpLimits(unwritten_bytes=1 << 20)) as node:

        def work(raw: Raw) -> int:
            channel = raw.channel()
            queue = channel.queue(durable=True)
            faults.arm("segment.fsync", stall)
            sender = threading.Thread(target=send, args=(channel, queue))
            sender.start()
            sender.join(1.0)
            assert sender.is_alive()
            assert node.hub.counters.received_bytes < 3 << 20
            disk.set()
            sender.join(20)
            return channel.count(queue)

        def stall() -> None:
            disk.wait(20)

        def send(channel: RawChannel, queue: str) -> None:
            for _ in range(400):
                channel.publish("", queue, bytes(100_000))

        assert await talk(node.port, work) == 400


class Quota:
    """So many messages; more when a test says so."""

    def __init__(self) -> None:
        self.left = 3

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        del size_bytes
        if principal.protocol == "amqp":
            if self.left < messages:
                raise QuotaExceeded(f"{principal.name} has used up its share")
            self.left -= messages


async def test_a_used_up_quota_blocks_until_it_is_not(tmp_path):
    quota = Quota()

    async with serving(tmp_path, quotas=quota) as node:

        def work(raw: Raw) -> list[str]:
            channel = raw.channel()
            queue = channel.queue(durable=True)
            channel.confirm()
            for number in range(5):
                channel.publish("", queue, str(number))
            assert "its share" in raw.expect(0, Connection.Blocked).reason
            quota.left = 100
            while len(channel.confirmed) < 5:
                found = channel.expect(Basic.Ack)
                channel.confirmed |= set(range(1, found.delivery_tag + 1))
            raw.expect(0, Connection.Unblocked)
            return channel.all(queue)

        assert await talk(node.port, work) == ["0", "1", "2", "3", "4"]


async def test_a_client_that_does_not_know_of_blocking_is_not_told(tmp_path):
    quota = Quota()
    quota.left = 0
    async with serving(tmp_path, quotas=quota) as node:

        def run() -> bool:
            with Raw(node.port) as raw:
                channel = raw.open(capabilities={}).channel()
                queue = channel.queue(durable=True)
                channel.publish("", queue, "1")
                with contextlib.suppress(TimeoutError):
                    raw.expect(0, Connection.Blocked, 0.5)
                    return False
                quota.left = 1
                return channel.get(queue).text == "1"

        assert await asyncio.to_thread(run)


async def test_who_does_not_acknowledge_in_time_loses_its_channel(tmp_path):
    async with serving(tmp_path, AmqpLimits(ack_timeout_ms=1000)) as node:

        def work(raw: Raw) -> list[str]:
            lazy, other = raw.channel(), raw.channel()
            queue = lazy.queue()
            other.publish("", queue, "1")
            lazy.consume(queue)
            lazy.message()
            with pytest.raises(Refused, match="delivery acknowledgement on channel 1 timed out"):
                lazy.expect(Basic.CancelOk)
            return other.all(queue)

        assert await talk(node.port, work) == ["1"]


async def test_who_does_not_log_in_in_time_is_gone(tmp_path):
    async with serving(tmp_path, AmqpLimits(login_timeout_ms=300)) as node:

        def run() -> bool:
            with Raw(node.port) as silent, Raw(node.port) as half, Raw(node.port) as whole:
                half.begin()
                channel = whole.open().channel()
                ended = silent.is_ended(5) and half.is_ended(5)
                channel.sync()
                return ended

        assert await asyncio.to_thread(run)


async def test_a_large_purge_leaves_others_their_turn_and_is_whole_after_a_stop(tmp_path):
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> int:
            channel = raw.channel()
            channel.queue("q", durable=True)
            for _ in range(10_000):
                channel.publish("", "q", "x")
            assert channel.count("q") == 10_000
            held = channel.get("q", no_ack=False)
            assert held is not None
            return channel.ask(Queue.Purge(queue="q"), Queue.PurgeOk).message_count

        assert await talk(node.port, work) == 9_999
    async with serving(tmp_path) as node:
        assert await talk(node.port, lambda raw: raw.channel().count("q")) == 1


async def test_a_channel_holds_no_more_unacknowledged_than_it_may(tmp_path):
    async with serving(tmp_path, AmqpLimits(unacked=5)) as node:

        def work(raw: Raw) -> None:
            channel = raw.channel()
            one, two = channel.queue(), channel.queue()
            for queue in (one, two):
                channel.consume(queue)
                for number in range(5):
                    channel.publish("", queue, str(number))
            found = channel.messages(5)
            assert channel.is_silent(0.2)
            channel.ack(found[-1].tag, multiple=True)
            channel.messages(5)

        await talk(node.port, work)


async def test_who_does_not_read_costs_bounded_memory(tmp_path):
    """A consumer without a bound that never reads: the broker stops to send."""
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> int:
            channel = raw.channel()
            queue = channel.queue()
            for _ in range(60):
                channel.publish("", queue, bytes(500_000))
            assert channel.count(queue) == 60
            reader = raw.channel()
            reader.send(Basic.Consume(queue=queue, no_ack=True, arguments={}))
            with Raw(node.port) as other:
                second = other.open().channel()
                before = -1
                while (left := second.count(queue)) != before:
                    before = left
                    second.is_silent(0.2)
            return left

        assert await talk(node.port, work) > 10


async def test_who_declares_a_queue_at_the_same_time_may_send_to_it_at_once(tmp_path):
    """Workers that start together declare one queue together; nothing confirmed is lost."""
    async with serving(tmp_path) as node:
        opened = [await asyncio.to_thread(lambda: Raw(node.port).open()) for _ in range(6)]
        channels = [await asyncio.to_thread(raw.channel) for raw in opened]

        def work(channel: RawChannel) -> None:
            channel.confirm()
            for number in range(10):
                channel.queue(f"q{number}", durable=True)
                channel.put("", f"q{number}", "1")

        await asyncio.gather(*(asyncio.to_thread(work, channel) for channel in channels))
        counts = await asyncio.to_thread(
            lambda: [channels[0].count(f"q{number}") for number in range(10)]
        )
        assert counts == [6] * 10
        for raw in opened:
            raw.socket.close()


class Rules(AllowAll):
    """Says no to what a test names."""

    def __init__(self, *forbidden: tuple[Action, str]) -> None:
        super().__init__()
        self._forbidden = forbidden

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        del kind
        return principal.protocol != "amqp" or (action, resource) not in self._forbidden


PERMISSIONS: dict[str, tuple[tuple[Action, str], Callable[[RawChannel], object]]] = {
    "declare a queue": ((Action.CREATE, "$q/q"), lambda channel: channel.queue("q")),
    "consume": (
        (Action.CONSUME, "queue/q"),
        lambda channel: channel.consume(channel.queue("q")),
    ),
    "get": ((Action.CONSUME, "queue/q"), lambda channel: channel.get(channel.queue("q"))),
    "declare an exchange": (
        (Action.CREATE, "$x/x/#"),
        lambda channel: channel.exchange("fanout", "x"),
    ),
    "bind": (
        (Action.DELIVER, "a/b"),
        lambda channel: channel.bind(channel.queue("q"), "amq.topic", "a.b"),
    ),
    "publish to the default exchange": (
        (Action.PUBLISH, "$q/q"),
        lambda channel: [channel.publish("", channel.queue("q"), "1"), channel.sync()],
    ),
    "publish to a queue that is not there": (  # as to one that is
        (Action.PUBLISH, "$q/q"),
        lambda channel: [channel.publish("", "q", "1"), channel.sync()],
    ),
    "publish to a queue that is not there, in a transaction": (
        (Action.PUBLISH, "$q/q"),
        lambda channel: [
            channel.ask(Tx.Select(), Tx.SelectOk),
            channel.publish("", "q", "1"),
            channel.ask(Tx.Commit(), Tx.CommitOk),
        ],
    ),
    "publish to one topic": (
        (Action.PUBLISH, "a/b"),
        lambda channel: [channel.publish("amq.topic", "a.b", "1"), channel.sync()],
    ),
    "dead letters to an exchange": (
        (Action.PUBLISH, "$x/dead/#"),
        lambda channel: channel.queue("q", arguments={"x-dead-letter-exchange": "dead"}),
    ),
}


@pytest.mark.parametrize("what", PERMISSIONS)
async def test_what_a_user_may_not_do_is_refused_with_403(tmp_path, what):
    forbidden, make = PERMISSIONS[what]
    async with serving(tmp_path, authorizer=Rules(forbidden)) as node:

        def work(raw: Raw) -> None:
            with pytest.raises(Refused) as refused:
                make(raw.channel())
            assert refused.value.short == "channel 403"
            raw.channel(1).sync()

        await talk(node.port, work)


async def test_a_queue_may_take_history_from_before_its_time(tmp_path):
    """I2: `x-onelog-from`; several chunks of it, with what comes meanwhile."""
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> list[list[str]]:
            channel = raw.channel()
            channel.exchange("topic", "logs", durable=True)
            channel.confirm()
            channel.put("logs", "a.1", *map(str, range(30)))
            channel.put("logs", "b.1", "other")
            found = []
            for start in ("earliest", 28, "latest"):
                queue = channel.queue(durable=True, arguments={"x-onelog-from": start})
                channel.bind(queue, "logs", "a.#")
                channel.put("logs", "a.1", "new")
                found.append(channel.all(queue))
            return found

        everything, some, latest = await talk(node.port, work)
        assert everything == [*map(str, range(30)), "new"]
        assert some == ["28", "29", "new", "new"]
        assert latest == ["new"]


async def test_an_mqtt_topic_and_amq_topic_are_one_space(tmp_path):
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> tuple[str, str]:
            channel = raw.channel()
            queue = channel.queue()
            channel.bind(queue, "amq.topic", "sensors.*.t")
            asyncio.run_coroutine_threadsafe(
                node.broker.publish(Message("sensors/d1/t", b"20"), principal=LOCAL), node.hub.loop
            ).result(10)
            message = channel.get(queue)
            return message.text, message.method.routing_key

        assert await talk(node.port, work) == ("20", "sensors.d1.t")


async def test_a_topic_that_is_too_long_for_a_key_is_cut(tmp_path):
    async with serving(tmp_path) as node:
        topic = "long/" + "é" * 400

        def work(raw: Raw) -> Any:
            channel = raw.channel()
            queue = channel.queue()
            channel.bind(queue, "amq.topic", "long.#")
            asyncio.run_coroutine_threadsafe(
                node.broker.publish(Message(topic, b"20"), principal=LOCAL), node.hub.loop
            ).result(10)
            return channel.get(queue)

        message = await talk(node.port, work)
        assert message.body == b"20"
        assert topic.replace("/", ".").startswith(message.method.routing_key)
        assert len(message.method.routing_key.encode()) in (254, 255)


@pytest.mark.parametrize("way", ["the write fails", "the connection goes"])
async def test_a_queue_whose_declaration_was_cut_can_be_declared(tmp_path, way):
    """Its name must not stay taken by what was half made."""
    async with serving(tmp_path) as node:
        rows = node.hub.queues.topology
        create = rows.create
        begun, gone = threading.Event(), asyncio.Event()

        async def cut(*args: Any) -> None:
            rows.create = create  # type: ignore[method-assign]
            begun.set()
            if way == "the write fails":
                raise QuotaExceeded("no room")
            await gone.wait()
            await create(*args)

        rows.create = cut  # type: ignore[method-assign]

        def first(raw: Raw) -> None:
            channel = raw.channel()
            channel.send(Queue.Declare(queue="cut", durable=True, arguments={}))
            assert begun.wait(10)
            if way == "the write fails":
                with pytest.raises(Refused):
                    channel.expect(Queue.DeclareOk)

        def second(raw: Raw) -> list[str]:
            channel = raw.channel()
            channel.queue("cut", durable=True)
            channel.confirm()
            channel.put("", "cut", "here")
            return channel.all("cut")

        await talk(node.port, first)
        await passes_until(lambda: not node.hub.connections)
        gone.set()  # what began is carried through
        assert await talk(node.port, second) == ["here"]


async def test_bodies_that_never_end_cost_bounded_memory(tmp_path):
    """A peer begins a body on every channel and ends none; whole ones count no more."""
    size = 64 * 1024
    begin = struct.pack(">HHQH", 60, 0, size, 0)

    def publish(raw: Raw, number: int, rest: int) -> None:
        raw.send(number, Basic.Publish(routing_key="nobody"))
        raw.send_frame(2, number, begin)
        raw.send_frame(3, number, bytes(size - 1024))
        raw.send_frame(3, number, bytes(rest))

    async with serving(tmp_path, AmqpLimits(message_bytes=size)) as node:

        def work(raw: Raw) -> None:
            channels = [raw.channel() for _ in range(10)]
            for channel in channels * 2:
                publish(raw, channel.number, 1024)
            channels[0].sync()
            (connection,) = node.hub.connections
            assert connection.body_bytes == 0
            for channel in channels[:7]:
                publish(raw, channel.number, 1023)
            channels[9].sync()
            assert connection.body_bytes == 7 * (size - 1)
            for channel in channels[7:]:
                publish(raw, channel.number, 1023)
            with pytest.raises(Refused) as refused:
                channels[9].sync()
            assert refused.value.short == "connection 506"
            assert connection.body_bytes == 0

        await talk(node.port, work)
