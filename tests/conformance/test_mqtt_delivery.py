"""Delivery as a client sees it on the wire, on ours and on Mosquitto."""

from __future__ import annotations

import pytest

from onelog.protocols.mqtt.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from onelog.protocols.mqtt.properties import Properties
from tests.conformance.mqtt_raw import unique


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_a_message_arrives_once_with_the_lower_of_both_qos(dial, version, published, subscribed):
    topic = unique()
    subscriber, publisher = dial(version).connect(), dial(version).connect()
    assert subscriber.subscribe(topic, subscribed) == subscribed
    publisher.publish(topic, b"hello", published)
    message = subscriber.take()
    assert (message.topic, message.payload) == (topic, b"hello")
    assert message.qos == min(published, subscribed)
    assert (message.retain, message.dup) == (False, False)
    assert subscriber.messages() == []


def test_versions_meet_on_one_port(dial):
    topic = unique()
    subscribers = [dial(version).connect() for version in (3, 4, 5)]
    for subscriber in subscribers:
        subscriber.subscribe(topic, 1)
    for version in (3, 4, 5):
        dial(version).connect().publish(topic, b"%d" % version)
        assert [subscriber.take().payload for subscriber in subscribers] == [b"%d" % version] * 3


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_one_topic_keep_their_order(dial, qos):
    topic = unique()
    subscriber, publisher = dial().connect(), dial().connect()
    subscriber.subscribe(topic, qos)
    for number in range(50):
        publisher.publish(topic, b"%d" % number, qos)
    assert [int(subscriber.take().payload) for _ in range(50)] == list(range(50))


def test_a_burst_of_pipelined_publishes_is_answered_in_order_and_delivered_in_order(dial):
    topic = unique()
    subscriber, publisher = dial(4).connect(), dial(4).connect()
    subscriber.subscribe(topic, 1)
    publisher.send(
        *(
            Publish(topic=topic, payload=b"%d" % number, qos=1, packet_id=number)
            for number in range(1, 101)
        )
    )
    assert [publisher.get(Puback).packet_id for _ in range(100)] == list(range(1, 101))
    assert [int(subscriber.take().payload) for _ in range(100)] == list(range(1, 101))


def test_a_packet_id_of_qos_2_that_comes_again_before_its_release_is_published_once(dial):
    """Trap 2."""
    topic = unique()
    subscriber, publisher = dial().connect(), dial().connect()
    subscriber.subscribe(topic, 2)
    publish = Publish(topic=topic, payload=b"x", qos=2, packet_id=9)
    publisher.send(publish)
    assert publisher.get(Pubrec).packet_id == 9
    publisher.send(Publish(topic=topic, payload=b"x", qos=2, packet_id=9, dup=True))
    assert publisher.get(Pubrec).packet_id == 9
    publisher.send(Pubrel(9))
    assert publisher.get(Pubcomp).reason == 0
    assert subscriber.take().payload == b"x"
    assert subscriber.messages() == []
    publisher.send(Publish(topic=topic, payload=b"y", qos=2, packet_id=9))
    publisher.get(Pubrec)
    publisher.send(Pubrel(9))
    publisher.get(Pubcomp)
    assert subscriber.take().payload == b"y"


def test_a_release_of_an_unknown_packet_id_is_answered_with_0x92(dial):
    """Trap 2."""
    client = dial().connect()
    client.send(Pubrel(77))
    assert client.get(Pubcomp).reason == 0x92


def test_nothing_is_sent_again_while_the_connection_lives(dial):
    """Trap 3 (MQTT5 4.4.0-1)."""
    topic = unique()
    subscriber, publisher = dial().connect(), dial().connect()
    subscriber.subscribe(topic, 1)
    publisher.publish(topic, b"x")
    message = subscriber.message()
    for number in range(3):
        publisher.publish(topic, b"%d" % number)
    assert [m.payload for m in subscriber.messages()] == [b"0", b"1", b"2"]
    subscriber.acknowledge(message)
    assert subscriber.messages() == []


def test_a_subscriber_gets_no_more_than_its_receive_maximum_and_the_rest_later(dial):
    """Trap 4."""
    topic = unique()
    subscriber, publisher = dial().connect(receive_maximum=2), dial().connect()
    subscriber.subscribe(topic, 1)
    for number in range(5):
        publisher.publish(topic, b"%d" % number)
    held = subscriber.messages()
    assert [m.payload for m in held] == [b"0", b"1"]
    for number in range(2, 5):
        subscriber.acknowledge(held.pop(0))
        held.append(subscriber.message())
        assert held[-1].payload == b"%d" % number


def test_messages_of_qos_0_do_not_wait_for_the_receive_maximum(dial):
    """Trap 4."""
    topic = unique()
    subscriber, publisher = dial().connect(receive_maximum=1), dial().connect()
    subscriber.subscribe(f"{topic}/0", 0)
    subscriber.subscribe(f"{topic}/1", 1)
    publisher.publish(f"{topic}/1", b"held")
    assert subscriber.message().payload == b"held"
    for number in range(3):
        publisher.publish(f"{topic}/0", b"%d" % number)
    assert [m.payload for m in subscriber.messages()] == [b"0", b"1", b"2"]


def test_overlapping_subscriptions_get_one_copy_with_every_identifier(dial):
    """Trap 5: the highest QoS wins."""
    topic = unique()
    subscriber, publisher = dial().connect(), dial().connect()
    subscriber.subscribe(f"{topic}/#", 0, identifier=7)
    subscriber.subscribe(f"{topic}/+", 2, identifier=8)
    subscriber.subscribe(f"{topic}/a", 1, identifier=9)
    publisher.publish(f"{topic}/a", b"x", 2)
    message = subscriber.take()
    assert message.qos == 2
    assert sorted(message.properties.subscription_ids) == [7, 8, 9]
    assert subscriber.messages() == []


def test_overlapping_subscriptions_of_version_3_get_one_copy_with_the_highest_qos(dial):
    topic = unique()
    subscriber, publisher = dial(4).connect(), dial(4).connect()
    subscriber.subscribe(f"{topic}/#", 0)
    subscriber.subscribe(f"{topic}/a", 1)
    publisher.publish(f"{topic}/a", b"x", 1)
    assert subscriber.take().qos == 1
    assert subscriber.messages() == []


def test_a_client_with_no_local_does_not_get_its_own_messages(dial):
    topic = unique()
    client, other = dial().connect(), dial().connect()
    client.subscribe(topic, 1, no_local=True)
    client.publish(topic, b"own")
    other.publish(topic, b"foreign")
    assert client.take().payload == b"foreign"
    assert client.messages() == []


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("P/#", ["P", "P/a", "P/a/b", "P/"], []),
        ("P/+", ["P/a", "P/"], ["P", "P/a/b"]),
        ("P/+/c", ["P/b/c", "P//c"], ["P/c", "P/b/c/d"]),
        ("/P", ["/P"], ["P"]),
        ("+/P", ["/P", "x/P"], ["P"]),
        ("P/a b/ü", ["P/a b/ü"], ["P/a b/u"]),
    ],
)
def test_wildcards_match_levels(dial, text, matching, other):
    """Trap 11."""
    prefix = unique()
    subscriber, publisher = dial().connect(), dial().connect()
    assert subscriber.subscribe(text.replace("P", prefix), 1) == 1
    for topic in [*other, *matching]:
        publisher.publish(topic.replace("P", prefix), topic.encode())
    found = [m.payload.decode() for m in subscriber.messages()]
    assert sorted(found) == sorted(matching)


def test_wildcards_at_the_first_level_do_not_see_system_topics(dial):
    """Trap 11 (MQTT5 4.7.2-1)."""
    client = dial().connect()
    client.subscribe("#", 0, retain_handling=0)
    client.subscribe("+/broker/#", 0)
    assert not [m.topic for m in client.messages() if m.topic.startswith("$")]


def test_subscribe_answers_each_row_in_order_and_the_bad_one_alone_is_refused(dial):
    """Trap 14."""
    topic = unique()
    client = dial().connect()
    rows = (Subscription(f"{topic}/a", 2), Subscription(f"{topic}/b", 0), Subscription("+/x", 1))
    client.send(Subscribe(5, rows))
    answer = client.get(Suback)
    assert (answer.packet_id, [int(code) for code in answer.reasons]) == (5, [2, 0, 1])


def test_unsubscribe_says_which_filter_was_subscribed(dial):
    """Trap 14: 0x11."""
    topic = unique()
    client = dial().connect()
    client.subscribe(f"{topic}/a", 1)
    assert client.unsubscribe(f"{topic}/a", f"{topic}/b") == (0, 0x11)
    client.publish(f"{topic}/a", b"x")
    assert client.messages() == []


def test_a_second_subscription_to_a_filter_replaces_the_first(dial):
    topic = unique()
    client = dial().connect()
    client.subscribe(topic, 2, identifier=1)
    client.subscribe(topic, 0, identifier=2)
    client.publish(topic, b"x", 2)
    message = client.take()
    assert (message.qos, message.properties.subscription_ids) == (0, (2,))
    assert client.messages() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_nobody_gets_is_answered_with_success_or_0x10(dial, qos):
    """Trap 14: the code is optional."""
    assert dial().connect().publish(unique(), b"x", qos) in (0, 0x10)


def test_a_publish_that_nobody_gets_is_in_the_log_all_the_same(dial):
    """So the answer is a plain success: a reader may come later (I2)."""
    assert dial().connect().publish(unique(), b"x", 1) == 0


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 300_000])
def test_payloads_of_any_size_and_any_bytes_arrive_as_they_are(dial, size):
    topic = unique()
    subscriber, publisher = dial().connect(), dial().connect()
    subscriber.subscribe(topic, 1)
    payload = bytes(number % 256 for number in range(size))
    publisher.publish(topic, payload)
    assert subscriber.take().payload == payload


def test_user_properties_keep_their_order_and_their_doubles(dial):
    topic = unique()
    subscriber, publisher = dial().connect(), dial().connect()
    subscriber.subscribe(topic, 1)
    pairs = (("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("ü", "€"), ("b", "0"))
    publisher.publish(topic, b"x", user_properties=pairs)
    assert subscriber.take().properties.user_properties == pairs


def test_a_request_carries_where_to_answer_and_what_the_answer_is_to(dial):
    """Request and response: topic, correlation, content type, payload format."""
    topic = unique()
    service, asker = dial().connect(), dial().connect()
    service.subscribe(f"{topic}/ask", 1)
    asker.subscribe(f"{topic}/answer", 1)
    asker.publish(
        f"{topic}/ask",
        b"1+1",
        response_topic=f"{topic}/answer",
        correlation_data=b"\x00\xff",
        content_type="text/plain",
        payload_format=1,
    )
    asked = service.take().properties
    assert (asked.content_type, asked.payload_format) == ("text/plain", 1)
    assert asked.response_topic == f"{topic}/answer"
    service.publish(asked.response_topic, b"2", correlation_data=asked.correlation_data)
    answer = asker.take()
    assert (answer.payload, answer.properties.correlation_data) == (b"2", b"\x00\xff")


def test_a_client_may_give_topics_short_names(dial):
    """Trap 15: the subscriber sees the topic, and an alias may get a new topic."""
    topic = unique()
    subscriber, publisher = dial().connect(), dial().connect()
    assert publisher.connack.properties.topic_alias_maximum == 32
    subscriber.subscribe(f"{topic}/#", 1)
    publisher.publish(f"{topic}/a", b"1", topic_alias=1)
    publisher.publish("", b"2", topic_alias=1)
    publisher.publish("", b"3", qos=0, topic_alias=1)
    publisher.publish(f"{topic}/b", b"4", topic_alias=1)
    publisher.publish("", b"5", topic_alias=1)
    taken = [subscriber.take() for _ in range(5)]  # nobody is told when that of QoS 0 is there
    found = [(message.topic.rpartition("/")[2], message.payload) for message in taken]
    assert sorted(found, key=lambda row: row[1]) == [
        ("a", b"1"),
        ("a", b"2"),
        ("a", b"3"),
        ("b", b"4"),
        ("b", b"5"),
    ]


@pytest.mark.parametrize("alias", [33, 65_535])
def test_an_alias_above_the_maximum_ends_the_connection_with_0x94(dial, alias):
    """Trap 15."""
    assert send_alias(dial().connect(), alias) == 0x94


def test_an_alias_of_zero_ends_the_connection_with_0x94(dial):
    """Trap 15 (MQTT5 3.3.2-8)."""
    assert send_alias(dial().connect(), 0) == 0x94


def send_alias(client, alias: int) -> int:
    topic = unique().encode()
    body = len(topic).to_bytes(2, "big") + topic + b"\x03\x23" + alias.to_bytes(2, "big") + b"x"
    client.socket.sendall(bytes((0x30, len(body))) + body)
    ended = client.end()
    assert ended is not None
    return int(ended.reason)


def test_an_alias_that_has_no_topic_yet_ends_the_connection(dial):
    """Trap 15: aliases are the connection's own and begin empty."""
    first = dial().connect("alias-" + unique())
    first.publish(unique(), b"x", topic_alias=3)
    second = dial().connect()
    second.send(Publish(topic="", payload=b"x", properties=Properties(topic_alias=3)))
    ended = second.end()
    assert ended is not None
    assert ended.reason in (0x82, 0x94)


def test_a_message_larger_than_the_client_takes_is_not_sent_to_it_and_is_answered(dial):
    """Trap 12."""
    topic = unique()
    small, large = dial().connect(maximum_packet_size=200), dial().connect()
    small.subscribe(topic, 1)
    large.subscribe(topic, 1)
    assert large.publish(topic, b"x" * 1000) == 0
    assert large.publish(topic, b"y") == 0
    assert [len(m.payload) for m in large.messages()] == [1000, 1]
    assert [m.payload for m in small.messages()] == [b"y"]


def test_a_packet_larger_than_the_broker_takes_ends_the_connection_with_0x95(dial):
    client = dial().connect()
    assert client.connack.properties.maximum_packet_size == 1024 * 1024
    body_bytes = 1024 * 1024 + 1
    size, head = body_bytes, b"\x30"
    while size:
        size, byte = divmod(size, 128)
        head += bytes((byte | (0x80 if size else 0),))
    client.socket.sendall(head + b"\x00\x01a" + b"\x00" * 1000)
    ended = client.end()
    assert ended is not None
    assert ended.reason == 0x95


@pytest.mark.parametrize(
    ("qos", "properties"),
    [(1, Properties()), (2, Properties()), (2, Properties(content_type="text/plain"))],
)
def test_more_unanswered_publishes_than_the_broker_takes_end_the_connection_with_0x93(
    dial, qos, properties
):
    """Trap 4: twice as many in one write, so that no answer can make enough room."""
    client = dial().connect()
    most = client.connack.properties.receive_maximum or 65_535
    assert most == 1000
    topic = unique()
    rows = range(1, 2 * most)
    client.send(*(Publish(topic=topic, qos=qos, packet_id=n, properties=properties) for n in rows))
    ended = client.end()
    assert ended is not None
    assert ended.reason == 0x93


def test_publishes_that_are_taken_in_turns_are_answered_or_end_the_connection_with_0x93(dial):
    """Trap 4: answers between the turns make room; what has none ends the connection."""
    client, topic = dial().connect(), unique()
    most = client.connack.properties.receive_maximum or 0
    rows = range(1, 2 * most)
    typed = Properties(content_type="text/plain")
    client.send(*(Publish(topic=topic, qos=1, packet_id=n, properties=typed) for n in rows))
    answered = []
    while len(answered) < len(rows):
        packet = client.read()
        if isinstance(packet, Disconnect):
            assert packet.reason == 0x93
            break
        assert isinstance(packet, Puback)
        answered.append(packet.packet_id)
    assert answered == list(rows)[: len(answered)]


def test_as_many_unanswered_publishes_as_the_broker_takes_are_answered(dial):
    """Trap 4: answers make room, whatever the publishes were."""
    client, topic = dial().connect(), unique()
    most = client.connack.properties.receive_maximum or 0
    plain, other = Properties(), Properties(content_type="text/plain")
    for begin in (1, 1 + most):
        ids = range(begin, begin + most)
        client.send(
            *(
                Publish(topic=topic, qos=1, packet_id=n, properties=other if n % 2 else plain)
                for n in ids
            )
        )
        assert {client.get(Puback).packet_id for _ in ids} == set(ids)
    for number in range(1, most + 20):
        client.send(Publish(topic=topic, qos=2, packet_id=number))
        assert client.get(Pubrec).packet_id == number
        client.send(Pubrel(number))
        assert client.get(Pubcomp).packet_id == number


def test_what_an_earlier_connection_left_unreleased_does_not_count(dial):
    """MQTT5 4.9: the quota begins anew with each connection."""
    name, topic = unique("c"), unique()
    first = dial().connect(name, clean=False, session_expiry_s=60)
    most = first.connack.properties.receive_maximum or 0
    old, new = range(1, most + 1), range(2001, 2001 + most)
    first.send(*(Publish(topic=topic, qos=2, packet_id=number) for number in old))
    assert {first.get(Pubrec).packet_id for _ in old} == set(old)
    first.vanish()
    second = dial().connect(name, clean=False, session_expiry_s=60)
    second.send(*(Publish(topic=topic, qos=2, packet_id=number) for number in new))
    assert {second.get(Pubrec).packet_id for _ in new} == set(new)
    second.send(*(Pubrel(number) for number in old))
    assert {second.get(Pubcomp).reason for _ in old} == {0}
