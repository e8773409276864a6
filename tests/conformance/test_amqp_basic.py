"""How do messages come and go? (checklist rows 80 to 94)"""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from pamqp import encode, header
from pamqp import frame as frames

from tests.conformance.amqp_raw import (
    Basic,
    Channel,
    Queue,
    Refused,
    unique,
    until_message,
)


@pytest.fixture
def queue(channel) -> str:
    return channel.queue(exclusive=True)


def fill(channel, queue, count=5) -> list[str]:
    texts = [str(number) for number in range(1, count + 1)]
    for text in texts:
        channel.publish("", queue, text)
    return texts


# -- get


def test_get_tells_what_is_left(channel, queue):
    fill(channel, queue, 3)
    message = channel.get(queue, no_ack=False)
    assert (message.text, message.method.message_count) == ("1", 2)
    assert (message.method.exchange, message.method.routing_key) == ("", queue)
    assert not message.method.redelivered
    assert [channel.get(queue).method.message_count for _ in range(2)] == [1, 0]
    assert channel.get(queue) is None


def test_what_a_channel_published_its_next_get_finds(channel, queue):
    for number in range(20):
        channel.publish("", queue, str(number))
        assert channel.get(queue).text == str(number)


def test_what_was_published_before_a_close_is_there_after_it(call, channel):
    queue = channel.queue()
    raw = call()
    other = raw.channel()
    other.publish("", queue, "1")
    other.close()
    assert channel.count(queue) == 1
    raw.channel().publish("", queue, "2")
    raw.close()
    assert channel.all(queue) == ["1", "2"]
    channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


# -- consume


def test_a_consumer_gets_what_waits_and_what_comes(channel, queue):
    fill(channel, queue, 2)
    tag = channel.consume(queue)
    channel.publish("", queue, "3")
    found = channel.messages(3)
    assert [message.text for message in found] == ["1", "2", "3"]
    assert [message.tag for message in found] == [1, 2, 3]
    assert {message.method.consumer_tag for message in found} == {tag}


def test_consumers_take_turns(channel, queue):
    for tag in "abc":
        channel.consume(queue, tag)
    fill(channel, queue, 9)
    found = [message.method.consumer_tag for message in channel.messages(9)]
    assert sorted(found) == sorted("abc" * 3)


def test_a_cancelled_consumer_keeps_what_it_holds(channel, queue):
    fill(channel, queue, 2)
    tag = channel.consume(queue)
    first, second = channel.messages(2)
    channel.ask(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)
    channel.ack(first.tag)
    channel.nack(second.tag)
    message = channel.get(queue)
    assert (message.text, message.method.redelivered) == ("2", True)


def test_without_acknowledgement_a_message_is_gone_when_it_is_sent(channel, queue):
    fill(channel, queue, 3)
    channel.consume(queue, no_ack=True)
    channel.messages(3)
    assert channel.count(queue) == 0
    channel.close()


def test_no_local_is_taken_and_does_nothing(channel, queue):
    channel.consume(queue, no_local=True)
    channel.publish("", queue, "own")
    assert channel.message().text == "own"


def test_higher_consumer_priorities_go_first_while_they_have_room(channel, queue):
    channel.qos(2)
    channel.consume(queue, "low", arguments={"x-priority": 1})
    channel.consume(queue, "high", arguments={"x-priority": 10})
    fill(channel, queue, 3)
    found = {message.text: message.method.consumer_tag for message in channel.messages(3)}
    assert found == {"1": "high", "2": "high", "3": "low"}


def test_an_exclusive_consumer_leaves_room_for_the_next(channel, queue):
    tag = channel.consume(queue, exclusive=True)
    channel.ask(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)
    channel.consume(queue)


# -- acknowledge


def test_an_acknowledged_message_does_not_come_again(call):
    raw = call()
    channel = raw.channel()
    queue = channel.queue()
    fill(channel, queue, 4)
    channel.consume(queue)
    found = channel.messages(4)
    channel.ack(found[1].tag, multiple=True)
    channel.ack(found[3].tag)
    channel.close()
    other = raw.channel()
    assert other.all(queue) == ["3"]
    other.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


def test_what_a_channel_held_comes_back_in_order_and_marked(call):
    raw = call()
    channel, other = raw.channel(), raw.channel()
    queue = channel.queue()
    texts = fill(channel, queue, 6)
    channel.qos(4)
    channel.consume(queue)
    channel.messages(4)
    channel.close()
    found = [other.get(queue) for _ in texts]
    assert [message.text for message in found] == texts
    assert [message.method.redelivered for message in found] == [True] * 4 + [False] * 2
    other.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


def test_what_a_lost_connection_held_comes_back_in_order(call, channel):
    raw = call()
    lost = raw.channel()
    queue = channel.queue()
    texts = fill(lost, queue, 5)
    lost.consume(queue)
    lost.messages(5)
    raw.socket.close()
    channel.consume(queue)
    assert channel.texts(5) == texts
    channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


def test_a_requeued_message_goes_back_to_its_place(channel, queue):
    texts = fill(channel, queue, 5)
    held = [channel.get(queue, no_ack=False) for _ in range(3)]
    for message in (held[1], held[0], held[2]):
        channel.nack(message.tag)
    assert channel.all(queue) == texts


def test_nack_of_many_and_reject_of_one(channel, queue):
    fill(channel, queue, 4)
    held = [channel.get(queue, no_ack=False) for _ in range(4)]
    channel.nack(held[1].tag, multiple=True, requeue=False)
    channel.send(Basic.Reject(delivery_tag=held[2].tag, requeue=False))
    channel.send(Basic.Reject(delivery_tag=held[3].tag, requeue=True))
    assert channel.all(queue) == ["4"]


def test_zero_means_all_that_is_outstanding(channel, queue):
    fill(channel, queue, 3)
    for _ in range(3):
        channel.get(queue, no_ack=False)
    channel.ack(0, multiple=True)
    channel.sync()
    assert channel.count(queue) == 0
    channel.nack(0, multiple=True)
    channel.sync()


def test_an_ack_of_many_has_to_name_one_that_is_outstanding(channel, queue):
    fill(channel, queue, 3)
    held = [channel.get(queue, no_ack=False) for _ in range(3)]
    channel.ack(held[1].tag)
    channel.ack(held[1].tag, multiple=True)
    with pytest.raises(Refused, match="unknown delivery tag 2"):
        channel.sync()


def test_recover_brings_everything_again_marked(channel, queue):
    texts = fill(channel, queue, 3)
    channel.consume(queue)
    channel.messages(3)
    channel.ask(Basic.Recover(requeue=True), Basic.RecoverOk)
    found = channel.messages(3)
    assert [message.text for message in found] == texts
    assert all(message.method.redelivered for message in found)
    assert [message.tag for message in found] == [4, 5, 6]


# -- prefetch


def test_prefetch_counts_per_consumer_that_comes_later(channel, queue):
    channel.qos(2)
    channel.consume(queue, "two")
    channel.qos(1)
    channel.consume(queue, "one")
    fill(channel, queue, 6)
    found = [message.method.consumer_tag for message in channel.messages(3)]
    assert sorted(found) == ["one", "two", "two"]
    assert channel.is_silent()
    channel.ack(0, multiple=True)
    assert len(channel.messages(3)) == 3


def test_prefetch_of_the_channel_counts_all_its_consumers(channel, queue):
    channel.qos(3, whole_channel=True)
    for tag in "ab":
        channel.consume(queue, tag)
    fill(channel, queue, 6)
    found = channel.messages(3)
    assert channel.is_silent()
    channel.ack(found[0].tag)
    channel.message()
    assert channel.is_silent()


def test_prefetch_of_the_channel_may_change_while_it_consumes(channel, queue):
    """Celery does that for tasks that wait for their time."""
    channel.qos(1, whole_channel=True)
    channel.consume(queue)
    fill(channel, queue, 6)
    channel.message()
    assert channel.is_silent(0.1)
    channel.qos(3, whole_channel=True)
    channel.messages(2)
    assert channel.is_silent(0.1)
    channel.qos(0, whole_channel=True)
    channel.messages(3)


def test_both_prefetches_count(channel, queue):
    channel.qos(3)
    channel.qos(4, whole_channel=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    fill(channel, queue, 9)
    found = [message.method.consumer_tag for message in channel.messages(4)]
    assert max(found.count("a"), found.count("b")) <= 3
    assert channel.is_silent(0.1)


def test_get_does_not_count_for_the_prefetch(channel, queue):
    channel.qos(1)
    fill(channel, queue, 3)
    assert [channel.get(queue, no_ack=False).text for _ in range(2)] == ["1", "2"]
    channel.consume(queue)
    assert channel.message().text == "3"


def test_a_client_may_stop_the_flow_where_that_is_served(amqp, channel, queue):
    if not amqp.is_ours:
        pytest.skip("RabbitMQ refuses to stop the flow (540)")
    channel.ask(Channel.Flow(active=False), Channel.FlowOk)
    channel.consume(queue)
    fill(channel, queue, 2)
    assert channel.is_silent(0.1)
    channel.ask(Channel.Flow(active=True), Channel.FlowOk)
    assert channel.texts(2) == ["1", "2"]


# -- confirms and returns


def test_confirms_count_from_one_in_the_order_of_the_publishes(channel, queue):
    channel.publish("", queue, "not counted")
    channel.confirm()
    for number in range(50):
        channel.publish("", queue, str(number))
    seen: set[int] = set()
    while len(seen) < 50:
        found = channel.expect(Basic.Ack)
        seen |= set(range(1, found.delivery_tag + 1)) if found.multiple else {found.delivery_tag}
    assert seen == set(range(1, 51))


def test_what_goes_nowhere_is_confirmed(channel):
    channel.confirm()
    channel.publish("", "no such queue", "1")
    channel.publish("amq.direct", unique(), "2")
    last = 0
    while last < 2:
        last = channel.expect(Basic.Ack).delivery_tag


def test_a_mandatory_message_that_goes_nowhere_is_returned_before_it_is_confirmed(channel):
    channel.confirm()
    key = unique()
    channel.publish("amq.direct", key, "back", mandatory=True, message_id="7", headers={"a": 1})
    returned = channel.message()
    assert isinstance(returned.method, Basic.Return)
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", key)
    assert (returned.text, returned.properties.message_id) == ("back", "7")
    assert returned.headers == {"a": 1}
    assert channel.expect(Basic.Ack).delivery_tag == 1


def test_a_mandatory_message_that_goes_somewhere_is_not_returned(channel, queue):
    channel.publish("", queue, "1", mandatory=True)
    channel.publish("", "no such queue", "2", mandatory=True)
    returned = channel.message()
    assert returned.text == "2"
    assert channel.all(queue) == ["1"]


def test_returns_work_without_confirms_and_without_a_body(channel):
    channel.publish("", "no such queue", "", mandatory=True)
    assert channel.message().body == b""


# -- properties


FULL = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c-1",
    "reply_to": "somewhere",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    "message_type": "t",
    "user_id": "guest",
    "app_id": "app",
}


def test_every_property_comes_out_as_it_went_in(channel, queue):
    channel.publish("", queue, "body", **FULL)
    found = channel.get(queue).properties
    assert {name: getattr(found, name) for name in FULL} == FULL
    assert found.headers is None


def test_a_message_without_properties_has_none(channel, queue):
    channel.publish("", queue, "1")
    found = channel.get(queue).properties
    assert {name for name in FULL if getattr(found, name) is not None} == set()
    assert not found.headers


TABLE = {
    "text": "häh",
    "empty": "",
    "bytes": bytearray(b"\x00\xff"),
    "true": True,
    "byte": -5,
    "short": -3000,
    "long": 2_000_000_000,
    "longlong": -(2**60),
    "double": 1.5,
    "decimal": Decimal("3.14"),
    "time": datetime.datetime(2001, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    "none": None,
    "list": [1, "two", [3], {"four": 4}],
    "table": {"nested": {"deep": [None, True]}},
}


def test_every_field_type_comes_out_byte_for_byte(channel, queue):
    channel.publish("", queue, "1", headers=TABLE)
    channel.send(Basic.Get(queue=queue, no_ack=True))
    message = channel.message()
    assert message.headers == TABLE
    assert encode.field_table(message.headers) == encode.field_table(TABLE)


def test_a_field_table_is_not_encoded_anew(channel, queue):
    """Types that a client library would choose otherwise: an int64 of 1, a long string of bytes."""
    raw = channel.raw
    table = b"\x01al\x00\x00\x00\x00\x00\x00\x00\x01\x01bS\x00\x00\x00\x02\xff\xfe"
    properties = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    channel.send(Basic.Publish(exchange="", routing_key=queue))
    raw.send_frame(2, channel.number, b"\x00\x3c\x00\x00" + (0).to_bytes(8, "big") + properties)
    channel.sync()
    channel.send(Basic.Get(queue=queue, no_ack=True))
    while table not in raw._bytes:
        raw._bytes += raw.socket.recv(4096)


@pytest.mark.parametrize("size", [0, 1, 131064, 131065, 400_000])
def test_bodies_of_any_size_come_out_as_they_went_in(channel, queue, size):
    body = bytes(number % 251 for number in range(size))
    channel.publish("", queue, body)
    assert channel.get(queue).body == body


def test_a_body_may_come_in_small_frames(channel, queue):
    channel.send(Basic.Publish(exchange="", routing_key=queue))
    head = header.ContentHeader(body_size=6, properties=Basic.Properties())
    channel.raw.send_bytes(frames.marshal(head, channel.number))
    for part in (b"a", b"", b"bc", b"def"):
        channel.raw.send_frame(3, channel.number, part)
    assert channel.get(queue).body == b"abcdef"


# -- direct reply-to

REPLIES = "amq.rabbitmq.reply-to"


def test_an_answer_comes_straight_to_who_asked(call, channel, queue):
    asker = call().channel()
    tag = asker.consume(REPLIES, no_ack=True)
    name = channel.queue()
    asker.publish("", name, "question", reply_to=REPLIES, correlation_id="1")
    request = until_message(channel, name)
    assert request.properties.reply_to.startswith(f"{REPLIES}.")
    found = channel.ask(
        Queue.Declare(queue=request.properties.reply_to, passive=True), Queue.DeclareOk
    )
    assert (found.message_count, found.consumer_count) == (0, 1)
    channel.publish("", request.properties.reply_to, "answer", correlation_id="1")
    answer = asker.message()
    assert (answer.text, answer.properties.correlation_id) == ("answer", "1")
    assert (answer.method.consumer_tag, answer.method.redelivered) == (tag, False)
    channel.ask(Queue.Delete(queue=name), Queue.DeleteOk)


def test_an_answer_to_who_left_is_returned(call, channel):
    asker = call().channel()
    asker.consume(REPLIES, no_ack=True)
    name = channel.queue()
    asker.publish("", name, "question", reply_to=REPLIES)
    asker.close()
    reply_to = until_message(channel, name).properties.reply_to
    channel.publish("", reply_to, "answer", mandatory=True)
    assert channel.message().method.reply_code == 312
    with pytest.raises(Refused) as refused:
        channel.queue(reply_to, passive=True)
    assert refused.value.short == "channel 404"


@pytest.mark.parametrize("mistake", ["acknowledging", "not consuming", "twice"])
def test_a_mistake_with_replies_is_refused_with_406(channel, mistake):
    with pytest.raises(Refused) as refused:
        if mistake == "acknowledging":
            channel.consume(REPLIES, no_ack=False)
        elif mistake == "twice":
            channel.consume(REPLIES, no_ack=True)
            channel.consume(REPLIES, no_ack=True)
        else:
            channel.publish("", "anything", "1", reply_to=REPLIES)
            channel.sync()
    assert refused.value.short == "channel 406"
