"""Streams: everybody reads everything, from where they like (checklist rows 75, 78)."""

from __future__ import annotations

import datetime
import time

import pytest

from tests.conformance.amqp_raw import Basic, Queue, Refused


@pytest.fixture
def stream(writer):
    name = writer.kept_queue(queue_type="stream")
    writer.put("", name, *map(str, range(10)))
    yield name
    writer.ask(Queue.Delete(queue=name), Queue.DeleteOk)


def reader(call, stream, start=None, prefetch=100):
    channel = call().channel()
    channel.qos(prefetch)
    arguments = {} if start is None else {"x-stream-offset": start}
    channel.consume(stream, arguments=arguments)
    return channel


def offsets(messages) -> list[int]:
    return [message.headers["x-stream-offset"] for message in messages]


def test_every_consumer_gets_everything_with_its_offset(call, stream):
    for _ in range(2):
        channel = reader(call, stream, "first")
        found = channel.messages(10)
        assert [message.text for message in found] == [str(number) for number in range(10)]
        assert offsets(found) == list(range(10))
        for message in found:
            channel.ack(message.tag)


@pytest.mark.parametrize(("start", "first"), [(4, 4), (0, 0), ("first", 0)])
def test_a_consumer_begins_where_it_says(call, stream, start, first):
    found = reader(call, stream, start).messages(10 - first)
    assert offsets(found) == list(range(first, 10))


@pytest.mark.parametrize("start", [None, "next"])
def test_next_and_nothing_mean_what_comes(call, writer, stream, start):
    channel = reader(call, stream, start)
    assert channel.is_silent(0.1)
    writer.put("", stream, "new")
    assert [message.text for message in channel.messages(1)] == ["new"]


def test_last_begins_no_later_than_with_the_last_message(call, stream):
    found = reader(call, stream, "last").message()
    assert found.headers["x-stream-offset"] <= 9


def test_a_time_begins_no_later_than_with_the_first_after_it(call, writer, stream):
    time.sleep(1.1)
    between = datetime.datetime.now(datetime.UTC)
    time.sleep(1.1)
    writer.put("", stream, "late")
    channel = reader(call, stream, between)
    assert channel.message().text == "late"
    assert reader(call, stream, "1h").message().text == "0"


def test_an_acknowledgement_asks_for_more_and_settles_nothing(call, stream):
    channel = reader(call, stream, "first", prefetch=3)
    found = channel.messages(3)
    assert channel.is_silent(0.1)
    channel.ack(found[-1].tag, multiple=True)
    assert offsets(channel.messages(3)) == [3, 4, 5]
    channel.close()
    assert offsets(reader(call, stream, "first").messages(10)) == list(range(10))


def test_a_stream_takes_from_exchanges(call, writer, stream):
    exchange = writer.exchange("topic", auto_delete=True)
    writer.bind(stream, exchange, "a.#")
    writer.put(exchange, "a.b", "routed")
    writer.put(exchange, "c", "not routed")
    found = reader(call, stream, 10).message()
    assert (found.text, found.method.routing_key) == ("routed", "a.b")


MISTAKES = {
    "get": (lambda channel, name: channel.get(name), "connection 540"),
    "consume without prefetch": (
        lambda channel, name: channel.consume(name),
        "channel 406",
    ),
    "consume without acknowledging": (
        lambda channel, name: [channel.qos(5), channel.consume(name, no_ack=True)],
        "connection 540",
    ),
    "an offset that is none": (
        lambda channel, name: [
            channel.qos(5),
            channel.consume(name, arguments={"x-stream-offset": "soon"}),
        ],
        "channel 406",
    ),
    "purge": (
        lambda channel, name: channel.ask(Queue.Purge(queue=name), Queue.PurgeOk),
        "connection 540",
    ),
    "a time to live": (
        lambda channel, _name: channel.kept_queue(queue_type="stream", message_ttl=1000),
        "channel 406",
    ),
    "an age that is none": (
        lambda channel, _name: channel.kept_queue(queue_type="stream", max_age="old"),
        "channel 406",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_a_stream_cannot_do_is_refused(call, stream, mistake):
    make, short = MISTAKES[mistake]
    with pytest.raises(Refused) as refused:
        make(call().channel(), stream)
    assert refused.value.short == short


def test_a_stream_may_bound_its_size(amqp, call, writer):
    if not amqp.is_ours:
        pytest.skip("RabbitMQ drops whole segments, later")
    name = writer.kept_queue(queue_type="stream", max_length_bytes=10)
    writer.put("", name, *"abcdefghijklmno")
    channel = reader(call, name, "first")
    found = channel.messages(10)
    assert "".join(message.text for message in found) == "fghijklmno"
    assert offsets(found) == list(range(5, 15))
    channel.send(Basic.Nack(delivery_tag=0, multiple=True))
    channel.ask(Queue.Delete(queue=name), Queue.DeleteOk)
