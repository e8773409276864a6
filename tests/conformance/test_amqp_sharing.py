"""How do the consumers of a channel share its prefetch and its socket? (checklist row 83)"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conformance.amqp_raw import DEADLINE_S, Basic, Queue

TASKS = 99


@pytest.fixture
def three(writer) -> Iterator[list[str]]:
    """Three queues with more tasks than are taken."""
    found = [writer.queue() for _ in range(3)]
    for queue in found:
        for number in range(TASKS):
            writer.publish("", queue, str(number))
    writer.put("", found[0])
    yield found
    for queue in found:
        writer.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


@pytest.fixture
def two(writer) -> Iterator[list[str]]:
    found = [writer.queue() for _ in range(2)]
    yield found
    for queue in found:
        writer.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


def begin(channel, queue: str, tag: str = "", **options) -> None:
    """Consume; deliveries of others may come before the answer, so none is asked for."""
    tag = tag or queue
    channel.send(Basic.Consume(queue=queue, consumer_tag=tag, nowait=True, arguments={}, **options))


def work(channel, count: int) -> Counter[str]:
    """Do so many tasks, each as it comes; of which queue how many were."""
    done: Counter[str] = Counter()
    for _ in range(count):
        message = channel.message()
        done[message.method.routing_key] += 1
        channel.ack(message.tag)
    return done


@pytest.mark.parametrize("prefetch", [1, 2, 4, 10])
def test_queues_share_the_prefetch_of_a_channel(channel, three, prefetch):
    channel.qos(prefetch, whole_channel=True)
    for queue in three:
        begin(channel, queue)
    done = work(channel, TASKS)
    assert min(done[queue] for queue in three) >= TASKS // 6, done


def test_queues_share_the_prefetch_when_many_are_acknowledged_at_once(channel, three):
    channel.qos(10, whole_channel=True)
    for queue in three:
        begin(channel, queue)
    done: Counter[str] = Counter()
    for _ in range(12):
        held = channel.messages(10)
        done.update(message.method.routing_key for message in held)
        channel.ack(held[-1].tag, multiple=True)
    # RabbitMQ gives all the room of a round to one of them, whichever.
    assert len(done) == 3, done


def test_a_queue_that_is_always_full_does_not_keep_the_others_waiting(channel, writer, three):
    """A queue that gets something new all the time has its turn like any other."""
    busy, *others = three
    channel.qos(1, whole_channel=True)
    for queue in three:
        begin(channel, queue)
    done: Counter[str] = Counter()
    for _ in range(45):
        message = channel.message()
        done[message.method.routing_key] += 1
        writer.put("", busy, "more")
        channel.ack(message.tag)
    assert all(done[queue] for queue in others), done


def test_consumers_of_one_queue_share_the_prefetch_of_their_channel(channel, writer, two):
    queue = two[0]
    channel.qos(2, whole_channel=True)
    for tag in "abc":
        begin(channel, queue, tag)
    for number in range(60):
        writer.publish("", queue, str(number))
    writer.put("", queue)
    done: Counter[str] = Counter()
    for _ in range(60):
        message = channel.message()
        done[message.method.consumer_tag] += 1
        channel.ack(message.tag)
    assert min(done[tag] for tag in "abc") >= 8, done


# -- who does not acknowledge


def test_who_does_not_acknowledge_waits_for_the_prefetch_of_its_channel_too(channel, writer, two):
    first, second = two
    channel.qos(1, whole_channel=True)
    begin(channel, first, "acks")
    writer.put("", first, "1")
    held = channel.message()
    begin(channel, second, "no-ack", no_ack=True)
    writer.put("", second, "a", "b", "c")
    assert channel.is_silent()
    channel.ack(held.tag)
    assert channel.texts(3) == ["a", "b", "c"]
    writer.put("", second, "d")
    assert channel.message().text == "d"


def test_a_wider_prefetch_lets_who_does_not_acknowledge_go_on(channel, writer, two):
    first, second = two
    channel.qos(1, whole_channel=True)
    begin(channel, first)
    writer.put("", first, "1")
    channel.message()
    begin(channel, second, no_ack=True)
    writer.put("", second, "a", "b")
    assert channel.is_silent(0.1)
    channel.qos(2, whole_channel=True)
    assert channel.texts(2) == ["a", "b"]


def test_what_comes_back_makes_room_for_all(channel, writer, two):
    first, second = two
    channel.qos(2, whole_channel=True)
    begin(channel, first, "first")
    writer.put("", first, "1", "2")
    held = channel.messages(2)
    begin(channel, second, "second")
    writer.put("", second, "a", "b")
    assert channel.is_silent(0.1)
    channel.ask(Basic.Cancel(consumer_tag="first"), Basic.CancelOk)
    channel.nack(held[1].tag, multiple=True)
    assert channel.texts(2) == ["a", "b"]


# -- the socket


@pytest.mark.parametrize("channels", [1, 2])
def test_queues_share_the_socket_of_a_client_that_is_behind(call, writer, two, channels):
    raw = call()
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    consuming = [raw.channel() for _ in range(channels)]
    body = "x" * 40_000
    for queue in two:
        writer.put("", queue, *[body] * 350)
    for number, queue in enumerate(two):
        begin(consuming[number % channels], queue, no_ack=True)
    found: Counter[str] = Counter()
    # Buffers on the way hold megabytes of the first one; that is not half of what it has.
    while sum(found.values()) < 340:
        _channel, frame = raw._read_frame(DEADLINE_S)
        if isinstance(frame, Basic.Deliver):
            found[frame.routing_key] += 1
    assert len(found) == 2, found


def test_what_may_not_wait_reaches_a_channel_that_acknowledges_meanwhile(channel, writer):
    """It has room all the time, also while its queues are asked in turn."""
    names = [writer.queue(auto_delete=True, arguments={"x-message-ttl": 0}) for _ in range(2)]
    channel.qos(100, whole_channel=True)
    for name in names:
        begin(channel, name)
    channel.sync()
    for number in range(TASKS):
        writer.publish("", names[number % 2], str(number))
        if number % 10 == 9:
            for message in channel.messages(10):
                channel.ack(message.tag)
