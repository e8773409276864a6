"""Retained messages on ours and on Mosquitto."""

from __future__ import annotations

import time

import pytest

from tests.conformance.mqtt_raw import unique


@pytest.mark.parametrize("version", [4, 5])
def test_a_retained_message_greets_a_new_subscription_with_the_flag(dial, version):
    topic = unique()
    publisher = dial(version).connect()
    publisher.publish(topic, b"old", retain=True)
    publisher.publish(topic, b"last", retain=True)
    client = dial(version).connect()
    client.subscribe(topic, 1)
    message = client.take()
    assert (message.payload, message.retain, message.qos) == (b"last", True, 1)
    publisher.publish(topic, b"live", retain=True)
    live = client.take()
    assert (live.payload, live.retain) == (b"live", False)


def test_an_empty_payload_clears_and_is_delivered_to_those_who_are_subscribed(dial):
    """Trap 6."""
    topic = unique()
    publisher, subscribed = dial().connect(), dial().connect()
    publisher.publish(topic, b"x", retain=True)
    subscribed.subscribe(topic, 1)
    subscribed.take()
    publisher.publish(topic, b"", retain=True)
    cleared = subscribed.take()
    assert (cleared.payload, cleared.retain) == (b"", False)
    client = dial().connect()
    client.subscribe(topic, 1)
    assert client.messages() == []


def test_wildcards_find_every_retained_message_that_matches(dial):
    topic = unique()
    publisher = dial().connect()
    for name in ("a", "b", "c/d"):
        publisher.publish(f"{topic}/{name}", name.encode(), retain=True)
    client = dial().connect()
    client.subscribe(f"{topic}/#", 0)
    assert sorted(m.payload for m in client.messages()) == [b"a", b"b", b"c/d"]
    other = dial().connect()
    other.subscribe(f"{topic}/+", 0)
    assert sorted(m.payload for m in other.messages()) == [b"a", b"b"]
    for name in ("a", "b", "c/d"):
        publisher.publish(f"{topic}/{name}", b"", retain=True)


@pytest.mark.parametrize(("handling", "counts"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling_says_when_retained_messages_are_sent(dial, handling, counts):
    """0 always, 1 only for a new subscription, 2 never."""
    topic = unique()
    dial().connect().publish(topic, b"x", retain=True)
    client = dial().connect()
    for expected in counts:
        client.subscribe(topic, 0, retain_handling=handling)
        assert len(client.messages()) == expected


@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published_keeps_the_flag_of_live_messages(dial, as_published):
    topic = unique()
    client, publisher = dial().connect(), dial().connect()
    client.subscribe(topic, 1, retain_as_published=as_published)
    publisher.publish(topic, b"x", retain=True)
    assert client.take().retain is as_published
    publisher.publish(topic, b"y")
    assert client.take().retain is False
    publisher.publish(topic, b"", retain=True)


def test_a_retained_message_carries_its_properties_and_the_subscription_identifier(dial):
    topic = unique()
    publisher = dial().connect()
    pairs = (("k", "1"), ("k", "2"))
    publisher.publish(
        topic,
        b"x",
        retain=True,
        content_type="a/b",
        user_properties=pairs,
        correlation_data=b"c",
    )
    client = dial().connect()
    client.subscribe(topic, 1, identifier=99)
    found = client.take().properties
    assert (found.content_type, found.user_properties) == ("a/b", pairs)
    assert (found.correlation_data, found.subscription_ids) == (b"c", (99,))


def test_a_retained_message_expires_and_tells_what_remains(dial):
    """Trap 6 and 7."""
    topic = unique()
    publisher = dial().connect()
    publisher.publish(f"{topic}/short", b"x", retain=True, message_expiry_s=1)
    publisher.publish(f"{topic}/long", b"y", retain=True, message_expiry_s=50)
    time.sleep(2.1)
    client = dial().connect()
    client.subscribe(f"{topic}/#", 1)
    message = client.take()
    assert (message.payload, message.properties.message_expiry_s) in [(b"y", 48), (b"y", 47)]
    assert client.messages() == []


def test_the_qos_of_a_retained_message_is_the_lower_of_both(dial):
    topic = unique()
    dial().connect().publish(topic, b"x", 2, retain=True)
    for qos in (0, 1, 2):
        client = dial().connect()
        client.subscribe(topic, qos)
        assert client.take().qos == qos


def test_a_retained_message_of_qos_0_is_kept_too(dial):
    topic = unique()
    publisher = dial().connect()
    publisher.publish(topic, b"x", 0, retain=True)
    publisher.publish(unique(), b"", 1)  # answered: what came before is done
    client = dial().connect()
    client.subscribe(topic, 1)
    assert client.take().payload == b"x"


def test_more_retained_messages_than_the_receive_maximum_all_arrive_with_their_qos(dial):
    """Trap 4: what does not fit the window comes later, not with a lower QoS."""
    topic = unique()
    publisher = dial().connect()
    for number in range(30):
        publisher.publish(f"{topic}/{number}", b"%d" % number, retain=True)
    client = dial().connect(receive_maximum=5)
    client.subscribe(f"{topic}/#", 1)
    found = [client.take() for _ in range(30)]
    assert sorted(int(m.payload) for m in found) == list(range(30))
    assert {(m.qos, m.retain) for m in found} == {(1, True)}
    assert client.messages() == []
