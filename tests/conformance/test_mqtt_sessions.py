"""Sessions: what a client finds when it comes back, and who owns a client id."""

from __future__ import annotations

import time

import pytest

from onelog.protocols.mqtt.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from onelog.protocols.mqtt.properties import Properties
from tests.conformance.mqtt_raw import unique


def persistent(client, name, version, *, clean=False, **more):
    """Connect with a session that outlives the connection, as each version says it."""
    if version == 5:
        more.setdefault("session_expiry_s", 600)
    return client.connect(name, clean=clean, **more)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_of_an_absent_client_wait_for_it_in_order(dial, version, qos):
    topic, name = unique(), unique("c")
    client = persistent(dial(version), name, version)
    assert client.connack.session_present is False
    client.subscribe(topic, qos)
    client.disconnect()
    publisher = dial().connect()
    for number in range(20):
        publisher.publish(topic, b"%d" % number, 2)
    back = persistent(dial(version), name, version)
    assert back.connack.session_present is True
    found = [back.take() for _ in range(20)]
    assert [int(m.payload) for m in found] == list(range(20))
    assert {(m.qos, m.dup) for m in found} == {(qos, False)}
    publisher.publish(topic, b"live")
    assert back.take().payload == b"live"
    assert back.messages() == []


@pytest.mark.parametrize("version", [4, 5])
def test_a_clean_start_forgets_the_session(dial, version):
    topic, name = unique(), unique("c")
    client = persistent(dial(version), name, version)
    client.subscribe(topic, 1)
    client.disconnect()
    dial().connect().publish(topic, b"x")
    fresh = dial(version).connect(name, clean=True)
    assert fresh.connack.session_present is False
    fresh.publish(topic, b"y")
    assert fresh.messages() == []
    fresh.disconnect()
    assert persistent(dial(version), name, version).connack.session_present is False


def test_without_expiry_a_session_ends_with_its_connection(dial):
    topic, name = unique(), unique("c")
    client = dial().connect(name, clean=False)
    client.subscribe(topic, 1)
    client.disconnect()
    again = dial().connect(name, clean=False)
    assert again.connack.session_present is False


def test_a_session_ends_when_its_expiry_has_passed(dial):
    name = unique("c")
    client = dial().connect(name, session_expiry_s=1)
    client.subscribe(unique(), 1)
    client.disconnect()
    deadline = time.monotonic() + 10
    time.sleep(1.1)
    while True:  # Mosquitto looks at expiries now and then
        again = dial().connect(name, clean=False, session_expiry_s=1)
        present = again.connack.session_present
        again.disconnect(session_expiry_s=1)
        if not present or time.monotonic() > deadline:
            break
        time.sleep(1.5)
    assert present is False


def test_disconnect_may_shorten_the_expiry(dial):
    name = unique("c")
    client = dial().connect(name, session_expiry_s=600)
    client.subscribe(unique(), 1)
    client.disconnect(session_expiry_s=0)
    assert dial().connect(name, clean=False).connack.session_present is False


def test_disconnect_may_not_give_an_expiry_to_a_session_without_one(dial):
    """MQTT5 3.14.2.2.2: protocol error."""
    client = dial().connect()
    client.send(Disconnect(properties=Properties(session_expiry_s=10)))
    ended = client.end()
    assert ended is not None
    assert ended.reason == 0x82


@pytest.mark.parametrize("version", [4, 5])
def test_what_was_not_acknowledged_comes_again_in_order_with_dup_and_its_packet_id(dial, version):
    """Trap 3."""
    topic, name = unique(), unique("c")
    client = persistent(dial(version), name, version)
    client.subscribe(topic, 1)
    publisher = dial().connect()
    for number in range(5):
        publisher.publish(topic, b"%d" % number)
    held = [client.message() for _ in range(5)]
    client.send(Puback(held[0].packet_id))
    client.messages()
    client.vanish()
    back = persistent(dial(version), name, version)
    found = [back.take() for _ in range(4)]
    assert [(m.payload, m.packet_id, m.dup) for m in found] == [
        (m.payload, m.packet_id, True) for m in held[1:]
    ]
    assert back.messages() == []


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_of_qos_2_that_was_received_is_released_after_a_reconnect_not_sent(dial, version):
    """Trap 3: the release is what comes again."""
    topic, name = unique(), unique("c")
    client = persistent(dial(version), name, version)
    client.subscribe(topic, 2)
    dial().connect().publish(topic, b"x", 2)
    message = client.message()
    client.send(Pubrec(message.packet_id))
    assert client.get(Pubrel).packet_id == message.packet_id
    client.vanish()
    back = persistent(dial(version), name, version)
    assert back.get(Pubrel).packet_id == message.packet_id
    back.send(Pubcomp(message.packet_id))
    assert back.messages() == []
    back.disconnect()
    again = persistent(dial(version), name, version)
    assert again.messages() == []


@pytest.mark.parametrize("version", [4, 5])
def test_a_publish_of_qos_2_is_published_once_over_a_reconnect(dial, version):
    """Trap 2."""
    topic, name = unique(), unique("c")
    subscriber = dial().connect()
    subscriber.subscribe(topic, 2)
    publisher = persistent(dial(version), name, version)
    publisher.send(Publish(topic=topic, payload=b"x", qos=2, packet_id=5))
    assert publisher.get(Pubrec).packet_id == 5
    publisher.vanish()
    back = persistent(dial(version), name, version)
    assert back.connack.session_present
    back.send(Publish(topic=topic, payload=b"x", qos=2, packet_id=5, dup=True))
    assert back.get(Pubrec).packet_id == 5
    back.send(Pubrel(5))
    assert back.get(Pubcomp).reason == 0
    assert subscriber.take().payload == b"x"
    assert subscriber.messages() == []


@pytest.mark.parametrize("version", [4, 5])
def test_the_old_connection_of_a_client_id_is_ended_before_the_new_one_is_accepted(dial, version):
    """Trap 9."""
    name = unique("c")
    old = persistent(dial(version), name, version)
    new = persistent(dial(version), name, version)
    assert new.connack.session_present is True
    old.socket.settimeout(1)
    old.end()


def test_the_old_connection_of_version_5_is_told_0x8e(dial):
    """Trap 9."""
    name = unique("c")
    old = dial().connect(name)
    dial().connect(name)
    ended = old.end()
    assert ended is not None
    assert ended.reason == 0x8E


def test_a_takeover_neither_loses_nor_doubles_what_is_in_flight(dial):
    """Trap 9."""
    topic, name = unique(), unique("c")
    publisher = dial().connect()
    client = dial().connect(name, clean=False, session_expiry_s=600)
    client.subscribe(topic, 1)
    for number in range(30):
        publisher.publish(topic, b"%d" % number)
    for expected in range(10):
        assert int(client.take().payload) == expected
    client.messages()
    found = []
    for _ in range(2):
        client = dial().connect(name, clean=False, session_expiry_s=600)
        found += [int(client.take().payload) for _ in range(10)]
        client.messages()
    assert found == list(range(10, 30))
    assert dial().connect(name, clean=False, session_expiry_s=600).messages() == []


def test_subscriptions_of_a_session_keep_their_options_and_identifiers(dial):
    topic, name = unique(), unique("c")
    client = dial().connect(name, clean=False, session_expiry_s=600)
    client.subscribe(topic, 1, identifier=12, no_local=True, retain_as_published=True)
    client.disconnect()
    dial().connect().publish(topic, b"x", retain=True)
    back = dial().connect(name, clean=False, session_expiry_s=600)
    message = back.take()
    assert message.properties.subscription_ids == (12,)
    assert message.retain is True
    back.publish(topic, b"own", retain=True)
    assert back.messages() == []
    back.publish(topic, b"", retain=True)


def test_an_unsubscribed_filter_stays_gone_over_a_reconnect(dial):
    topic, name = unique(), unique("c")
    client = dial().connect(name, clean=False, session_expiry_s=600)
    client.subscribe(f"{topic}/a", 1)
    client.subscribe(f"{topic}/b", 1)
    client.unsubscribe(f"{topic}/a")
    client.disconnect()
    publisher = dial().connect()
    publisher.publish(f"{topic}/a", b"a")
    publisher.publish(f"{topic}/b", b"b")
    back = dial().connect(name, clean=False, session_expiry_s=600)
    assert back.take().payload == b"b"
    assert back.messages() == []


def test_messages_before_a_subscription_are_not_delivered_to_it(dial):
    topic, name = unique(), unique("c")
    publisher = dial().connect()
    publisher.publish(topic, b"before")
    client = dial().connect(name, clean=False, session_expiry_s=600)
    client.subscribe(topic, 1)
    client.disconnect()
    publisher.publish(topic, b"after")
    back = dial().connect(name, clean=False, session_expiry_s=600)
    assert back.take().payload == b"after"
    assert back.messages() == []


def test_the_expiry_of_a_message_counts_while_its_client_is_absent(dial):
    """Trap 7: what remains is told, and what has expired is not delivered."""
    topic, name = unique(), unique("c")
    client = dial().connect(name, clean=False, session_expiry_s=600)
    client.subscribe(topic, 1)
    client.disconnect()
    publisher, begun = dial().connect(), time.monotonic()
    publisher.publish(topic, b"short", message_expiry_s=1)
    publisher.publish(topic, b"long", message_expiry_s=100)
    publisher.publish(topic, b"ever")
    time.sleep(2.1)
    back = dial().connect(name, clean=False, session_expiry_s=600)
    found = [back.take() for _ in range(2)]
    assert [m.payload for m in found] == [b"long", b"ever"]
    assert 99 - (time.monotonic() - begun) <= (found[0].properties.message_expiry_s or 0) <= 98
    assert found[1].properties.message_expiry_s is None
    assert back.messages() == []


def test_messages_of_qos_0_are_kept_for_an_absent_client_too(dial):
    """They are in the log anyway; the subscription's QoS decides how they arrive."""
    topic, name = unique(), unique("c")
    client = dial().connect(name, clean=False, session_expiry_s=600)
    client.subscribe(topic, 1)
    client.disconnect()
    publisher = dial().connect()
    publisher.publish(topic, b"0", 0)
    publisher.publish(topic, b"1", 1)
    back = dial().connect(name, clean=False, session_expiry_s=600)
    assert [back.take().payload for _ in range(2)] == [b"0", b"1"]
