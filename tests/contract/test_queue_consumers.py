"""What a queue promises its consumers and asks of them, on both kinds of queue, without a protocol.

`Taker` is a consumer of its own; AMQP's is `ChannelConsumer`, MQTT's is `Member`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.base.errors import NotAuthorized
from onelog.broker import LATEST, LOCAL, Broker, Message, QueueSettings, Record
from onelog.config import Config
from onelog.queues import filter_queue
from onelog.queues.addresses import queue_topic
from onelog.queues.consumers import Consumers, Delivery, Strategy
from onelog.queues.dead_letters import Letter
from onelog.queues.filter_queue import FilterConsumer, FilterQueue
from onelog.queues.hub import QueueHub
from onelog.queues.queue import Queue
from onelog.queues.settings import QueueRecord
from tests.support.brokers import FAST
from tests.support.mqtt import until

AnyQueue = Queue | FilterQueue


class Taker(FilterConsumer):
    """Takes up to `most` messages at once, and nothing that it refuses."""

    def __init__(self, tag: str, queue: AnyQueue, most: int = 100, refuses: bytes = b"") -> None:
        self.tag = tag
        self.queue = queue
        self.held: list[Delivery] = []
        self.seen: list[str] = []
        self._most = most
        self._refuses = refuses
        self.forbidden: set[bytes] = set()
        self._flushed = 0

    @property
    def unacked(self) -> int:
        return len(self.held)

    @property
    def room(self) -> int:
        return self._most - len(self.held)

    def may_have(self, record: Record) -> bool:
        return record.value not in self.forbidden

    def take(self, delivery: Delivery) -> bool:
        if not self.may_have(delivery.record):
            return False
        if self._refuses and delivery.record.value == self._refuses:
            return False
        self.held.append(delivery)
        self.seen.append((delivery.record.value or b"").decode())
        return True

    def flush(self) -> None:
        assert len(self.seen) > self._flushed, "there is something to write"
        self._flushed = len(self.seen)

    def ask_for_room(self) -> None:
        assert not self.room

    def queue_gone(self) -> None:
        self.seen.append("gone")

    def ack(self, at: int = 0) -> None:
        self.queue.ack(self.held.pop(at).place)

    def reject(self, at: int = 0) -> None:
        self.queue.reject(self.held.pop(at).place)

    def begin(self) -> Taker:
        self.queue.add_consumer(self)
        return self

    def leave(self) -> None:
        held, self.held = self.held, []
        self.queue.remove_consumer(self)
        self.queue.requeue([row.place for row in held])


class Rig:
    """A queue, and how messages come to it."""

    def __init__(self, queue: AnyQueue, publish: Callable[[str], Awaitable[None]]) -> None:
        self.queue = queue
        self._publish = publish

    async def put(self, *texts: str) -> None:
        for text in texts:
            await self._publish(text)

    def taker(self, tag: str, **options: object) -> Taker:
        return Taker(tag, self.queue, **options).begin()  # type: ignore[arg-type]

    @property
    def settled(self) -> bool:
        """Whether nothing waits and nothing is out."""
        cursor = self.queue.cursor
        return cursor.lag() == 0 and cursor.pending() == 0


def no_letters(record: Record) -> Letter:
    raise AssertionError(f"{record.topic} has no dead-letter exchange")


async def routed(broker: Broker, stack: contextlib.AsyncExitStack) -> tuple[Queue, str]:
    hub = QueueHub(broker, Config(), SystemClock(), no_letters)
    await hub.open()
    stack.push_async_callback(hub.close)
    vhost = hub.vhosts.find("/")
    assert vhost is not None
    queue = await vhost.declare_queue(QueueRecord(name="q", durable=True), None, passive=False)
    return queue, queue_topic("/", "q")


async def filtered(broker: Broker, strategy: Strategy) -> tuple[FilterQueue, str]:
    cursor = await broker.cursors.open_queue(
        "share/g/jobs/#", ("jobs/#",), start=LATEST, settings=QueueSettings(), principal=LOCAL
    )
    loop = asyncio.get_running_loop()
    return FilterQueue(cursor, strategy, loop, SystemClock()), "jobs/x"


@contextlib.asynccontextmanager
async def queue_of(
    kind: str, path: Path, strategy: Strategy = Strategy.ROUND_ROBIN
) -> AsyncIterator[Rig]:
    async with contextlib.AsyncExitStack() as stack:
        broker = await open_broker(path, FAST, SystemClock())
        stack.push_async_callback(broker.close)
        queue: AnyQueue
        if kind == "routed":
            queue, topic = await routed(broker, stack)
        else:
            queue, topic = await filtered(broker, strategy)

        async def publish(text: str) -> None:
            await broker.publish(Message(topic, text.encode()), principal=LOCAL)

        yield Rig(queue, publish)


both = pytest.mark.parametrize("kind", ["routed", "filter"])


@both
async def test_a_consumer_gets_no_more_than_it_has_room_for_and_goes_on_when_it_settles(
    kind, tmp_path
):
    async with queue_of(kind, tmp_path) as rig:
        taker = rig.taker("a", most=2)
        await rig.put(*"12345")
        await until(lambda: taker.seen == ["1", "2"])
        for upto in ("123", "1234", "12345"):
            taker.ack()
            await until(lambda upto=upto: taker.seen == [*upto])
        taker.ack()
        taker.ack()
        await until(lambda: rig.settled)


@both
async def test_consumers_get_messages_in_turn_each_message_once(kind, tmp_path):
    async with queue_of(kind, tmp_path) as rig:
        one, two = rig.taker("one"), rig.taker("two")
        await rig.put(*"123456")
        await until(lambda: len(one.seen) + len(two.seen) == 6)
        assert (one.seen, two.seen) == ([*"135"], [*"246"])


@both
async def test_a_consumer_without_room_is_passed_over(kind, tmp_path):
    async with queue_of(kind, tmp_path) as rig:
        small, large = rig.taker("small", most=1), rig.taker("large")
        await rig.put(*"1234")
        await until(lambda: len(small.seen) + len(large.seen) == 4)
        assert (small.seen, large.seen) == (["1"], [*"234"])


@both
async def test_what_a_consumer_had_that_left_goes_to_another_in_order_and_marked(kind, tmp_path):
    async with queue_of(kind, tmp_path) as rig:
        one = rig.taker("one")
        await rig.put(*"1234")
        await until(lambda: len(one.held) == 4)
        one.ack(1)
        two = rig.taker("two")
        one.leave()
        await until(lambda: len(two.held) == 3)
        assert two.seen == [*"134"]
        assert all(row.redelivered for row in two.held)


@both
async def test_a_message_that_one_consumer_can_never_have_goes_to_another(kind, tmp_path):
    async with queue_of(kind, tmp_path) as rig:
        one, two = rig.taker("one", refuses=b"bad"), rig.taker("two")
        await rig.put("bad", "good", "bad")
        await until(lambda: len(one.seen) + len(two.seen) == 3)
        assert sorted(two.seen + one.seen) == ["bad", "bad", "good"]
        assert "bad" not in one.seen


@both
async def test_a_message_that_no_consumer_can_have_is_given_up_and_the_next_one_comes(
    kind, tmp_path
):
    async with queue_of(kind, tmp_path) as rig:
        one = rig.taker("one", refuses=b"bad")
        await rig.put("bad", "good")
        await until(lambda: one.seen == ["good"])
        one.ack()
        await until(lambda: rig.settled)


@both
async def test_a_rejected_message_does_not_come_again(kind, tmp_path):
    async with queue_of(kind, tmp_path) as rig:
        one = rig.taker("one")
        await rig.put("1", "2")
        await until(lambda: len(one.held) == 2)
        one.reject()
        one.ack()
        await until(lambda: rig.settled)
        assert one.seen == ["1", "2"]


@both
async def test_an_exclusive_consumer_is_alone(kind, tmp_path):
    async with queue_of(kind, tmp_path) as rig:
        first = Taker("first", rig.queue)
        first.exclusive = True
        first.begin()
        with pytest.raises(NotAuthorized, match="exclusive use"):
            rig.taker("second")
        first.leave()
        rig.taker("second")


async def test_a_consumer_hears_that_its_queue_was_deleted(tmp_path):
    async with queue_of("routed", tmp_path) as rig:
        one = rig.taker("one")
        assert isinstance(rig.queue, Queue)
        await rig.queue.vhost.delete_queue(rig.queue)
        await until(lambda: one.seen == ["gone"])


# -- which consumer is next

RECORD = Record("s", 0, 0, "jobs/x", 0, None, b"", ())  # type: ignore[arg-type]


def given(strategy: Strategy, takers: list[Taker], count: int) -> str:
    consumers: Consumers[Taker] = Consumers(strategy=strategy)
    for taker in takers:
        consumers.add(taker, "queue")
    found = ""
    for place in range(count):
        taker = consumers.give(Delivery(place, RECORD, False, {}))
        found += taker.tag if taker else "-"
    return found


def takers(*most: int, priorities: tuple[int, ...] = ()) -> list[Taker]:
    found = [Taker("abc"[at], None, room) for at, room in enumerate(most)]  # type: ignore[arg-type]
    for taker, priority in zip(found, priorities, strict=False):
        taker.priority = priority
    return found


def test_each_strategy_chooses_among_those_with_room():
    assert given(Strategy.ROUND_ROBIN, takers(9, 1, 9), 6) == "abcaca"
    assert given(Strategy.STICKY, takers(2, 2, 1), 6) == "aabbc-"
    assert given(Strategy.LEAST_IN_FLIGHT, takers(9, 9, 1), 5) == "abcab"
    hashed = given(Strategy.HASH_TOPIC, takers(2, 2, 2), 6)
    assert len(set(hashed)) == 3
    assert hashed[0] == hashed[1] != hashed[2]


def test_higher_priorities_come_first_whatever_the_turn():
    assert given(Strategy.ROUND_ROBIN, takers(2, 2, 9, priorities=(0, 5, 0)), 6) == "bbacac"


async def test_a_message_that_no_consumer_has_the_right_to_waits_for_one_that_has(tmp_path):
    async with queue_of("filter", tmp_path) as rig:
        one = rig.taker("one")
        one.forbidden = {b"2", b"4"}
        await rig.put(*"12345")
        await until(lambda: one.seen == [*"135"])
        two = rig.taker("two")
        await until(lambda: two.seen == [*"24"])
        assert not any(row.redelivered for row in two.held), "nobody had them"
        assert rig.queue.cursor.dropped == 0


async def test_a_message_without_anybody_with_the_right_to_it_is_offered_when_rights_change(
    tmp_path,
):
    async with queue_of("filter", tmp_path) as rig:
        one = rig.taker("one", most=1)
        one.forbidden = {b"1"}
        await rig.put(*"12")
        await until(lambda: one.seen == ["2"])
        one.forbidden = set()
        rig.queue.offer_withheld()
        one.ack()
        await until(lambda: one.seen == ["2", "1"])


async def test_of_too_many_messages_that_wait_for_a_right_the_oldest_is_given_up(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(filter_queue, "WITHHELD_MESSAGES_MAX", 2)
    async with queue_of("filter", tmp_path) as rig:
        one = rig.taker("one")
        one.forbidden = {b"1", b"2", b"3"}
        await rig.put(*"1234")
        await until(lambda: one.seen == ["4"])
        assert rig.queue.cursor.dropped == 1
        two = rig.taker("two")
        await until(lambda: two.seen == [*"23"])
