"""Limits and slow peers on a real server: each client costs bounded memory (I8)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from onelog.protocols.mqtt.packets import (
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from tests.conformance.mqtt_brokers import Onelog
from tests.conformance.mqtt_raw import Raw, unique


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    made = Onelog(
        tmp_path_factory.mktemp("limits"),
        "mqtt.limits.packet_bytes=100kB",
        "mqtt.limits.connect_packet_bytes=2kB",
        "mqtt.limits.subscriptions_per_client=3",
        "mqtt.limits.topic_levels=5",
        "mqtt.limits.client_id_bytes=30",
        "mqtt.limits.keep_alive_max_s=30",
        "mqtt.limits.session_expiry_max_s=100",
        "mqtt.limits.connect_timeout_ms=300",
        "mqtt.limits.topic_alias_maximum=0",
        "mqtt.limits.inflight=7",
        "mqtt.limits.connections_per_ip=50",
    ).start()
    yield made
    assert made.stop() == 0
    assert not made.errors()


def test_a_client_is_told_the_limits(server):
    with Raw(server.port).connect(keep_alive_s=0, session_expiry_s=5000) as client:
        told = client.connack.properties
        assert (told.server_keep_alive_s, told.session_expiry_s) == (30, 100)
        assert told.maximum_packet_size == 100_000
        assert told.topic_alias_maximum in (None, 0)


@pytest.mark.parametrize(
    "head",
    [b"\x10\xd1\x0f", b"\x10\xff\xff\xff\x7f", b"\x10\xff\xff\xff\xff\x7f"],
    ids=["one byte too many", "the most that can be announced", "no length at all"],
)
def test_a_connect_that_announces_too_much_is_closed_without_a_word(server, head):
    """The head comes by itself, so it is known before a byte of the rest is read."""
    with Raw(server.port) as client:
        client.socket.sendall(head)
        assert client.socket.recv(100) == b""


def test_the_largest_connect_is_taken(server):
    will = b"w" * 1960
    rest = b"\x00\x04MQTT\x04\x06\x00\x3c\x00\x04long\x00\x01t" + len(will).to_bytes(2) + will
    assert 1900 < len(rest) <= 2000
    with Raw(server.port) as client:
        client.socket.sendall(bytes((0x10, len(rest) & 0x7F | 0x80, len(rest) >> 7)) + rest)
        assert client.socket.recv(100) == b"\x20\x02\x00\x00"


def test_an_alias_where_none_is_allowed_is_0x94(server):
    with Raw(server.port).connect() as client:
        client.socket.sendall(b"\x30\x08\x00\x01t\x03\x23\x00\x01x")
        ended = client.end()
        assert ended is not None
        assert ended.reason == 0x94


def test_one_subscription_too_many_is_refused_alone_with_0x97(server):
    topic = unique()
    with Raw(server.port).connect() as client:
        rows = tuple(Subscription(f"{topic}/{number}", 1) for number in range(4))
        client.send(Subscribe(1, rows))
        assert [int(code) for code in client.get(Suback).reasons] == [1, 1, 1, 0x97]
        client.publish(f"{topic}/0", b"x")
        assert client.take().payload == b"x"


def test_a_filter_that_is_too_deep_is_refused_with_0x8f(server):
    with Raw(server.port).connect() as client:
        assert client.subscribe("a/b/c/d/e/f", 0) == 0x8F
        assert client.subscribe("a/b/c/d/e", 0) == 0


def test_a_topic_that_is_too_deep_is_refused_with_0x90(server):
    with Raw(server.port).connect() as client:
        assert client.publish("a/b/c/d/e/f", b"x") == 0x90
        assert client.publish("a/b/c/d/e", b"x") == 0


def test_a_will_that_could_not_be_published_is_refused_at_once(server):
    for topic, code in (("a/b/c/d/e/f", 0x90), ("$SYS/x", 0x87)):
        with Raw(server.port).connect(will=Will(topic=topic, payload=b"x")) as client:
            assert client.connack.reason == code


def test_a_client_id_that_is_too_long_is_refused_with_0x85(server):
    with Raw(server.port).connect("x" * 31) as client:
        assert client.connack.reason == 0x85


def test_a_first_packet_that_is_too_large_is_not_waited_for(server):
    """Before CONNECT is accepted the broker holds little."""
    with Raw(server.port) as client:
        client.socket.sendall(b"\x10\xff\x7f" + b"\x00\x04MQTT\x05\x02\x00\x3c")
        assert client.end() is None
    will = Will(topic="w", payload=b"x" * 3000)
    with Raw(server.port) as client:
        client.socket.settimeout(5)
        with pytest.raises(Exception, match=r"closed|reset"):
            client.connect(will=will)


def test_a_peer_that_never_says_connect_is_closed(server):
    with Raw(server.port) as client:
        begun = time.monotonic()
        assert client.end() is None
        assert time.monotonic() - begun < 5


def test_the_window_is_the_lower_of_both_sides(server):
    topic = unique()
    with Raw(server.port).connect() as client, Raw(server.port).connect() as publisher:
        client.subscribe(topic, 1)
        for number in range(20):
            publisher.publish(topic, b"%d" % number)
        assert len(client.messages()) == 7


def test_one_address_has_so_many_connections(server):
    opened = [Raw(server.port) for _ in range(50)]
    try:
        with Raw(server.port) as one_more:
            assert one_more.end() is None
    finally:
        for raw in opened:
            raw.socket.close()


def test_a_subscriber_that_does_not_read_costs_bounded_memory_and_gets_everything_later(tmp_path):
    """I8: it reads the log later, in order, and nobody else waits for it."""
    server = Onelog(tmp_path, "mqtt.limits.inflight=1000").start()
    try:
        with Raw(server.port) as slow, Raw(server.port) as fast, Raw(server.port) as publisher:
            for raw in (slow, fast, publisher):
                raw.connect()
            slow.subscribe("t", 0)
            fast.subscribe("t", 0)
            payload = b"x" * 50_000
            publisher.publish("t", payload)
            fast.take()
            before = server.rss_bytes()
            for number in range(1000):  # 50 MB, of which a few MB fit into sockets
                publisher.publish("t", b"%d:" % number + payload, 0 if number % 100 else 1)
                fast.take()
            assert server.metric("onelog_mqtt_sessions_behind") == 1
            assert server.rss_bytes() - before < 25_000_000
            slow.take()
            for number in range(1000):
                assert slow.take().payload.startswith(b"%d:" % number)
            publisher.publish("t", b"live")
            assert slow.take().payload == b"live"
    finally:
        server.stop()


@pytest.fixture(scope="module")
def chosen(tmp_path_factory) -> Iterator[Onelog]:
    """A server with features that an operator chose."""
    made = Onelog(
        tmp_path_factory.mktemp("chosen"),
        "mqtt.limits.queued=5",
        "mqtt.limits.retained_messages=2",
        "mqtt.limits.write_timeout_ms=300",
        "mqtt.limits.outbox_bytes=64kB",
        'mqtt.rewrite=[{filter = "old/#", to = "new/$1"}]',
        'mqtt.auto_subscribe=[{filter = "own/%c", qos = 1}]',
        "mqtt.shares.groups=g=sticky",
        "mqtt.system.interval_ms=200",
        "main.partitions=1",
    ).start()
    yield made
    assert made.stop() == 0
    assert not made.errors()


def test_a_session_that_lags_too_far_behind_skips_the_oldest(chosen):
    """Row 38: the bound is the operator's; without one the log keeps everything."""
    topic, name = unique(), unique("c")
    client = Raw(chosen.port).connect(name, session_expiry_s=60)
    client.subscribe(topic, 1)
    client.disconnect()
    with Raw(chosen.port).connect() as publisher:
        for number in range(12):
            publisher.publish(topic, b"%d" % number)
    with Raw(chosen.port).connect(name, clean=False, session_expiry_s=60) as back:
        assert [int(m.payload) for m in back.messages()] == [7, 8, 9, 10, 11]


def test_no_more_messages_are_retained_than_allowed(chosen):
    topic = unique()
    with Raw(chosen.port).connect() as client:
        for name in "abc":
            assert client.publish(f"{topic}/{name}", b"x", retain=True) == 0
        client.subscribe(f"{topic}/#", 0)
        assert sorted(m.topic[-1] for m in client.messages()) == ["a", "b"]
        client.publish(f"{topic}/a", b"", retain=True)
        client.publish(f"{topic}/b", b"", retain=True)


def test_a_peer_that_takes_no_bytes_at_all_is_ended(chosen):
    with Raw(chosen.port).connect() as stuck, Raw(chosen.port).connect() as publisher:
        topic = unique()
        stuck.subscribe(topic, 0)
        payload = b"x" * 500_000
        deadline = time.monotonic() + 10
        begun = chosen.metric("onelog_mqtt_sessions")
        while chosen.metric("onelog_mqtt_sessions") == begun and time.monotonic() < deadline:
            publisher.publish(topic, payload)
        assert chosen.metric("onelog_mqtt_sessions") == begun - 1


def test_topics_are_rewritten_and_clients_subscribed_as_configured(chosen):
    with Raw(chosen.port).connect() as client:
        client.subscribe("new/x", 1)
        client.publish("old/x", b"rewritten")
        assert client.take().topic == "new/x"
        client.publish(f"own/{client.client_id}", b"automatic")
        assert client.take().payload == b"automatic"


def test_system_topics_are_made_anew_as_often_as_configured(chosen):
    with Raw(chosen.port).connect() as client:
        client.subscribe("$SYS/broker/uptime", 0)
        assert client.take().topic == client.take().topic == "$SYS/broker/uptime"


def test_clients_are_sent_to_another_server_if_configured(tmp_path):
    server = Onelog(tmp_path, "mqtt.redirect_to=elsewhere.example:1883").start()
    try:
        with Raw(server.port).connect() as client:
            assert client.connack.reason == 0x9C
            assert client.connack.properties.server_reference == "elsewhere.example:1883"
        with Raw(server.port, 4).connect() as client:
            assert client.connack.reason != 0
    finally:
        server.stop()


def test_the_end_of_a_connection_says_why_in_words(server):
    """Row 33."""
    with Raw(server.port).connect() as client:
        client.socket.sendall(b"\x82\x03\x00\x01\x00")
        ended = client.end()
        assert ended is not None
        assert "SUBSCRIBE" in (ended.properties.reason_string or "")


@pytest.mark.parametrize(
    ("wishes", "is_told"),
    [
        ({}, True),
        ({"request_problem_information": True}, True),
        ({"request_problem_information": False}, False),
        ({"maximum_packet_size": 20}, False),
    ],
)
def test_a_refusal_says_why_in_words_unless_the_client_does_not_want_it(server, wishes, is_told):
    """Row 33: MQTT5 3.1.2-29; and no word makes a packet larger than the client takes."""
    with Raw(server.port).connect(**wishes) as client:
        client.send(Publish(topic="$SYS/x", qos=1, packet_id=1))
        client.send(Publish(topic="$SYS/x", qos=2, packet_id=2))
        client.send(Subscribe(3, (Subscription("a/b/c/d/e/f", 0), Subscription("fine", 0))))
        refused = [client.get(Puback), client.get(Pubrec)]
        assert [answer.reason for answer in refused] == [0x87, 0x87]
        suback = client.get(Suback)
        assert [reason >= 0x80 for reason in suback.reasons] == [True, False]
        for answer, word in zip([*refused, suback], ("$SYS/x", "$SYS/x", "a/b/c"), strict=True):
            text = answer.properties.reason_string
            assert word in (text or "") if is_told else text is None


def test_metrics_tell_what_mqtt_holds(server):
    topic = unique()
    with Raw(server.port).connect() as client:
        client.subscribe(topic, 1)
        client.publish(topic, b"x", retain=True)
        client.message()
        assert server.metric("onelog_mqtt_connections") >= 1
        assert server.metric("onelog_mqtt_sessions") >= 1
        assert server.metric("onelog_mqtt_subscriptions") >= 1
        assert server.metric("onelog_mqtt_retained_messages") >= 1
        assert server.metric("onelog_mqtt_in_flight_messages") >= 1
        assert server.metric("onelog_mqtt_connects_total") >= 1
